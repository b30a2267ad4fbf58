// What can go wrong, and what became of the request.
//
// Every error is a `GaplessError` and says in `fate` whether the request had an effect. After
// "unknown" only a message id makes it safe to send again; `publish` does that by itself.

export type Fate = "did not happen" | "unknown";

/** A problem document (RFC 9457) as the server sent it. */
export interface Problem {
  readonly status: number;
  readonly code: number;
  readonly name: string;
  readonly title: string;
  readonly detail: string;
  readonly fate: Fate;
  /** Further members, such as `actual` of `ExpectedSeq`. */
  readonly facts: Readonly<Record<string, unknown>>;
}

/** The base of all errors of this package. */
export class GaplessError extends Error {
  override readonly name: string = "GaplessError";
  fate: Fate;

  constructor(message: string, fate: Fate, cause?: unknown) {
    super(message, cause === undefined ? {} : { cause });
    this.fate = fate;
  }
}

/** The server refused the request; `problem` says why, `problem.name` is the kind. */
export class RefusedError extends GaplessError {
  override readonly name = "RefusedError";

  constructor(
    readonly problem: Problem,
    /** Milliseconds after which the server says a second attempt makes sense. */
    readonly retryAfterMs?: number,
  ) {
    super(`${problem.name}: ${problem.detail || problem.title}`, problem.fate);
  }

  /** Whether the same request may be accepted later. */
  get passes(): boolean {
    return [408, 429, 502, 503, 504].includes(this.problem.status);
  }
}

/** No connection, or the connection ended before the answer was complete. */
export class TransportError extends GaplessError {
  override readonly name: string = "TransportError";
}

/** No answer in time. */
export class TimedOutError extends TransportError {
  override readonly name = "TimedOutError";
}

/** The answer is not what the protocol says; the other side may not be gapless. */
export class ProtocolError extends GaplessError {
  override readonly name = "ProtocolError";

  constructor(message: string, cause?: unknown) {
    super(message, "unknown", cause);
  }
}

/** A follower cannot go on: its topic was deleted. */
export class FollowEndedError extends GaplessError {
  override readonly name = "FollowEndedError";

  constructor(
    readonly code: number,
    detail: string,
  ) {
    super(detail || `the stream ended with error ${code}`, "did not happen");
  }
}

/** Some messages of a batch were not acknowledged; `outcomes` has an ack or an error for each. */
export class BatchError<Ack> extends GaplessError {
  override readonly name = "BatchError";

  constructor(readonly outcomes: readonly (Ack | GaplessError)[]) {
    const failed = outcomes.filter((each) => each instanceof GaplessError);
    const unknown = failed.some((each) => each.fate === "unknown");
    super(
      `${failed.length} of ${outcomes.length} messages were not acknowledged; ` +
        `first: ${failed[0]?.message}`,
      unknown ? "unknown" : "did not happen",
    );
  }
}

const KNOWN = new Set(["type", "status", "code", "name", "title", "detail", "fate"]);

export function problemOf(status: number, members: Record<string, unknown>): Problem {
  const text = (name: string, otherwise: string): string => {
    const value = members[name];
    return typeof value === "string" ? value : otherwise;
  };
  return {
    status: typeof members["status"] === "number" ? members["status"] : status,
    code: typeof members["code"] === "number" ? members["code"] : 0,
    name: text("name", "Unknown"),
    title: text("title", ""),
    detail: text("detail", ""),
    // A document without a fate comes from a proxy, which knows nothing of it.
    fate: members["fate"] === "did not happen" ? "did not happen" : "unknown",
    facts: Object.fromEntries(Object.entries(members).filter(([name]) => !KNOWN.has(name))),
  };
}
