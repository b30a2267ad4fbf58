// A handler for the messages of a group.
//
// A message goes through: fetched (leased), handled, settled (acked, given back or given up), free.
// Invariants: no more than `concurrency` messages are in hand; the lease of each is extended until it
// is settled; its slot is free only when the server has answered. What crashes when:
//
// - the handler throws: the message is given back, and comes again by the group's schedule;
// - this process dies: its leases run out, and the messages go to others;
// - the server restarts: fetch and ack are repeated. Leases of before are void, so an ack may be
//   refused (`refused` in the report), and the message is handled again.
//
// So a message is handled at least once; once its ack is counted, never again.

import { Backoff, pause } from "./backoff.js";
import { GaplessError, RefusedError } from "./errors.js";
import { isPassing } from "./follow.js";
import type { Groups, Member, Settled } from "./groups.js";
import { newId } from "./messages.js";
import type { Gap, LeasedMessage } from "./messages.js";

/** Milliseconds given to a leaving member to say so. */
const LEAVE_MS_MAX = 2_000;
/** Milliseconds between extensions, at least. */
const EXTEND_MS_MIN = 50;
/** Characters of a reason that are sent, at most. */
const REASON_CHARS_MAX = 1000;

/** Gets one message; `signal` is aborted when the consumer does not wait for the handler any longer. */
export type Handler = (message: LeasedMessage, signal: AbortSignal) => Promise<void> | void;

/** Thrown by a handler: again after `delayMs`, or by the group's schedule. */
export class RetryLater extends Error {
  override readonly name = "RetryLater";
  readonly delayMs: number | undefined;

  constructor(reason = "", options: { delayMs?: number } = {}) {
    super(reason);
    this.delayMs = options.delayMs;
  }
}

/** Thrown by a handler: hopeless, a dead letter now. */
export class GiveUp extends Error {
  override readonly name = "GiveUp";
}

export interface ConsumerOptions {
  /** Messages that are handled at the same time, at most; 8 unless set. */
  concurrency?: number;
  /** The member's name; one of its own if it is missing. */
  member?: string;
  /** Called with messages of the source that are gone. The group itself decides whether it goes on. */
  onGap?: (gap: Gap) => void;
  /** Milliseconds that `stop` gives to handlers that run; 10,000 unless set. */
  drainMsMax?: number;
}

/** What a consumer has done so far, in messages. */
export interface Report {
  acked: number;
  retried: number;
  givenUp: number;
  /** Settled too late: the lease was void, and the message comes again. */
  refused: number;
  gaps: number;
}

/** Runs a handler on the messages of a group: `await consumer.run()`, and `consumer.stop()`. */
export class Consumer {
  readonly report: Report = { acked: 0, retried: 0, givenUp: 0, refused: 0, gaps: 0 };
  readonly #groups: Groups;
  readonly #member: Member;
  readonly #handler: Handler;
  readonly #options: Required<Omit<ConsumerOptions, "member" | "onGap">> & ConsumerOptions;
  /** Aborted by `stop`: nothing more is fetched. */
  readonly #stopping = new AbortController();
  /** Aborted when nothing is waited for any longer. */
  readonly #ending = new AbortController();
  readonly #inHand = new Map<string, Promise<void>>();
  #acks: { lease: string; done: () => void }[] = [];
  #wakeAcks: () => void = () => undefined;

  constructor(groups: Groups, group: string, handler: Handler, options: ConsumerOptions) {
    this.#groups = groups;
    this.#handler = handler;
    this.#options = { concurrency: 8, drainMsMax: 10_000, ...options };
    if (!(this.#options.concurrency > 0)) throw new RangeError("concurrency is above zero");
    this.#member = groups.member(group, options.member ?? newId());
  }

  /** The name of its member. */
  get member(): string {
    return this.#member.name;
  }

  /** Ends `run`: nothing more is fetched, and what runs may finish. */
  stop(): void {
    this.#stopping.abort();
  }

  /** Handles messages until `stop`, or until the server refuses for good (then throws). */
  async run(): Promise<Report> {
    const background = [this.#extendLeases(), this.#sendAcks()];
    try {
      await this.#fetchUntilStopped();
    } finally {
      await this.#drain();
      this.#ending.abort();
      this.#wakeAcks();
      await Promise.all(background);
      await this.#leave();
    }
    return this.report;
  }

  async #fetchUntilStopped(): Promise<void> {
    const backoff = new Backoff();
    const { signal } = this.#stopping;
    while (!signal.aborted) {
      const free = this.#options.concurrency - this.#inHand.size;
      if (free <= 0) {
        await unless(signal, Promise.race(this.#inHand.values()));
        continue;
      }
      try {
        const fetched = await this.#member.fetch(free, { signal });
        backoff.reset();
        for (const gap of fetched.gaps) {
          this.report.gaps += 1;
          this.#options.onGap?.(gap);
        }
        for (const message of fetched.messages) {
          const work = this.#work(message).finally(() => this.#inHand.delete(message.lease));
          this.#inHand.set(message.lease, work);
        }
      } catch (error) {
        if (signal.aborted) return;
        if (!mayWorkLater(error)) throw error;
        await pause(backoff.nextMs(error instanceof RefusedError ? error.retryAfterMs : 0), signal);
      }
    }
  }

  async #work(message: LeasedMessage): Promise<void> {
    const leases = [message.lease];
    let failed: unknown;
    try {
      await this.#handler(message, this.#ending.signal);
    } catch (error) {
      failed = error ?? new Error("the handler failed");
    }
    // Too late: the message has gone to others.
    if (this.#ending.signal.aborted) return;
    if (failed === undefined) {
      await new Promise<void>((done) => {
        this.#acks.push({ lease: message.lease, done });
        this.#wakeAcks();
      });
      return;
    }
    const reason = reasonOf(failed);
    if (failed instanceof GiveUp) {
      const settled = await this.#surely(() => this.#member.terminate(leases, { reason }));
      this.report.givenUp += settled.taken;
      this.report.refused += settled.refused;
    } else {
      const delayMs = failed instanceof RetryLater ? failed.delayMs : undefined;
      const how = delayMs === undefined ? { reason } : { reason, delayMs };
      const settled = await this.#surely(() => this.#member.nack(leases, how));
      this.report.retried += settled.taken;
      this.report.refused += settled.refused;
    }
  }

  /** Acks in batches: while one request is on its way, others gather. */
  async #sendAcks(): Promise<void> {
    while (!this.#ending.signal.aborted) {
      const acks = this.#acks;
      this.#acks = [];
      if (acks.length === 0) {
        await new Promise<void>((wake) => (this.#wakeAcks = wake));
        continue;
      }
      const settled = await this.#surely(() => this.#member.ack(acks.map((each) => each.lease)));
      this.report.acked += settled.taken;
      this.report.refused += settled.refused;
      for (const each of acks) each.done();
    }
    for (const each of this.#acks) each.done();
  }

  /**
   * Extends what is in hand, three times in each lease. By lease and not by member: what a lost answer
   * leased to this member must run out.
   */
  async #extendLeases(): Promise<void> {
    const { signal } = this.#ending;
    while (!signal.aborted) {
      try {
        const { settings } = await this.#groups.get(this.#member.group);
        await pause(Math.max((settings.lease_ms ?? 0) / 3, EXTEND_MS_MIN), signal);
        if (this.#inHand.size > 0 && !signal.aborted) {
          await this.#member.extend([...this.#inHand.keys()]);
        }
      } catch (error) {
        if (!(error instanceof GaplessError)) throw error;
        // Fetching meets the same error, and decides what it means.
        await pause(new Backoff().nextMs(), signal);
      }
    }
  }

  /** Repeats a request while the server is away; what it refuses for good counts as refused. */
  async #surely(ask: () => Promise<Settled>): Promise<Settled> {
    const backoff = new Backoff();
    while (!this.#ending.signal.aborted) {
      try {
        return await ask();
      } catch (error) {
        if (!mayWorkLater(error)) break;
        const after = error instanceof RefusedError ? error.retryAfterMs : 0;
        await pause(backoff.nextMs(after), this.#ending.signal);
      }
    }
    return { taken: 0, refused: 1 };
  }

  async #drain(): Promise<void> {
    const enough = new AbortController();
    const all = Promise.all(this.#inHand.values()).finally(() => enough.abort());
    await Promise.race([all, pause(this.#options.drainMsMax, enough.signal)]);
  }

  async #leave(): Promise<void> {
    try {
      await this.#member.leave({ timeoutMs: LEAVE_MS_MAX });
    } catch (error) {
      // Then its leases run out.
      if (!(error instanceof GaplessError)) throw error;
    }
  }
}

/** Whether it may work later: the server is away, or the member was ended and can join again. */
function mayWorkLater(error: unknown): boolean {
  return isPassing(error) || (error instanceof RefusedError && error.problem.name === "UnknownMember");
}

/** Waits for `work`, or for the signal. */
async function unless(signal: AbortSignal, work: Promise<unknown>): Promise<void> {
  let stop: () => void = () => undefined;
  const stopped = new Promise<void>((resolve) => (stop = resolve));
  signal.addEventListener("abort", stop);
  await Promise.race([work, stopped]);
  signal.removeEventListener("abort", stop);
}

function reasonOf(error: unknown): string {
  const text = error instanceof Error ? error.message || error.name : String(error);
  return text.slice(0, REASON_CHARS_MAX);
}
