// A client for gapless: publish, follow, and work in groups, with `fetch` and nothing else.

export { Client } from "./client.js";
export type { ClientOptions, FollowOptions, PublishOptions, Publishable } from "./client.js";
export { Consumer, GiveUp, RetryLater } from "./consumer.js";
export type { ConsumerOptions, Handler, Report } from "./consumer.js";
export {
  BatchError,
  FollowEndedError,
  GaplessError,
  ProtocolError,
  RefusedError,
  TimedOutError,
  TransportError,
} from "./errors.js";
export type { Fate, Problem } from "./errors.js";
export { Follower } from "./follow.js";
export type { Event, Notice } from "./follow.js";
export { Groups, Member } from "./groups.js";
export type { DeadLetter, Fetched, Letters, Settled } from "./groups.js";
export { LeasedMessage, Message } from "./messages.js";
export type {
  Ack,
  Body,
  Durability,
  Gap,
  GapReason,
  HeaderValue,
  Live,
  NewMessage,
  Range,
  Recovering,
  Scheduled,
  Skipped,
} from "./messages.js";
export type { Group, GroupSettings, ServerState, Topic, TopicSettings } from "./settings.js";
