// Groups: their administration, members that fetch by themselves, dead letters.

import { pathOf } from "./http.js";
import type { Query } from "./http.js";
import { LeasedMessage, bodyOf, gapOf, headersOf, number, text, textOrBytes } from "./messages.js";
import type { Body, Gap, HeaderValue, Wire } from "./messages.js";
import type { Requests } from "./requests.js";
import type { Group, GroupSettings } from "./settings.js";

/** Milliseconds that a fetch waits for the first message, unless the call says otherwise. */
export const FETCH_WAIT_MS = 20_000;

/** Messages that are leased to a member. */
export interface Fetched {
  readonly messages: readonly LeasedMessage[];
  readonly gaps: readonly Gap[];
  /** All messages together; neighbours share a lease. */
  readonly leases: readonly string[];
  /** Whether others are ready now. */
  readonly more: boolean;
  /** False for a standby of an ordered group, which gets nothing. */
  readonly active: boolean;
}

/** How many messages an ack, nack, terminate or extend was for. */
export interface Settled {
  readonly taken: number;
  /** Not held any more, so not counted. */
  readonly refused: number;
}

/** A message that failed too often. */
export interface DeadLetter {
  readonly seq: number;
  readonly topic: string;
  readonly originSeq: number;
  readonly attempts: number;
  readonly error: string;
  readonly firstFailedMs: number;
  readonly diedMs: number;
  readonly key: string | Uint8Array | undefined;
  readonly id: string | Uint8Array | undefined;
  readonly headers: Readonly<Record<string, readonly HeaderValue[]>>;
  readonly body: Body;
}

/** Which dead letters; all if nothing is named. */
export interface Letters {
  from?: number;
  to?: number;
  /** A pattern. */
  topic?: string;
  /** A part of the error. */
  error?: string;
  key?: string | Uint8Array;
}

/** What is done with groups. */
export class Groups {
  readonly #requests: Requests;

  constructor(requests: Requests) {
    this.#requests = requests;
  }

  /** Creates a group; one that exists with equal settings is fine. */
  create(group: string, settings: GroupSettings & { source: string }): Promise<Group> {
    return this.#group("PUT", [group], settings);
  }

  change(group: string, changes: GroupSettings): Promise<Group> {
    return this.#group("PATCH", [group], changes);
  }

  /** How a group stands: lag, members, and why it does not move. */
  get(group: string): Promise<Group> {
    return this.#group("GET", [group]);
  }

  /** Deletes a group with its dead letters. */
  async delete(group: string): Promise<void> {
    await this.#requests.ask({ method: "DELETE", path: pathOf("v1", "groups", group), safe: false });
  }

  pause(group: string): Promise<Group> {
    return this.#group("POST", [group, "pause"]);
  }

  /** Lets it go on, after a pause or over a gap. */
  resume(group: string): Promise<Group> {
    return this.#group("POST", [group, "resume"]);
  }

  /** Begins elsewhere: `beginning`, `now`, `seq:42`, `time:…`, `position:7` or a cursor. */
  reset(group: string, to: string, options: { force?: boolean } = {}): Promise<Group> {
    return this.#group("POST", [group, "reset"], undefined, [
      ["to", to],
      ["force", options.force],
    ]);
  }

  /** All groups, by name. */
  async *list(): AsyncGenerator<Group, void, undefined> {
    let after: string | undefined;
    do {
      const query: Query = [["after", after], ["limit", 1000]];
      const page = (await this.#requests.ask({ path: "/v1/groups", query })).json();
      yield* page["groups"] as Group[];
      after = (page["next"] as string | null) ?? undefined;
    } while (after !== undefined);
  }

  /** A member that fetches and acks by hand; `client.consume` does it for you. */
  member(group: string, name: string): Member {
    return new Member(this.#requests, group, name);
  }

  /** All dead letters that `which` names. */
  async *deadLetters(group: string, which: Letters = {}): AsyncGenerator<DeadLetter, void, undefined> {
    const path = pathOf("v1", "groups", group, "dead-letters");
    let from = which.from;
    do {
      const query: Query = [...lettersQuery({ ...which, ...(from === undefined ? {} : { from }) }), ["limit", 100]];
      const page = (await this.#requests.ask({ path, query })).json();
      for (const wire of page["letters"] as Wire[]) yield letterOf(wire);
      from = (page["next"] as number | null) ?? undefined;
    } while (from !== undefined);
  }

  async deadLetter(group: string, seq: number): Promise<DeadLetter> {
    const path = pathOf("v1", "groups", group, "dead-letters", seq);
    return letterOf((await this.#requests.ask({ path })).json());
  }

  /**
   * Publishes dead letters again to their topics; with `rate` so many per second, in the background.
   * A letter is moved once, so this can be sent again.
   */
  async redrive(
    group: string,
    which: Letters = {},
    options: { rate?: number } = {},
  ): Promise<{ moved: number; goesOn: boolean }> {
    const path = pathOf("v1", "groups", group, "dead-letters", "redrive");
    const query: Query = [...lettersQuery(which), ["rate", options.rate]];
    const wire = (await this.#requests.ask({ method: "POST", path, query })).json();
    return { moved: number(wire, "moved"), goesOn: wire["goes_on"] === true };
  }

  async deleteDeadLetter(group: string, seq: number): Promise<void> {
    const path = pathOf("v1", "groups", group, "dead-letters", seq);
    await this.#requests.ask({ method: "DELETE", path, safe: false });
  }

  /** Removes dead letters for ever; returns how many. */
  async deleteDeadLetters(group: string, which: Letters = {}): Promise<number> {
    const path = pathOf("v1", "groups", group, "dead-letters");
    const named = lettersQuery(which);
    const all = named.every(([, value]) => value === undefined) ? true : undefined;
    const query: Query = [...named, ["all", all]];
    return number((await this.#requests.ask({ method: "DELETE", path, query })).json(), "removed");
  }

  async #group(
    method: string,
    tokens: readonly string[],
    json?: GroupSettings,
    query: Query = [],
  ): Promise<Group> {
    const path = pathOf("v1", "groups", ...tokens);
    return (await this.#requests.ask({ method, path, query, json })).json() as unknown as Group;
  }
}

/** A member of a group, by name. It needs no connection of its own. */
export class Member {
  readonly #requests: Requests;

  constructor(
    requests: Requests,
    readonly group: string,
    readonly name: string,
  ) {
    this.#requests = requests;
  }

  /**
   * Takes up to `max` messages; waits for the first. If an answer is lost, what was leased comes again
   * when its lease has run out.
   */
  async fetch(
    max = 100,
    options: { waitMs?: number; signal?: AbortSignal } = {},
  ): Promise<Fetched> {
    const waitMs = options.waitMs ?? FETCH_WAIT_MS;
    const query: Query = [["member", this.name], ["max", max], ["wait_ms", waitMs]];
    const path = pathOf("v1", "groups", this.group, "fetch");
    const answer = await this.#requests.ask({
      method: "POST",
      path,
      query,
      waitsMs: waitMs,
      signal: options.signal,
    });
    const wire = answer.json();
    return {
      messages: (wire["messages"] as Wire[]).map((each) => new LeasedMessage(each)),
      gaps: (wire["gaps"] as Wire[]).map((each) => gapOf(each)),
      leases: wire["leases"] as string[],
      more: wire["more"] === true,
      active: wire["active"] === true,
    };
  }

  /** These are done. What an earlier attempt of this call took counts as refused. */
  ack(leases: readonly string[]): Promise<Settled> {
    return this.#settle("ack", { leases });
  }

  /** These come again, after the delay or by the group's schedule. */
  nack(leases: readonly string[], how: { delayMs?: number; reason?: string } = {}): Promise<Settled> {
    return this.#settle("nack", { leases, delay_ms: how.delayMs, reason: how.reason });
  }

  /** These can never be done: they are dead letters now. */
  terminate(leases: readonly string[], how: { reason?: string } = {}): Promise<Settled> {
    return this.#settle("terminate", { leases, reason: how.reason });
  }

  /** These need more time: the group's lease from now. */
  extend(leases: readonly string[]): Promise<Settled> {
    return this.#settle("extend", { leases });
  }

  /** Ends the membership; what it holds goes to others, uncounted. */
  async leave(options: { timeoutMs?: number } = {}): Promise<void> {
    const path = pathOf("v1", "groups", this.group, "members", this.name);
    const { timeoutMs } = options;
    await this.#requests.ask({ method: "DELETE", path, safe: false, timeoutMs });
  }

  async #settle(verb: string, json: unknown): Promise<Settled> {
    const path = pathOf("v1", "groups", this.group, verb);
    const wire = (await this.#requests.ask({ method: "POST", path, json })).json();
    return { taken: number(wire, "taken"), refused: number(wire, "refused") };
  }
}

function lettersQuery(which: Letters): Query {
  return [
    ["from", which.from],
    ["to", which.to],
    ["topic", which.topic],
    ["error", which.error],
    ["key", which.key],
  ];
}

function letterOf(wire: Wire): DeadLetter {
  return {
    seq: number(wire, "seq"),
    topic: text(wire, "topic"),
    originSeq: number(wire, "origin_seq"),
    attempts: number(wire, "attempts"),
    error: text(wire, "error"),
    firstFailedMs: number(wire, "first_failed_ms"),
    diedMs: number(wire, "died_ms"),
    key: textOrBytes(wire, "key"),
    id: textOrBytes(wire, "id"),
    headers: headersOf(wire),
    body: bodyOf(wire),
  };
}
