// Follows a topic and accounts for every seq: what comes is in order, or the page says so.
//
// A browser's EventSource comes back by itself with the id of the last event it saw, and the
// server goes on right behind it. Where a browser gives up (the server answered with an
// error), or while the page is hidden, the same is done here with the last id.

import { ask, path } from "./api.js";

const RETRY_MS = 1000;

export class Follow {
  /**
   * `handlers` has `messages(list)`, with gaps and skipped ranges in their places as
   * `{ notice, ... }`, and `status(state, words)`.
   */
  constructor(topic, from, handlers) {
    this.topic = topic;
    this.from = from;
    this.handlers = handlers;
    this.next = null;
    this.count = 0;
    this.holes = 0;
    this.repeats = 0;
    this.cursor = null;
    this.state = "connecting";
    this.stopped = false;
    this.waiting = [];
    this.onVisible = () => (document.hidden ? this.#pause() : this.#open());
    document.addEventListener("visibilitychange", this.onVisible);
    if (!document.hidden) this.#open();
  }

  /** Ends it, and with it the subscription. */
  stop() {
    document.removeEventListener("visibilitychange", this.onVisible);
    this.#pause();
    this.stopped = true;
    this.#tell("stopped", "Stopped");
  }

  #pause() {
    clearTimeout(this.retry);
    this.source?.close();
    this.source = null;
  }

  #open() {
    this.#pause();
    const query = new URLSearchParams({ from: this.cursor ?? this.from });
    const address = path`/v1/topics/${this.topic}/follow`;
    const source = new EventSource(`${address}?${query}`);
    this.source = source;
    this.#tell("connecting", this.cursor ? "Reconnecting…" : "Connecting…");
    source.addEventListener("message", (event) => this.#message(event));
    source.addEventListener("gap", (event) => this.#notice("gap", event));
    source.addEventListener("skipped", (event) => this.#notice("skipped", event));
    source.addEventListener("recovering", () => this.#tell("recovering", "Reading history"));
    source.addEventListener("live", (event) => {
      this.cursor = event.lastEventId || this.cursor;
      this.#tell("live", "Live");
    });
    source.addEventListener("deleted", () => this.#end("The topic was deleted."));
    source.addEventListener("failed", (event) => this.#end(JSON.parse(event.data).detail));
    source.addEventListener("error", () => this.#lost(source));
  }

  #message(event) {
    const message = JSON.parse(event.data);
    this.cursor = event.lastEventId || this.cursor;
    if (this.next !== null && message.seq > this.next) {
      // Only a bug could bring this about, here or in the server: so it is shown.
      this.holes += 1;
      this.#put({ notice: "hole", from: this.next, to: message.seq - 1 });
    } else if (this.next !== null && message.seq < this.next) {
      this.repeats += 1;
    }
    this.next = message.seq + 1;
    this.count += 1;
    this.#put(message);
  }

  #notice(kind, event) {
    const facts = JSON.parse(event.data);
    this.cursor = event.lastEventId || this.cursor;
    if (facts.to !== null) this.next = facts.to + 1;
    this.#put({ notice: kind, ...facts });
  }

  #put(item) {
    this.waiting.push(item);
    if (this.waiting.length === 1) {
      // Many messages are shown at once, at most sixty times a second.
      requestAnimationFrame(() => {
        const items = this.waiting.splice(0);
        if (!this.stopped) this.handlers.messages(items);
      });
    }
  }

  #lost(source) {
    this.#tell("connecting", "Connection lost. Reconnecting…");
    if (source.readyState !== EventSource.CLOSED || source !== this.source) return;
    this.#pause();
    ask("GET", path`/v1/topics/${this.topic}`).then(
      () => this.#again(),
      (problem) => {
        const gone = problem.status >= 400 && problem.status < 500;
        if (gone) this.#end(problem.message);
        else this.#again();
      },
    );
  }

  #again() {
    clearTimeout(this.retry);
    this.retry = setTimeout(() => this.#open(), RETRY_MS);
  }

  #end(words) {
    document.removeEventListener("visibilitychange", this.onVisible);
    this.#pause();
    this.#tell("ended", words);
  }

  #tell(state, words) {
    this.state = state;
    this.handlers.status(state, words);
  }
}
