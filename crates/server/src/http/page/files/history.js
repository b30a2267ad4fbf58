// The last hour of the server, which it keeps whether or not a page is open. Asked for when a chart
// is shown, and again whenever another step has passed.

import { ask } from "./api.js";
import { h, say } from "./dom.js";
import { span } from "./format.js";

const MINUTES_MS = 5 * 60e3;
const HOUR_MS = 3600e3;
/** What the server samples while a page is open, in ms. */
const TICK_MS = 1000;
/** How long a server must run before the hour is the first thing shown. */
const YOUNG_MS = 5 * 60e3;

export class Hour {
  /** `show()` is called when there is something new. */
  constructor(show) {
    this.show = show;
    this.columns = null;
    this.timer = null;
    this.closed = false;
    this.#read();
  }

  async #read() {
    let wait = 10_000;
    try {
      this.columns = await ask("GET", "/v1/state/history", { quiet: true });
      wait = this.columns.step_ms;
      if (!this.closed) this.show();
    } catch {
      // The server is away: what is shown stays, and is asked for again.
    }
    if (!this.closed) this.timer = setTimeout(() => this.#read(), document.hidden ? wait * 6 : wait);
  }

  close() {
    this.closed = true;
    clearTimeout(this.timer);
  }
}

/** Buttons for the range of charts; `choose(range)` is called with `minutes` or `hour`. */
export function ranges(choose) {
  const words = { minutes: "5 minutes", hour: "1 hour" };
  const buttons = Object.entries(words).map(([range, text]) =>
    h("button", { type: "button", class: "chip", "data-range": range, onclick: () => choose(range) }, text));
  const element = h("div", { class: "chips", role: "group", "aria-label": "Time shown in charts" }, buttons);
  return {
    element,
    press(range, columns) {
      say(buttons[1], span(kept(columns)));
      buttons.forEach((button) => button.setAttribute("aria-pressed", String(button.dataset.range === range)));
    },
  };
}

/** How long a time the server keeps: an hour, unless it is set otherwise. */
function kept(columns) {
  return columns ? columns.step_ms * columns.steps_max : HOUR_MS;
}

/** Which range is shown when none was chosen: a server that has just started has no hour yet. */
export function usualRange(server) {
  return Date.now() - server.since_ms < YOUNG_MS ? "minutes" : "hour";
}

/** The axis and the columns of a range: of the hour, or of the live points. */
export function rangeOf(range, columns, live) {
  const source = range === "hour" ? columns ?? {} : live ?? {};
  const step = range === "hour" ? columns?.step_ms ?? 10_000 : TICK_MS;
  return [{ times: source.end_ms ?? [], span: range === "hour" ? kept(columns) : MINUTES_MS, step }, source];
}
