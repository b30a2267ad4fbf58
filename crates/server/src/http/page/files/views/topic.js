// One topic: how it grows, what is in it, who reads it, and what can be done with it.

import { chart } from "../charts.js";
import { h, mark, say } from "../dom.js";
import { byteRate, bytes, count, rate } from "../format.js";
import { browser } from "./topic-browse.js";
import { follower } from "./topic-follow.js";
import { publisher } from "./topic-publish.js";
import { readers } from "./topic-readers.js";
import { settingsOf } from "./topic-settings.js";

export const title = (place) => place.name ?? "Topic";

/** Messages that are shown when the page opens. */
const LAST = 20;
/** The chart of a topic, in ms: what the server keeps of each. */
const MINUTE_MS = 60e3;
/** Readers that are listed. */
const READERS = 50;

export function open(place, page) {
  const topic = place.name ?? "";
  const figures = h("p", { class: "quiet" });
  const missing = h("p", { class: "notice bad", role: "alert", hidden: true },
    "There is no such topic. It may have been deleted.");
  const picture = chart({ what: "Messages in per second over the last minute", series: ["one"], format: rate, height: 70 });
  const may = (row, right) => row.may.includes(right);
  const following = follower(topic);
  const browsing = browser(topic);
  const publishing = publisher(topic);
  const read = readers();
  const settings = settingsOf(topic, () => state);
  const unread = h("p", { class: "empty", hidden: true }, "You may not read this topic: that needs the rights read and subscribe on it.");
  let state = null;
  let started = false;
  let mode = place.parameters.get("browse") ? "browse" : "live";

  const tabs = { live: "Live", browse: "Browse and search" };
  const buttons = Object.entries(tabs).map(([name, text]) =>
    h("button", { type: "button", class: "chip", "data-mode": name, onclick: () => choose(name) }, text));
  const tools = h("div", { class: "chips", role: "group", "aria-label": "How messages are shown" }, buttons);
  function choose(name) {
    mode = name;
    page.remember({ browse: name === "browse" ? 1 : "" });
    show();
  }
  function show() {
    const row = state?.topic;
    buttons.forEach((button) => mark(button, "aria-pressed", String(button.dataset.mode === mode)));
    const [reads, follows] = row ? [may(row, "read"), may(row, "subscribe")] : [true, true];
    unread.hidden = reads || follows;
    tools.hidden = !reads || !follows;
    following.element.hidden = !follows || (reads && mode !== "live");
    browsing.element.hidden = !reads || (follows && mode !== "browse");
    if (row && !browsing.element.hidden) browsing.start(row);
  }

  return {
    element: h("div", { class: "topic" },
      h("p", { class: "back" }, h("a", { href: "#/topics" }, "← Topics")),
      h("div", { class: "lead" }, h("h1", { class: "name" }, topic), figures, settings.buttons),
      missing,
      h("section", { class: "panel chart-panel", "aria-label": "Messages per second" }, picture.element),
      h("div", { class: "split" },
        h("div", {}, publishing, read.element, settings.element),
        h("div", { class: "messages-side" }, tools, following.element, browsing.element, unread))),
    query: { topic, show: "subscribers,groups", rows: READERS },
    update(all) {
      const { topic: row, server } = all;
      if (row === undefined) return;
      missing.hidden = row !== null;
      state = row === null ? null : all;
      settings.update(row);
      if (row === null) return;
      publishing.hidden = !may(row, "publish");
      say(figures, [
        row.next === row.first ? "no messages" : `seqs ${count(row.first)} to ${count(row.next - 1)}`,
        bytes(row.bytes), `${rate(row.messages_per_s)} in`, `${rate(row.messages_out_per_s)} out`, byteRate(row.bytes_per_s),
      ].join(" · "));
      const now = server ? Date.now() : 0;
      const times = row.recent.map((_, at) => now - (row.recent.length - 1 - at) * 1000);
      picture.update({ times, span: MINUTE_MS, step: 1000 }, row.recent);
      read.update(all);
      show();
      if (!started && may(row, "subscribe")) {
        started = true;
        following.start(`seq:${Math.max(row.first, row.next - LAST)}`);
      }
    },
    close() {
      following.stop();
    },
  };
}
