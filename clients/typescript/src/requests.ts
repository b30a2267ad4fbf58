// Requests that are repeated where that is safe.
//
// The rule it keeps: a request is sent again only if it may be carried out twice, or if the attempt
// before it did not happen. What one attempt left unknown stays so, whatever the next ones say.

import { Backoff, pause } from "./backoff.js";
import { GaplessError, RefusedError } from "./errors.js";
import type { Fate } from "./errors.js";
import { isPassing } from "./follow.js";
import type { Answer, Ask, Transport } from "./http.js";

/** Milliseconds until one attempt is given up, besides what the server was asked to wait. */
export const ATTEMPT_MS_MAX = 10_000;

export interface Repeated {
  /** Whether it may be carried out twice; true unless said. */
  safe?: boolean;
  /** How long the server was asked to wait. */
  waitsMs?: number;
  /** For all attempts together. */
  timeoutMs?: number | undefined;
  /** Ends it; the error is then a `TransportError`. */
  signal?: AbortSignal | undefined;
}

export interface Asked extends Omit<Ask, "body" | "contentType">, Repeated {
  json?: unknown;
}

export class Requests {
  constructor(
    readonly transport: Transport,
    readonly timeoutMs: number,
  ) {}

  /** A request with a JSON body. */
  ask(asked: Asked): Promise<Answer> {
    const { json, ...rest } = asked;
    const ask: Ask = { ...rest };
    if (json !== undefined) {
      ask.body = new TextEncoder().encode(JSON.stringify(json));
      ask.contentType = "application/json";
    }
    return this.repeat((timeoutMs) => this.transport.request(ask, timeoutMs, asked.signal), asked);
  }

  /** Attempts until one succeeds, fails for good, or the time is up. */
  async repeat<T>(attempt: (timeoutMs: number) => Promise<T>, how: Repeated = {}): Promise<T> {
    const waitsMs = how.waitsMs ?? 0;
    const deadline = performance.now() + (how.timeoutMs ?? this.timeoutMs) + waitsMs;
    const backoff = new Backoff();
    let fate: Fate = "did not happen";
    for (;;) {
      try {
        const left = Math.max(deadline - performance.now(), 1);
        return await attempt(Math.min(ATTEMPT_MS_MAX + waitsMs, left));
      } catch (error) {
        if (!(error instanceof GaplessError)) throw error;
        if (error.fate === "unknown") fate = "unknown";
        error.fate = fate;
        const repeatable = how.safe !== false || fate === "did not happen";
        const ended = this.transport.closed.aborted || how.signal?.aborted === true;
        const wait = backoff.nextMs(error instanceof RefusedError ? error.retryAfterMs : 0);
        if (!isPassing(error) || !repeatable || ended || performance.now() + wait >= deadline) {
          throw error;
        }
        await pause(wait, how.signal);
      }
    }
  }
}
