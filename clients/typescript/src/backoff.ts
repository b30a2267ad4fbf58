// How long to wait before the next attempt.

/** Milliseconds before the second attempt, about. */
const FIRST_MS = 50;
/** Milliseconds between attempts, at most, unless the server asks for more. */
const MOST_MS = 2_000;

/** Waits that double, each between a half and the whole of it, so that clients spread. */
export class Backoff {
  #nextMs = FIRST_MS;

  reset(): void {
    this.#nextMs = FIRST_MS;
  }

  nextMs(retryAfterMs = 0): number {
    const wait = this.#nextMs * (0.5 + Math.random() / 2);
    this.#nextMs = Math.min(this.#nextMs * 2, MOST_MS);
    return Math.max(wait, retryAfterMs);
  }
}

/** Resolves after so long, or at once when the signal is aborted. */
export function pause(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal?.aborted) return resolve();
    const done = (): void => {
      clearTimeout(timer);
      signal?.removeEventListener("abort", done);
      resolve();
    };
    const timer = setTimeout(done, ms);
    signal?.addEventListener("abort", done);
  });
}
