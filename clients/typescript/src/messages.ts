// What is published and what is read: messages, acknowledgements, and what is gone.

import { ProtocolError } from "./errors.js";

export type Durability = "memory" | "written" | "flushed";
export type GapReason = "retention" | "expiry" | "purge" | "epoch" | "compaction" | "slow" | "deleted";
export type HeaderValue = string | Uint8Array;

/** A message to publish: one of `text`, `json` and `data`, or a `key` alone, which removes the key. */
export interface NewMessage {
  text?: string;
  json?: unknown;
  data?: Uint8Array;
  key?: string | Uint8Array;
  /** Sent again under the same id, a message is not stored again. One is chosen if it is missing. */
  id?: string;
  headers?: Readonly<Record<string, HeaderValue | readonly HeaderValue[]>>;
  /** How long it may be delivered. */
  ttlMs?: number;
  /** Publish only if this is the topic's last seq; 0 for none. */
  expectSeq?: number;
  /** Publish only if this is the last seq of the key. */
  expectKeySeq?: number;
}

/** A message is stored, as safe as `durability` says. */
export interface Ack {
  readonly topic: string;
  readonly seq: number;
  /** Its place in the journal; null for a duplicate whose first is not known any more. */
  readonly position: number | null;
  readonly durability: Durability;
  /** Whether a message of this id was there already; the numbers are its. */
  readonly duplicate: boolean;
}

/** A message waits for its time; `delayed` cancels it. */
export interface Scheduled {
  readonly topic: string;
  readonly delayed: number;
  readonly dueMs: number;
}

/** What the body of a message is. */
export type Body =
  | { readonly kind: "json"; readonly value: unknown }
  | { readonly kind: "text"; readonly value: string }
  | { readonly kind: "data"; readonly value: Uint8Array }
  | { readonly kind: "removal"; readonly value: null };

/** A message as it is read. */
export class Message {
  readonly type = "message";
  readonly topic: string;
  readonly seq: number;
  readonly position: number;
  /** The place right behind it, to go on from. */
  readonly cursor: string;
  readonly timeMs: number;
  readonly key: string | Uint8Array | undefined;
  readonly id: string | Uint8Array | undefined;
  readonly ttlMs: number | undefined;
  readonly headers: Readonly<Record<string, readonly HeaderValue[]>>;
  readonly body: Body;

  constructor(wire: Wire) {
    this.topic = text(wire, "topic");
    this.seq = number(wire, "seq");
    this.position = number(wire, "position");
    this.cursor = text(wire, "cursor");
    this.timeMs = number(wire, "time_ms");
    this.key = textOrBytes(wire, "key");
    this.id = textOrBytes(wire, "id");
    this.ttlMs = wire["ttl_ms"] === undefined ? undefined : number(wire, "ttl_ms");
    this.headers = headersOf(wire);
    this.body = bodyOf(wire);
  }

  /** The body as text; JSON in its shortest form, nothing if it removes a key. */
  get text(): string {
    switch (this.body.kind) {
      case "json":
        return JSON.stringify(this.body.value);
      case "text":
        return this.body.value;
      case "data":
        return new TextDecoder().decode(this.body.value);
      case "removal":
        return "";
    }
  }

  /** The body as bytes. */
  get data(): Uint8Array {
    return this.body.kind === "data" ? this.body.value : new TextEncoder().encode(this.text);
  }

  /** The body as JSON, also if the publisher did not say that it is. */
  json(): unknown {
    return this.body.kind === "json" ? this.body.value : JSON.parse(this.text);
  }
}

/** A message of a group, leased to a member. */
export class LeasedMessage extends Message {
  /** 1 for the first delivery. */
  readonly attempt: number;
  /** What to name in ack, nack, extend and terminate. */
  readonly lease: string;

  constructor(wire: Wire) {
    super(wire);
    this.attempt = number(wire, "attempt");
    this.lease = text(wire, "lease");
  }
}

/** Messages that will not come, and why. Numbers are null where they are not known. */
export interface Gap {
  readonly type: "gap";
  readonly reason: GapReason;
  readonly topic: string | null;
  readonly from: number | null;
  readonly to: number | null;
}

/** Seqs that were compacted away or have expired. */
export interface Skipped {
  readonly type: "skipped";
  readonly topic: string;
  readonly from: number;
  readonly to: number;
}

/** History is read from the disk, up to here; `by` is `seq`, or `position` for a pattern. */
export interface Recovering {
  readonly type: "recovering";
  readonly from: number | null;
  readonly to: number | null;
  readonly by: string;
}

/** History is done: what comes now is new. */
export interface Live {
  readonly type: "live";
  readonly cursor: string;
}

/** A part of a topic. */
export interface Range {
  readonly messages: readonly Message[];
  readonly gaps: readonly Gap[];
  /** Where to go on. */
  readonly cursor: string;
  /** Whether there was more when this was read. */
  readonly more: boolean;
}

/** An object as it came over the wire. */
export type Wire = Record<string, unknown>;

export function ackOf(wire: Wire, topic: string, seq: string): Ack {
  return {
    topic,
    seq: number(wire, seq),
    position: wire["position"] === null ? null : number(wire, "position"),
    durability: text(wire, "durability") as Durability,
    duplicate: wire["duplicate"] === true,
  };
}

export function gapOf(wire: Wire, topic: string | null = null): Gap {
  return {
    type: "gap",
    reason: text(wire, "reason") as GapReason,
    topic: typeof wire["topic"] === "string" ? wire["topic"] : topic,
    from: numberOrNull(wire["from"]),
    to: numberOrNull(wire["to"]),
  };
}

export function bodyOf(wire: Wire): Body {
  if ("json" in wire) return { kind: "json", value: wire["json"] };
  if ("text" in wire) return { kind: "text", value: text(wire, "text") };
  if ("base64" in wire) return { kind: "data", value: fromBase64(text(wire, "base64")) };
  return { kind: "removal", value: null };
}

export function textOrBytes(wire: Wire, name: string): string | Uint8Array | undefined {
  const base64 = wire[`${name}_base64`];
  if (typeof base64 === "string") return fromBase64(base64);
  return wire[name] === undefined ? undefined : text(wire, name);
}

export function headersOf(wire: Wire): Record<string, HeaderValue[]> {
  const headers: Record<string, HeaderValue[]> = {};
  for (const [name, value] of Object.entries((wire["headers"] ?? {}) as Wire)) {
    const values = Array.isArray(value) ? (value as unknown[]) : [value];
    headers[name] = values.map((each) =>
      typeof each === "string" ? each : fromBase64(text(each as Wire, "base64")),
    );
  }
  return headers;
}

export function text(wire: Wire, name: string): string {
  const value = wire[name];
  if (typeof value !== "string") throw new ProtocolError(`${name} is not a text`);
  return value;
}

export function number(wire: Wire, name: string): number {
  const value = wire[name];
  if (typeof value !== "number") throw new ProtocolError(`${name} is not a number`);
  return value;
}

export function numberOrNull(value: unknown): number | null {
  return typeof value === "number" ? value : null;
}

/** A message to publish, with an id, as a line of many. */
export function lineOf(message: NewMessage, id: string): string {
  const line: Wire = { id, ...named("key", message.key) };
  if (message.ttlMs !== undefined) line["ttl_ms"] = message.ttlMs;
  if (message.expectSeq !== undefined) line["expect_seq"] = message.expectSeq;
  if (message.expectKeySeq !== undefined) line["expect_key_seq"] = message.expectKeySeq;
  const headers = Object.entries(message.headers ?? {}).map(([name, value]) => {
    const shown = valuesOf(value).map((each) =>
      typeof each === "string" ? each : { base64: toBase64(each) },
    );
    return [name, shown.length === 1 ? shown[0] : shown] as const;
  });
  if (headers.length > 0) line["headers"] = Object.fromEntries(headers);
  if (message.text !== undefined) line["text"] = message.text;
  else if (message.json !== undefined) line["json"] = message.json;
  else if (message.data !== undefined) line["base64"] = toBase64(message.data);
  return `${JSON.stringify(line)}\n`;
}

export function newMessage(message: string | Uint8Array | NewMessage): NewMessage {
  if (typeof message === "string") return { text: message };
  if (message instanceof Uint8Array) return { data: message };
  const bodies = [message.text, message.json, message.data].filter((each) => each !== undefined);
  if (bodies.length > 1) throw new TypeError("a message has one of text, json and data");
  if (bodies.length === 0 && message.key === undefined) {
    throw new TypeError("a message without a body removes its key, and so needs one");
  }
  return message;
}

export function valuesOf(value: HeaderValue | readonly HeaderValue[]): readonly HeaderValue[] {
  return typeof value === "string" || value instanceof Uint8Array ? [value] : value;
}

function named(name: string, value: string | Uint8Array | undefined): Wire {
  if (value === undefined) return {};
  return typeof value === "string" ? { [name]: value } : { [`${name}_base64`]: toBase64(value) };
}

/** A name that nothing else has. (`crypto.randomUUID` is missing in pages that came over http.) */
export function newId(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Bytes that become characters in one call, at most. */
const PIECE_BYTES = 0x8000;

function toBase64(bytes: Uint8Array): string {
  let binary = "";
  for (let at = 0; at < bytes.length; at += PIECE_BYTES) {
    binary += String.fromCharCode(...bytes.subarray(at, at + PIECE_BYTES));
  }
  return btoa(binary);
}

function fromBase64(base64: string): Uint8Array {
  try {
    return Uint8Array.from(atob(base64), (char) => char.charCodeAt(0));
  } catch (error) {
    throw new ProtocolError("this is not base64", error);
  }
}
