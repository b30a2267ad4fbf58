// The messages of a topic as they come.

import { h, mark, say } from "../dom.js";
import { Follow } from "../follow.js";
import { plural } from "../format.js";
import { line } from "../message.js";

/** Messages that stay on the page. */
const SHOWN_MAX = 300;
/** Messages that are shown when the page opens. */
const LAST = 20;

/** A panel; `start(place)` begins it, `stop()` ends the subscription. */
export function follower(topic) {
  const list = h("ol", { class: "messages", tabindex: "0", "aria-label": "Messages, newest first" });
  const state = h("span", { class: "state", role: "status" });
  const summary = h("span", { class: "quiet" });
  const from = h("select", { "aria-label": "Start at" },
    h("option", { value: "last" }, `The last ${LAST}`), h("option", { value: "beginning" }, "The beginning"),
    h("option", { value: "now" }, "New messages only"), h("option", { value: "last-per-key" }, "The latest of each key"),
    h("option", { value: "seq" }, "A seq …"));
  const seq = h("input", { type: "number", min: "1", value: "1", "aria-label": "First seq", hidden: true });
  const empty = h("p", { class: "empty" }, "No message yet. Publish one, and it appears here.");
  let follow = null;
  let last = "beginning";

  const toggle = h("button", { type: "button", onclick: () => (follow ? stop() : begin()) }, "Follow");
  from.addEventListener("change", () => {
    seq.hidden = from.value !== "seq";
    if (from.value === "seq") seq.focus();
    else begin();
  });
  seq.addEventListener("change", () => begin());

  function begin() {
    const place = { last, seq: `seq:${seq.value || 1}` }[from.value] ?? from.value;
    follow?.stop();
    list.replaceChildren();
    empty.hidden = false;
    follow = new Follow(topic, place, { messages, status });
    say(toggle, "Stop");
    account();
  }

  function stop() {
    follow?.stop();
    follow = null;
    say(toggle, "Follow");
  }

  function messages(items) {
    empty.hidden = true;
    // Of a flood only the newest are shown; all are counted.
    const lines = items.slice(-SHOWN_MAX).map(line).reverse();
    const above = list.scrollTop > 4 ? list.scrollHeight - list.scrollTop : null;
    list.prepend(...lines);
    while (list.children.length > SHOWN_MAX) list.lastElementChild.remove();
    // The scroll position of a reader further down is kept.
    if (above !== null) list.scrollTop = list.scrollHeight - above;
    account();
  }

  function account() {
    if (!follow) return;
    mark(list, "data-count", follow.count);
    mark(list, "data-holes", follow.holes);
    mark(list, "data-repeats", follow.repeats);
    const fault = follow.holes + follow.repeats > 0
      ? `${follow.holes} holes, ${follow.repeats} repeats` : "no hole, no repeat";
    say(summary, follow.count === 0 ? "" : `${plural(follow.count, "message")}, ${fault}`);
  }

  function status(now, words) {
    mark(state, "data-state", now);
    say(state, words);
    if (now === "ended") {
      follow = null;
      say(toggle, "Follow");
    }
  }

  return {
    element: h("section", { class: "panel follow" },
      h("header", {}, h("h2", {}, "Messages"), state, summary, h("span", { class: "end" }, from, seq, toggle)),
      empty, list),
    start(place) {
      last = place;
      begin();
    },
    stop: () => follow?.stop(),
  };
}
