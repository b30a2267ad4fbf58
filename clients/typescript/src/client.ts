// The client: publishing, reading, topics. Groups are in `groups.ts`.

import { Consumer } from "./consumer.js";
import type { ConsumerOptions, Handler } from "./consumer.js";
import { BatchError, GaplessError, RefusedError, TransportError, problemOf } from "./errors.js";
import { Follower, KEEP_ALIVE_SECS } from "./follow.js";
import type { Event } from "./follow.js";
import { Groups } from "./groups.js";
import { Transport, objectOf, pathOf } from "./http.js";
import type { Answer, Ask, Query } from "./http.js";
import { Message, ackOf, gapOf, lineOf, newId, newMessage, number, text, valuesOf } from "./messages.js";
import type { Ack, Durability, Gap, NewMessage, Range, Scheduled, Wire } from "./messages.js";
import { ATTEMPT_MS_MAX, Requests } from "./requests.js";
import type { ServerState, Topic, TopicSettings } from "./settings.js";

/** Messages in one request of a batch, at most. */
const BATCH_MESSAGES_MAX = 500;
/** Characters of lines in one request of a batch, about. */
const BATCH_CHARS_MAX = 4 * 1024 * 1024;
/**
 * Milliseconds until a request is given up, with all its attempts. The server remembers message ids for
 * longer than that (two minutes unless the topic says otherwise), so no attempt is stored twice.
 */
const TIMEOUT_MS = 30_000;
/** Milliseconds of silence after which a follower's connection is given up. */
const SILENCE_MS_MAX = 20_000;
/** Requests at the same time, at most; others wait. */
const REQUESTS_MAX = 64;

export interface ClientOptions {
  /** Sent as `Authorization: Bearer …`. */
  token?: string;
  /** For a request with all its attempts; 30,000 unless set. */
  timeoutMs?: number;
  /** A follower gives up a connection on which nothing comes for so long; 20,000 unless set. */
  silenceMsMax?: number;
  /** Requests at the same time, at most; 64 unless set. */
  requestsMax?: number;
}

export interface PublishOptions {
  /** What is reached before the answer. */
  durability?: Durability;
  /** Refuse if the topic has no follower. */
  requireSubscribers?: boolean;
  /** Create the topic if it does not exist. */
  create?: boolean;
  /** For all attempts together. */
  timeoutMs?: number;
}

export interface FollowOptions {
  /** `beginning` (the default), `now`, `last-per-key`, a seq, `time:…`, or a cursor. */
  from?: string | number;
  /** How long it tries to connect before it throws; for ever if it is missing. */
  offlineMsMax?: number;
  /** Also return `skipped`, `recovering` and `live`. */
  notices?: boolean;
}

/** What can be published: text, bytes, or a message with a key, headers and conditions. */
export type Publishable = string | Uint8Array | NewMessage;

/** A client of one server. */
export class Client {
  /** Groups, members, dead letters. */
  readonly groups: Groups;
  readonly #requests: Requests;
  readonly #transport: Transport;
  readonly #silenceMsMax: number;

  constructor(url = "http://127.0.0.1:4280", options: ClientOptions = {}) {
    const timeoutMs = options.timeoutMs ?? TIMEOUT_MS;
    const requestsMax = options.requestsMax ?? REQUESTS_MAX;
    this.#silenceMsMax = options.silenceMsMax ?? SILENCE_MS_MAX;
    if (!(timeoutMs > 0 && requestsMax > 0 && this.#silenceMsMax > 0)) {
      throw new RangeError("timeoutMs, silenceMsMax and requestsMax are above zero");
    }
    this.#transport = new Transport(url, options.token, requestsMax);
    this.#requests = new Requests(this.#transport, timeoutMs);
    this.groups = new Groups(this.#requests);
  }

  /** Ends requests and followers. */
  close(): void {
    this.#transport.close();
  }

  /**
   * Publishes a message; when the promise is fulfilled, it is as safe as the ack says. It is sent again
   * under the same id until there is an answer or the time is up. An error with fate `unknown` then
   * means that it may or may not be stored.
   */
  async publish(topic: string, message: Publishable, options: PublishOptions = {}): Promise<Ack> {
    const answer = await this.#send(topic, message, options, [
      ["durability", options.durability],
      ["require_subscribers", options.requireSubscribers],
    ]);
    return ackOf(answer.json(), topic, "seq");
  }

  /** Publishes a message that appears after `delayMs`, or at `atMs` (since 1970). */
  async publishLater(
    topic: string,
    message: Publishable,
    when: { delayMs: number } | { atMs: number },
    options: { create?: boolean; timeoutMs?: number } = {},
  ): Promise<Scheduled> {
    const answer = await this.#send(
      topic,
      message,
      options,
      "delayMs" in when ? [["delay_ms", when.delayMs]] : [["at_ms", when.atMs]],
    );
    const wire = answer.json();
    return { topic, delayed: number(wire, "delayed"), dueMs: number(wire, "due_ms") };
  }

  /** Takes back a message that waits for its time. */
  async cancelDelayed(delayed: number): Promise<void> {
    await this.#requests.ask({ method: "DELETE", path: pathOf("v1", "delayed", delayed), safe: false });
  }

  /**
   * Publishes many messages in order, a few hundred in each request. Messages without an answer are
   * sent again under their ids. If some are refused, the others are published all the same, and
   * `BatchError` has the outcome of each. `timeoutMs` is for each request.
   */
  async publishBatch(
    topic: string,
    messages: Iterable<Publishable>,
    options: Omit<PublishOptions, "requireSubscribers"> = {},
  ): Promise<Ack[]> {
    const outcomes: (Ack | GaplessError)[] = [];
    let lines: string[] = [];
    let size = 0;
    for (const each of messages) {
      const message = newMessage(each);
      const line = lineOf(message, message.id ?? newId());
      const full = lines.length === BATCH_MESSAGES_MAX || size + line.length > BATCH_CHARS_MAX;
      if (full && lines.length > 0) {
        outcomes.push(...(await this.#publishLines(topic, lines, options)));
        lines = [];
        size = 0;
      }
      lines.push(line);
      size += line.length;
    }
    if (lines.length > 0) outcomes.push(...(await this.#publishLines(topic, lines, options)));
    const acks = outcomes.filter((each): each is Ack => !(each instanceof GaplessError));
    if (acks.length < outcomes.length) throw new BatchError<Ack>(outcomes);
    return acks;
  }

  /** Publishes to several topics, and acks leases of a group, in one step or not at all. */
  async publishTogether(
    parts: readonly { topic: string; messages: readonly Publishable[] }[],
    options: { acks?: readonly string[]; durability?: Durability; timeoutMs?: number } = {},
  ): Promise<void> {
    const json = {
      parts: parts.map(({ topic, messages }) => ({
        topic,
        messages: messages.map((each) => {
          const message = newMessage(each);
          return objectOf(lineOf(message, message.id ?? newId()));
        }),
      })),
      acks: options.acks,
      durability: options.durability,
    };
    const { timeoutMs } = options;
    await this.#requests.ask({ method: "POST", path: "/v1/atomic", json, safe: false, timeoutMs });
  }

  /** The message with this seq. */
  async message(topic: string, seq: number): Promise<Message> {
    const path = pathOf("v1", "topics", topic, "messages", seq);
    return new Message((await this.#requests.ask({ path })).json());
  }

  /** The latest message of a key. */
  async latest(topic: string, key: string | Uint8Array): Promise<Message> {
    const path = pathOf("v1", "topics", topic, "latest");
    return new Message((await this.#requests.ask({ path, query: [["key", key]] })).json());
  }

  /** The body of a message, byte by byte as it was sent. */
  async body(topic: string, seq: number): Promise<Uint8Array> {
    const path = pathOf("v1", "topics", topic, "messages", seq, "body");
    return (await this.#requests.ask({ path, accept: "*/*" })).bytes;
  }

  /** A part of a topic, with what is gone of it. `from` is as in `follow`. */
  async read(
    topic: string,
    options: { from?: string | number; to?: number; limit?: number; waitMs?: number } = {},
  ): Promise<Range> {
    const query: Query = [
      ["from", fromOf(options.from)],
      ["to", options.to],
      ["limit", options.limit],
      ["wait_ms", options.waitMs],
    ];
    const path = pathOf("v1", "topics", topic, "messages");
    const waitsMs = options.waitMs ?? 0;
    const wire = (await this.#requests.ask({ path, query, waitsMs })).json();
    return {
      messages: (wire["messages"] as Wire[]).map((each) => new Message(each)),
      gaps: (wire["gaps"] as Wire[]).map((each) => gapOf(each, topic)),
      cursor: text(wire, "cursor"),
      more: wire["more"] === true,
    };
  }

  /**
   * Everything that is kept of a topic, then what is published, without end. The follower reconnects
   * and goes on by itself. `anyway` creates the topic.
   */
  follow(topic: string, options: FollowOptions & { anyway?: boolean; notices: true }): Follower<Event>;
  follow(topic: string, options?: FollowOptions & { anyway?: boolean }): Follower<Message | Gap>;
  follow(topic: string, options: FollowOptions & { anyway?: boolean } = {}): Follower<Event> {
    return this.#follow(pathOf("v1", "topics", topic, "follow"), [["anyway", options.anyway]], options);
  }

  /** The same for all topics that match: `*` is one token, `>` the rest. */
  followPattern(pattern: string, options: FollowOptions & { notices: true }): Follower<Event>;
  followPattern(pattern: string, options?: FollowOptions): Follower<Message | Gap>;
  followPattern(pattern: string, options: FollowOptions = {}): Follower<Event> {
    return this.#follow("/v1/follow", [["pattern", pattern]], options);
  }

  /** Gives messages of a group to a handler; see `Consumer`. */
  consumer(group: string, handler: Handler, options: ConsumerOptions = {}): Consumer {
    return new Consumer(this.groups, group, handler, options);
  }

  /** Creates a topic; one that exists with equal settings is fine. */
  createTopic(topic: string, settings: TopicSettings = {}): Promise<Topic> {
    return this.#topic("PUT", topic, settings);
  }

  /** Changes what `changes` names; null sets the default. */
  changeTopic(topic: string, changes: TopicSettings): Promise<Topic> {
    return this.#topic("PATCH", topic, changes);
  }

  topic(topic: string): Promise<Topic> {
    return this.#topic("GET", topic);
  }

  /** Deletes a topic with all its messages. */
  async deleteTopic(topic: string): Promise<void> {
    await this.#requests.ask({ method: "DELETE", path: pathOf("v1", "topics", topic), safe: false });
  }

  /** Removes the messages below a seq, or all; returns how many are gone. */
  async purgeTopic(topic: string, options: { below?: number } = {}): Promise<number> {
    const { below } = options;
    const query: Query = below === undefined ? [["all", true]] : [["below", below]];
    const path = pathOf("v1", "topics", topic, "purge");
    return number((await this.#requests.ask({ method: "POST", path, query })).json(), "purged");
  }

  /** All topics that match, by name. */
  async *topics(pattern?: string): AsyncGenerator<Topic, void, undefined> {
    let after: string | undefined;
    do {
      const query: Query = [["pattern", pattern], ["after", after], ["limit", 1000]];
      const page = (await this.#requests.ask({ path: "/v1/topics", query })).json();
      yield* page["topics"] as Topic[];
      after = (page["next"] as string | null) ?? undefined;
    } while (after !== undefined);
  }

  /** Version and state of the server. */
  async server(): Promise<ServerState> {
    return (await this.#requests.ask({ path: "/v1/server" })).json() as unknown as ServerState;
  }

  async #topic(method: string, topic: string, json?: TopicSettings): Promise<Topic> {
    const path = pathOf("v1", "topics", topic);
    return (await this.#requests.ask({ method, path, json })).json() as unknown as Topic;
  }

  #follow(path: string, query: Query, options: FollowOptions): Follower<Event> {
    return new Follower<Event>({
      transport: this.#transport,
      path,
      query: [...query, ["keep_alive_secs", KEEP_ALIVE_SECS]],
      from: fromOf(options.from) ?? "beginning",
      notices: options.notices === true,
      connectTimeoutMs: Math.min(ATTEMPT_MS_MAX, this.#silenceMsMax),
      silenceMsMax: this.#silenceMsMax,
      offlineMsMax: options.offlineMsMax,
    });
  }

  #send(
    topic: string,
    publishable: Publishable,
    options: { create?: boolean; timeoutMs?: number },
    query: Query,
  ): Promise<Answer> {
    const message = newMessage(publishable);
    const ask: Ask = {
      method: "POST",
      path: pathOf("v1", "topics", topic, "messages"),
      query: [...messageQuery(message, message.id ?? newId()), ...query, ["create", options.create]],
      body: bodyBytes(message),
    };
    if (message.json !== undefined) ask.contentType = "application/json";
    const attempt = (timeoutMs: number): Promise<Answer> => this.#transport.request(ask, timeoutMs);
    return this.#requests.repeat(attempt, { timeoutMs: options.timeoutMs });
  }

  /** One request of a batch, and again for what has no answer; an outcome for each line. */
  async #publishLines(
    topic: string,
    lines: readonly string[],
    options: PublishOptions,
  ): Promise<(Ack | GaplessError)[]> {
    const outcomes = new Map<number, Ack | GaplessError>();
    const attempt = async (timeoutMs: number): Promise<void> => {
      const open = lines.map((_, index) => index).filter((index) => !outcomes.has(index));
      const answer = await this.#transport.request(
        {
          method: "POST",
          path: pathOf("v1", "topics", topic, "messages"),
          query: [
            ["durability", options.durability],
            ["create", options.create],
            ["answer_each", true],
          ],
          body: new TextEncoder().encode(open.map((index) => lines[index]).join("")),
          contentType: "application/x-ndjson",
          accept: "application/x-ndjson",
        },
        timeoutMs,
      );
      let again: RefusedError | undefined;
      for (const line of answer.text.split("\n")) {
        if (line === "") continue;
        const wire = objectOf(line);
        if (wire["end"] === true) continue;
        if (wire["stopped"] === true) {
          again = new RefusedError(problemOf(answer.status, wire));
          continue;
        }
        const index = open[number(wire, "line") - 1];
        if (index === undefined) continue;
        if (!("code" in wire)) {
          outcomes.set(index, ackOf(wire, topic, "first"));
          continue;
        }
        const refused = new RefusedError(problemOf(answer.status, wire));
        if (refused.passes) again = refused;
        else outcomes.set(index, refused);
      }
      if (outcomes.size < lines.length) {
        throw again ?? new TransportError("not every line was answered", "unknown");
      }
    };
    try {
      await this.#requests.repeat(attempt, { timeoutMs: options.timeoutMs });
    } catch (error) {
      if (!(error instanceof GaplessError)) throw error;
      return lines.map((_, index) => outcomes.get(index) ?? error);
    }
    return lines.map((_, index) => outcomes.get(index) as Ack | GaplessError);
  }
}

function messageQuery(message: NewMessage, id: string): Query {
  const removal = message.text === undefined && message.json === undefined && message.data === undefined;
  const headers = Object.entries(message.headers ?? {}).flatMap(([name, value]) =>
    valuesOf(value).map((each) => ["header", headerOf(name, each)] as const),
  );
  return [
    ["key", message.key],
    ["id", id],
    ["ttl_ms", message.ttlMs],
    ["expect_seq", message.expectSeq],
    ["expect_key_seq", message.expectKeySeq],
    ["tombstone", removal ? true : undefined],
    ...headers,
  ];
}

function headerOf(name: string, value: string | Uint8Array): string | Uint8Array {
  if (typeof value === "string") return `${name}=${value}`;
  const prefix = new TextEncoder().encode(`${name}=`);
  const whole = new Uint8Array(prefix.length + value.length);
  whole.set(prefix);
  whole.set(value, prefix.length);
  return whole;
}

/** Bytes, because a text would bring a content type of its own. */
function bodyBytes(message: NewMessage): Uint8Array {
  if (message.data !== undefined) return message.data;
  const shown = message.json === undefined ? (message.text ?? "") : JSON.stringify(message.json);
  return new TextEncoder().encode(shown);
}

function fromOf(from: string | number | undefined): string | undefined {
  return typeof from === "number" ? `seq:${from}` : from;
}
