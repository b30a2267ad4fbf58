// Following a topic or a pattern: Server-Sent Events that resume by themselves.
//
// States: closed (no connection), open, ended. The invariant: `cursor` is the place behind the last
// event that `next` returned or passed over, and every connection begins there. So a lost
// connection, a restart of the server or a silent network costs time and nothing else: no event is
// lost, none comes twice. An event counts when it has arrived whole; a torn one is read again.
//
// There is no queue: at most one piece of the stream is taken apart ahead of the caller. A slow caller
// is slow reading for the server, which then reads history for it. (A WebSocket in a browser would
// take everything into memory instead, and cannot carry a token.)

import { Backoff, pause } from "./backoff.js";
import { FollowEndedError, GaplessError, ProtocolError, RefusedError, TransportError } from "./errors.js";
import { objectOf } from "./http.js";
import type { Query, Transport } from "./http.js";
import { Message, gapOf, number, numberOrNull, text } from "./messages.js";
import type { Gap, Live, Recovering, Skipped } from "./messages.js";

/** Characters of one event, at most: a message of the largest size, as JSON. */
const EVENT_CHARS_MAX = 64 * 1024 * 1024;
/** Seconds between signs of life that are asked of the server. */
export const KEEP_ALIVE_SECS = 5;

export type Notice = Skipped | Recovering | Live;
export type Event = Message | Gap | Notice;

/** A Server-Sent Event as it arrived; `data` is undefined for one that only moves the place. */
export interface RawEvent {
  readonly name: string;
  readonly id: string | undefined;
  readonly data: string | undefined;
}

/** Takes Server-Sent Events apart, in whatever pieces they arrive. */
export class EventParser {
  readonly #decoder = new TextDecoder();
  readonly #charsMax: number;
  #rest = "";
  #chars = 0;
  #name = "";
  #id: string | undefined;
  #data: string[] = [];

  constructor(charsMax = EVENT_CHARS_MAX) {
    this.#charsMax = charsMax;
  }

  feed(piece: Uint8Array): RawEvent[] {
    const events: RawEvent[] = [];
    const decoded = this.#decoder.decode(piece, { stream: true });
    let begin = 0;
    for (;;) {
      const end = decoded.indexOf("\n", begin);
      const part = decoded.slice(begin, end < 0 ? undefined : end);
      this.#chars += part.length;
      if (this.#chars > this.#charsMax) {
        throw new ProtocolError(`an event has more than ${this.#charsMax} characters`);
      }
      this.#rest += part;
      if (end < 0) return events;
      const event = this.#takeLine(this.#rest.endsWith("\r") ? this.#rest.slice(0, -1) : this.#rest);
      this.#rest = "";
      if (event !== undefined) events.push(event);
      begin = end + 1;
    }
  }

  #takeLine(line: string): RawEvent | undefined {
    if (line === "") {
      const data = this.#data.length === 0 ? undefined : this.#data.join("\n");
      const event = { name: this.#name, id: this.#id, data };
      this.#name = "";
      this.#id = undefined;
      this.#data = [];
      this.#chars = 0;
      return event.data === undefined && event.id === undefined ? undefined : event;
    }
    const colon = line.indexOf(":");
    const field = colon < 0 ? line : line.slice(0, colon);
    const rest = colon < 0 ? "" : line.slice(colon + 1);
    const value = rest.startsWith(" ") ? rest.slice(1) : rest;
    if (field === "data") this.#data.push(value);
    else if (field === "id") this.#id = value;
    else if (field === "event") this.#name = value;
    return undefined;
  }
}

export interface FollowerParts {
  readonly transport: Transport;
  readonly path: string;
  readonly query: Query;
  readonly from: string;
  readonly notices: boolean;
  readonly connectTimeoutMs: number;
  readonly silenceMsMax: number;
  readonly offlineMsMax: number | undefined;
}

/** An async iterator over the events of a topic or a pattern. Leaving `for await` closes it. */
export class Follower<E extends Event> implements AsyncIterableIterator<E> {
  readonly #parts: FollowerParts;
  readonly #backoff = new Backoff();
  readonly #closing = new AbortController();
  #connection: AbortController | undefined;
  #reader: ReadableStreamDefaultReader<Uint8Array> | undefined;
  #parser = new EventParser();
  #ready: RawEvent[] = [];
  #offlineSince: number | undefined;
  #cursor: string | undefined;
  #turn: Promise<unknown> = Promise.resolve();
  #connections = 0;
  readonly #close = (): void => this.close();

  /** Made by `client.follow` and `client.followPattern`. */
  constructor(parts: FollowerParts) {
    this.#parts = parts;
    const { closed } = parts.transport;
    if (closed.aborted) this.close();
    closed.addEventListener("abort", this.#close);
  }

  /** The place behind the last event: follow from here to go on. Undefined before the first. */
  get cursor(): string | undefined {
    return this.#cursor;
  }

  /** How many connections were opened so far. */
  get connections(): number {
    return this.#connections;
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  /** The next event. Calls are answered one after another. */
  next(): Promise<IteratorResult<E, undefined>> {
    const turn = this.#turn.then(() => this.#next());
    this.#turn = turn.catch(() => undefined);
    return turn;
  }

  async return(): Promise<IteratorResult<E, undefined>> {
    this.close();
    return { done: true, value: undefined };
  }

  /** Ends the follower; the server forgets it. */
  close(): void {
    this.#closing.abort();
    this.#disconnect();
    this.#parts.transport.closed.removeEventListener("abort", this.#close);
  }

  async #next(): Promise<IteratorResult<E, undefined>> {
    while (!this.#closing.signal.aborted) {
      try {
        for (let raw = this.#ready.shift(); raw !== undefined; raw = this.#ready.shift()) {
          const event = this.#take(raw);
          if (event !== undefined) return { done: false, value: event as E };
        }
        await this.#fill();
      } catch (error) {
        if (this.#closing.signal.aborted) break;
        await this.#waitAfter(error);
      }
    }
    return { done: true, value: undefined };
  }

  /** Reads until there is an event, on a new connection if there is none. */
  async #fill(): Promise<void> {
    if (this.#reader === undefined || this.#connection === undefined) {
      const { path, query, from, transport, connectTimeoutMs } = this.#parts;
      const ask = {
        path,
        query: [...query, ["from", this.#cursor ?? from] as const],
        accept: "text/event-stream",
      };
      this.#connection = new AbortController();
      this.#reader = await transport.stream(ask, connectTimeoutMs, this.#connection.signal);
      this.#connections += 1;
    }
    const connection = this.#connection;
    const timer = setTimeout(() => connection.abort(), this.#parts.silenceMsMax);
    let piece: ReadableStreamReadResult<Uint8Array>;
    try {
      piece = await this.#reader.read();
    } catch (error) {
      throw new TransportError("the stream of events broke", "did not happen", error);
    } finally {
      clearTimeout(timer);
    }
    if (piece.done) throw new TransportError("the stream of events ended", "did not happen");
    this.#offlineSince = undefined;
    this.#backoff.reset();
    this.#ready = this.#parser.feed(piece.value);
  }

  /** Waits before the next connection, or ends with the error if there is none to be. */
  async #waitAfter(error: unknown): Promise<void> {
    this.#disconnect();
    if (!isPassing(error)) {
      this.close();
      throw error;
    }
    const now = performance.now();
    this.#offlineSince ??= now;
    const wait = this.#backoff.nextMs(error instanceof RefusedError ? error.retryAfterMs : 0);
    const { offlineMsMax } = this.#parts;
    if (offlineMsMax !== undefined && now + wait - this.#offlineSince > offlineMsMax) {
      this.close();
      throw error;
    }
    await pause(wait, this.#closing.signal);
  }

  /** What an event means; undefined if the caller did not ask for it. */
  #take(raw: RawEvent): Event | undefined {
    const event = raw.data === undefined ? undefined : parse(raw.name, raw.data);
    if (raw.id !== undefined) this.#cursor = raw.id;
    if (event === undefined || this.#parts.notices) return event;
    return event.type === "message" || event.type === "gap" ? event : undefined;
  }

  #disconnect(): void {
    this.#connection?.abort();
    this.#connection = undefined;
    this.#reader = undefined;
    this.#parser = new EventParser();
    this.#ready = [];
  }
}

function parse(name: string, data: string): Event | undefined {
  const wire = objectOf(data);
  switch (name) {
    case "":
      return new Message(wire);
    case "gap":
      return gapOf(wire);
    case "skipped":
      return {
        type: "skipped",
        topic: text(wire, "topic"),
        from: number(wire, "from"),
        to: number(wire, "to"),
      };
    case "recovering":
      return {
        type: "recovering",
        from: numberOrNull(wire["from"]),
        to: numberOrNull(wire["to"]),
        by: text(wire, "by"),
      };
    case "live":
      return { type: "live", cursor: text(wire, "cursor") };
    case "deleted":
      throw new FollowEndedError(number(wire, "code"), text(wire, "detail"));
    default:
      // `failed` ends the stream, and the next connection goes on; other names are newer than this.
      return undefined;
  }
}

/** Whether the same request may succeed later. */
export function isPassing(error: unknown): error is GaplessError {
  return error instanceof TransportError || (error instanceof RefusedError && error.passes);
}
