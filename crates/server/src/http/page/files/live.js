// The state of the server as it changes: one stream for the parts that are shown, reopened when
// something else is. A hidden page asks for nothing.

const HISTORY_POINTS = 300;
const RECENT_POINTS = 60;
const RETRY_MS = 2000;
/** A stream that has been silent for so long is opened again: its connection may be dead. */
const REOPEN_MS = 10_000;
/** How often silence is looked at. */
const LOOK_MS = 500;

export class Live {
  /**
   * `show(state)` gets each new state, `tell(status)` one of live, connecting, paused, and
   * `silent(ms)` now and then for how long nothing came; 0 when something did. `refused()` says
   * whether to try again when the server answered with an error, or ended the stream with one.
   */
  constructor(show, tell, silent, refused) {
    this.show = show;
    this.tell = tell;
    this.silent = silent;
    this.refused = refused;
    this.stopped = false;
    this.heard = performance.now();
    this.opened = this.heard;
    this.query = null;
    this.source = null;
    this.retry = null;
    this.state = {};
    document.addEventListener("visibilitychange", () => {
      // What a hidden page did not ask for is not missing.
      this.heard = performance.now();
      this.#open();
    });
    setInterval(() => this.#look(), LOOK_MS);
  }

  #look() {
    if (document.hidden || this.stopped) return;
    const now = performance.now();
    this.silent(now - this.heard);
    if (now - Math.max(this.heard, this.opened) >= REOPEN_MS) this.#open();
  }

  /** What to show from now on: an object of query parameters. */
  watch(parameters) {
    const given = Object.entries(parameters).filter(([, value]) => value);
    const query = new URLSearchParams(given).toString();
    if (query === this.query) return;
    this.query = query;
    this.#open();
  }

  /** Goes on after it was refused. */
  resume() {
    this.stopped = false;
    this.heard = performance.now();
    this.#open();
  }

  async #refuse() {
    this.source?.close();
    this.source = null;
    clearTimeout(this.retry);
    if (await this.refused()) {
      this.retry = setTimeout(() => this.#open(), RETRY_MS);
    } else {
      this.stopped = true;
      this.silent(0);
      this.tell("paused");
    }
  }

  #open() {
    clearTimeout(this.retry);
    this.source?.close();
    this.source = null;
    if (this.stopped) return;
    this.opened = performance.now();
    if (document.hidden) {
      this.tell("paused");
      return;
    }
    this.tell("connecting");
    const source = new EventSource(`/v1/state/live?${this.query}`);
    this.source = source;
    source.addEventListener("full", (event) => this.#take(JSON.parse(event.data)));
    source.addEventListener("delta", (event) => {
      this.#take(merged(this.state, JSON.parse(event.data)));
    });
    source.addEventListener("error", () => {
      this.tell("connecting");
      // A browser comes back by itself, unless the server answered with an error.
      if (source.readyState === EventSource.CLOSED && source === this.source) this.#refuse();
    });
    source.addEventListener("failed", () => this.#refuse());
  }

  #take(state) {
    this.state = state;
    this.heard = performance.now();
    this.silent(0);
    this.tell("live");
    this.show(state);
  }
}

function merged(state, delta) {
  const next = { ...state };
  for (const [name, part] of Object.entries(delta)) {
    if (name === "history") next.history = longer(state.history, part);
    else if (name === "topic" && part && state.topic) next.topic = row(state.topic, part);
    else if (part?.rows && state[name]?.rows) next[name] = list(state[name], part);
    else next[name] = part;
  }
  return next;
}

function longer(history, points) {
  const next = {};
  for (const [name, series] of Object.entries(points)) {
    next[name] = [...(history?.[name] ?? []), ...series].slice(-HISTORY_POINTS);
  }
  return next;
}

function list(before, delta) {
  const rows = new Map(before.rows.map((each) => [each.id, each]));
  for (const each of delta.rows) rows.set(each.id, row(rows.get(each.id), each));
  const order = delta.order ?? before.rows.map((each) => each.id);
  const { order: _, ...fields } = delta;
  return { ...before, ...fields, rows: order.map((id) => rows.get(id)).filter(Boolean) };
}

function row(before, delta) {
  if (!before) return delta;
  const { points, ...fields } = delta;
  const next = { ...before, ...fields };
  if (points) next.recent = [...(before.recent ?? []), ...points].slice(-RECENT_POINTS);
  return next;
}
