// Requests by `fetch`: one attempt each, with a deadline.
//
// The rule it keeps: an error says whether the request can have reached the server. Nothing is sent
// twice here; that is decided by those who know whether it is safe (`client.ts`).

import { ProtocolError, RefusedError, TimedOutError, TransportError, problemOf } from "./errors.js";
import type { Fate } from "./errors.js";
import type { Wire } from "./messages.js";

export type QueryValue = string | number | boolean | Uint8Array | undefined;
export type Query = readonly (readonly [string, QueryValue])[];

/** Bytes of an answer that is read whole, at most. */
const ANSWER_BYTES_MAX = 256 * 1024 * 1024;

export interface Ask {
  method?: string;
  path: string;
  query?: Query;
  body?: Uint8Array;
  contentType?: string;
  accept?: string;
}

/** Answers that were read whole. */
export class Answer {
  constructor(
    readonly status: number,
    readonly bytes: Uint8Array,
  ) {}

  get text(): string {
    return new TextDecoder().decode(this.bytes);
  }

  json(): Wire {
    return objectOf(this.text);
  }
}

/** A JSON object, or a `ProtocolError`. */
export function objectOf(text: string): Wire {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new ProtocolError(`this is not JSON: ${text.slice(0, 200)}`, error);
  }
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    throw new ProtocolError(`this is not an object: ${text.slice(0, 200)}`);
  }
  return value as Wire;
}

/** A path whose tokens are percent-encoded. */
export function pathOf(...tokens: readonly (string | number)[]): string {
  return `/${tokens.map((token) => encodeURIComponent(token)).join("/")}`;
}

/** Where the server is. */
export class Transport {
  readonly #base: string;
  readonly #headers: Record<string, string>;
  readonly #requestsMax: number;
  #running = 0;
  readonly #waiting: (() => void)[] = [];
  readonly #closing = new AbortController();

  constructor(url: string, token: string | undefined, requestsMax: number) {
    const parsed = new URL(url);
    if (!["http:", "https:"].includes(parsed.protocol) || parsed.search || parsed.hash) {
      throw new TypeError(`${url} is not an http or https address of a server`);
    }
    if (token !== undefined && !/^[!-~]+$/.test(token)) {
      throw new TypeError("a token has visible ASCII characters only");
    }
    this.#base = parsed.origin + parsed.pathname.replace(/\/$/, "");
    this.#headers = token === undefined ? {} : { authorization: `Bearer ${token}` };
    this.#requestsMax = requestsMax;
  }

  /** Aborted when the client is closed. */
  get closed(): AbortSignal {
    return this.#closing.signal;
  }

  close(): void {
    this.#closing.abort();
  }

  /** One request and its whole answer; throws `RefusedError` for a status from 400 on. */
  async request(ask: Ask, timeoutMs: number, signal?: AbortSignal): Promise<Answer> {
    const attempt = new Attempt(ask, timeoutMs, [this.#closing.signal, signal]);
    try {
      await this.#enter(attempt.signal);
      try {
        attempt.mayHaveArrived = true;
        const response = await this.#fetch(ask, attempt.signal);
        const bytes = await readWhole(response);
        if (response.status >= 400) throw refusal(response, bytes);
        return new Answer(response.status, bytes);
      } finally {
        this.#leave();
      }
    } catch (error) {
      throw attempt.explain(error);
    } finally {
      attempt.end();
    }
  }

  /** Opens an answer without end; `signal` closes it. */
  async stream(
    ask: Ask,
    timeoutMs: number,
    signal: AbortSignal,
  ): Promise<ReadableStreamDefaultReader<Uint8Array>> {
    const attempt = new Attempt(ask, timeoutMs, [signal]);
    try {
      const response = await this.#fetch(ask, attempt.signal);
      if (response.status !== 200) throw refusal(response, await readWhole(response));
      if (response.body === null) throw new ProtocolError("the answer has no body");
      return response.body.getReader();
    } catch (error) {
      throw attempt.explain(error);
    } finally {
      attempt.stopTimer();
    }
  }

  #fetch(ask: Ask, signal: AbortSignal): Promise<Response> {
    const headers: Record<string, string> = { ...this.#headers, accept: ask.accept ?? "application/json" };
    if (ask.contentType !== undefined) headers["content-type"] = ask.contentType;
    const init: RequestInit = {
      method: ask.method ?? "GET",
      headers,
      signal,
      cache: "no-store",
      redirect: "error",
    };
    if (ask.body !== undefined) init.body = ask.body as Uint8Array<ArrayBuffer>;
    return fetch(this.#base + ask.path + encodeQuery(ask.query ?? []), init);
  }

  async #enter(signal: AbortSignal): Promise<void> {
    signal.throwIfAborted();
    if (this.#running < this.#requestsMax) {
      this.#running += 1;
      return;
    }
    await new Promise<void>((resolve, reject) => {
      const enter = (): void => {
        signal.removeEventListener("abort", giveUp);
        resolve();
      };
      const giveUp = (): void => {
        this.#waiting.splice(this.#waiting.indexOf(enter), 1);
        reject(new Error("aborted"));
      };
      this.#waiting.push(enter);
      signal.addEventListener("abort", giveUp, { once: true });
    });
  }

  /** The next one that waits takes the place. */
  #leave(): void {
    const next = this.#waiting.shift();
    if (next === undefined) this.#running -= 1;
    else next();
  }
}

/** One attempt: its deadline, and what is known about its fate. */
class Attempt {
  mayHaveArrived = false;
  #timedOut = false;
  readonly #controller = new AbortController();
  readonly #timer: ReturnType<typeof setTimeout>;
  readonly #what: string;
  readonly #timeoutMs: number;
  readonly #outer: readonly AbortSignal[];
  readonly #abort = (): void => this.#controller.abort();

  constructor(ask: Ask, timeoutMs: number, outer: readonly (AbortSignal | undefined)[]) {
    this.#what = `${ask.method ?? "GET"} ${ask.path}`;
    this.#timeoutMs = timeoutMs;
    this.#outer = outer.filter((each) => each !== undefined);
    for (const each of this.#outer) {
      if (each.aborted) this.#abort();
      each.addEventListener("abort", this.#abort);
    }
    this.#timer = setTimeout(() => {
      this.#timedOut = true;
      this.#abort();
    }, timeoutMs);
  }

  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  stopTimer(): void {
    clearTimeout(this.#timer);
  }

  end(): void {
    this.stopTimer();
    for (const each of this.#outer) each.removeEventListener("abort", this.#abort);
  }

  explain(error: unknown): Error {
    if (error instanceof RefusedError || error instanceof ProtocolError) return error;
    if (this.#timedOut) {
      const what = `${this.#what}: no answer within ${this.#timeoutMs} ms`;
      return new TimedOutError(what, this.#fate(undefined), error);
    }
    if (this.#outer.some((each) => each.aborted)) {
      return new TransportError(`${this.#what}: closed by the caller`, this.#fate(undefined), error);
    }
    const cause = error instanceof Error ? error.cause : undefined;
    const why = cause instanceof Error ? cause.message || String(cause) : String(error);
    return new TransportError(`${this.#what}: ${why}`, this.#fate(cause), error);
  }

  #fate(cause: unknown): Fate {
    if (!this.mayHaveArrived) return "did not happen";
    // Node says when there was no connection; a browser does not.
    const code = (cause as { code?: unknown } | undefined)?.code;
    return typeof code === "string" && NO_CONNECTION.has(code) ? "did not happen" : "unknown";
  }
}

const NO_CONNECTION = new Set([
  "ECONNREFUSED",
  "ENOTFOUND",
  "EAI_AGAIN",
  "EHOSTUNREACH",
  "ENETUNREACH",
  "UND_ERR_CONNECT_TIMEOUT",
]);

async function readWhole(response: Response): Promise<Uint8Array> {
  if (response.body === null) return new Uint8Array();
  const reader = response.body.getReader();
  const pieces: Uint8Array[] = [];
  let size = 0;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    size += value.length;
    if (size > ANSWER_BYTES_MAX) {
      await reader.cancel();
      throw new ProtocolError(`an answer has more than ${ANSWER_BYTES_MAX} bytes`);
    }
    pieces.push(value);
  }
  const whole = new Uint8Array(size);
  let at = 0;
  for (const piece of pieces) {
    whole.set(piece, at);
    at += piece.length;
  }
  return whole;
}

function refusal(response: Response, bytes: Uint8Array): RefusedError {
  const text = new TextDecoder().decode(bytes);
  let members: Wire;
  try {
    members = objectOf(text);
  } catch {
    // A proxy answered: what it sent says nothing about the request.
    members = { title: `HTTP ${response.status}`, detail: text.slice(0, 200) };
  }
  const after = Number(response.headers.get("retry-after") ?? "0");
  const retryAfterMs = after > 0 ? after * 1000 : undefined;
  return new RefusedError(problemOf(response.status, members), retryAfterMs);
}

export function encodeQuery(query: Query): string {
  const pairs: string[] = [];
  for (const [name, value] of query) {
    if (value !== undefined) pairs.push(`${name}=${encodeValue(value)}`);
  }
  return pairs.length === 0 ? "" : `?${pairs.join("&")}`;
}

function encodeValue(value: string | number | boolean | Uint8Array): string {
  if (!(value instanceof Uint8Array)) return encodeURIComponent(value);
  return Array.from(value, (byte) => `%${byte.toString(16).padStart(2, "0")}`).join("");
}
