// Topics and groups as the server describes them, by the names of the HTTP API.

import type { Durability, GapReason } from "./messages.js";

/** Settings of a topic. What is not named stays as it is; null is the default. */
export interface TopicSettings {
  storage?: "durable" | "volatile";
  durability?: Durability | null;
  retention?: { age_ms?: number | null; bytes?: number | null; count?: number | null } | null;
  compaction?: boolean | { tombstone_grace_ms: number } | null;
  dedup?: { time_ms?: number; count?: number } | null;
  delivery?: "at-most-once" | "at-least-once" | null;
  partition?: "delay-queue" | "drop" | null;
  require_subscribers?: boolean | null;
  max_message_bytes?: number | null;
}

export interface Topic {
  readonly name: string;
  readonly id: number;
  /** The first seq that can be read. */
  readonly first: number;
  /** The next seq. */
  readonly next: number;
  /** Bytes kept, about. */
  readonly bytes: number;
  readonly settings: Readonly<TopicSettings>;
}

/** Settings of a group. A new one needs a `source`. */
export interface GroupSettings {
  source?: string;
  mode?: "shared" | "keyed" | "ordered";
  start?: string;
  lease_ms?: number | null;
  attempts_max?: number | null;
  /** Waits between attempts: `steps_ms` lists them, or they grow from `first_ms`. */
  retry?: {
    steps_ms?: readonly number[];
    first_ms?: number;
    factor?: number;
    most_ms?: number;
    jitter_percent?: number;
  } | null;
  dead_letters?: boolean | null;
  on_gap?: "stop" | "continue" | null;
  in_flight_max?: number | null;
  member_in_flight_max?: number | null;
  open_max?: number | null;
  durability?: Durability | null;
}

export interface Group {
  readonly id: number;
  readonly name: string;
  readonly source: string;
  readonly mode: "shared" | "keyed" | "ordered";
  /** `stopped`: by a gap, until it is resumed or reset. */
  readonly state: "running" | "paused" | "stopped";
  /** Why it does not move, or that it does. */
  readonly why: string;
  readonly lag: number;
  readonly lag_exact: boolean;
  readonly in_flight: number;
  readonly ready: number;
  readonly waiting: number;
  readonly parked: number;
  readonly oldest_age_ms: number | null;
  readonly next_retry_ms: number | null;
  readonly redelivered: number;
  readonly dead_letters: number;
  readonly member_count: number;
  readonly floor: number;
  readonly frontier: number;
  readonly gap: {
    readonly topic: string | null;
    readonly from: number | null;
    readonly to: number | null;
    readonly reason: GapReason;
  } | null;
  readonly redriving: boolean;
  /** Counts since the server started. */
  readonly totals: {
    readonly delivered: number;
    readonly redelivered: number;
    readonly acked: number;
    readonly nacked: number;
    readonly expired: number;
    readonly buried: number;
    readonly dropped: number;
    readonly lost: number;
  };
  readonly members: readonly {
    readonly id: number;
    readonly name: string;
    readonly window: number;
    readonly in_flight: number;
    readonly active: boolean;
  }[];
  readonly settings: Readonly<GroupSettings>;
}

/** Version, state and some numbers of the server. */
export interface ServerState {
  readonly name: string;
  readonly version: string;
  readonly state: "starting" | "listening" | "online" | "error";
  readonly epoch: string;
  readonly time_ms: number;
  readonly since_ms: number;
}
