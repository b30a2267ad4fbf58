// One topic: what it is, how it grows, publishing into it, and following it.

import { ask, path } from "../api.js";
import { chart } from "../charts.js";
import { h, mark, say } from "../dom.js";
import { Follow } from "../follow.js";
import { byteRate, bytes, clock, count, moment, plural, rate, span } from "../format.js";

export const title = (place) => place.name ?? "Topic";

/** Messages that stay on the page. */
const SHOWN_MAX = 300;
/** Characters of a body that are shown until the user asks for all of it. */
const BODY_CHARS = 2000;
/** Messages that are shown when the page opens. */
const LAST = 20;

export function open(place, page) {
  const topic = place.name ?? "";
  const figures = h("p", { class: "quiet" });
  const missing = h("p", { class: "notice bad", role: "alert", hidden: true },
    "There is no such topic. It may have been deleted.");
  const picture = chart({
    what: "Messages per second over the last minute", series: ["one"], length: 60,
    format: (number) => rate(number), height: 64,
  });
  const settings = h("dl", { class: "facts" });
  const following = follower(topic);
  let started = false;

  ask("GET", path`/v1/topics/${topic}`).then(
    (info) => settings.replaceChildren(...described(info.settings)),
    () => {},
  );

  return {
    element: h("div", { class: "topic" },
      h("p", { class: "back" }, h("a", { href: "#/topics" }, "← Topics")),
      h("div", { class: "lead" }, h("h1", { class: "name" }, topic), figures),
      missing,
      h("section", { class: "panel chart-panel", "aria-label": "Messages per second" }, picture.element),
      h("div", { class: "split" },
        h("div", {}, publisher(topic),
          h("section", { class: "panel" }, h("header", {}, h("h2", {}, "Settings")), settings)),
        following.element)),
    query: { topic, show: "," },
    update({ topic: row }) {
      if (row === undefined) return;
      missing.hidden = row !== null;
      if (row === null) return;
      say(figures, [
        row.next === row.first ? "no messages" : `seqs ${count(row.first)} to ${count(row.next - 1)}`,
        bytes(row.bytes), rate(row.messages_per_s), byteRate(row.bytes_per_s),
      ].join(" · "));
      picture.update(row.recent);
      if (!started) {
        started = true;
        following.start(`seq:${Math.max(row.first, row.next - LAST)}`);
      }
    },
    close() {
      following.stop();
    },
  };
}

function described(settings) {
  const retention = [
    settings.retention.age_ms && span(settings.retention.age_ms),
    settings.retention.bytes && bytes(settings.retention.bytes),
    settings.retention.count && plural(settings.retention.count, "message"),
  ].filter(Boolean).join(" or ");
  const rows = {
    Storage: settings.storage,
    Durability: settings.durability ?? "as the server says",
    "Kept for": retention || "ever",
    Compaction: settings.compaction ? "latest message of each key" : "off",
    "Ids remembered": `${span(settings.dedup.time_ms)}, ${plural(settings.dedup.count, "id")}`,
    "Largest message": settings.max_message_bytes ? bytes(settings.max_message_bytes) : "as the server says",
  };
  return Object.entries(rows).map(([name, value]) =>
    h("div", {}, h("dt", {}, name), h("dd", {}, value)));
}

function publisher(topic) {
  const body = h("textarea", { id: "body", rows: 5, spellcheck: "false" });
  const kind = h("select", { id: "kind" },
    h("option", { value: "text" }, "Text"), h("option", { value: "json" }, "JSON"),
    h("option", { value: "none" }, "No body: removes the key"));
  const key = h("input", { id: "key", autocomplete: "off", spellcheck: "false" });
  const headers = h("textarea", {
    id: "headers", rows: 2, spellcheck: "false", placeholder: "name: value, one on each line",
  });
  const answer = h("p", { class: "answer", role: "status" });
  const submit = h("button", { type: "submit", class: "main" }, "Publish");
  const form = h("form", { class: "publish" },
    h("div", { class: "pair" },
      h("div", {}, h("label", { for: "key" }, "Key"), key),
      h("div", {}, h("label", { for: "kind" }, "Body is"), kind)),
    h("label", { for: "body" }, "Body"), body,
    h("details", {}, h("summary", {}, "Headers"), h("label", { for: "headers", class: "unseen" }, "Headers"), headers),
    h("div", { class: "buttons" }, answer, submit));
  kind.addEventListener("change", () => (body.disabled = kind.value === "none"));
  body.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    submit.disabled = true;
    mark(answer, "data-bad", null);
    try {
      const ack = await send();
      say(answer, ack.seq === undefined || ack.seq === null
        ? "Accepted." : `Accepted as seq ${count(ack.seq)}${ack.durability ? `, ${ack.durability}` : ""}.`);
      body.select();
    } catch (error) {
      mark(answer, "data-bad", true);
      say(answer, error.message);
    } finally {
      submit.disabled = false;
    }
  });

  function send() {
    const query = new URLSearchParams();
    if (key.value) query.set("key", key.value);
    for (const line of headers.value.split("\n").filter((each) => each.trim())) {
      const at = line.indexOf(":");
      if (at < 1) throw new Error(`"${line}" is not a valid header: write name: value`);
      query.append("header", `${line.slice(0, at).trim()}=${line.slice(at + 1).trim()}`);
    }
    const options = { headers: {} };
    if (kind.value === "none") query.set("tombstone", "true");
    else {
      if (kind.value === "json") {
        try {
          JSON.parse(body.value);
        } catch (error) {
          throw new Error(`The body is not valid JSON: ${error.message}`);
        }
        options.headers["content-type"] = "application/json";
      } else options.headers["content-type"] = "text/plain; charset=utf-8";
      options.body = body.value;
    }
    return ask("POST", `${path`/v1/topics/${topic}/messages`}?${query}`, options);
  }

  return h("section", { class: "panel" }, h("header", {}, h("h2", {}, "Publish"),
    h("span", { class: "quiet" }, "Ctrl + Enter")), form);
}

function follower(topic) {
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

function line(item) {
  if (item.notice) return notice(item);
  const meta = h("div", { class: "meta" },
    h("span", { class: "seq" }, count(item.seq)),
    h("time", { title: moment(item.time_ms) }, clock(item.time_ms)),
    item.key !== undefined && h("code", { class: "key-text", title: "Key" }, item.key),
    item.key_base64 !== undefined && h("code", { class: "key-text", title: "Key, as base64" }, item.key_base64),
    Object.entries(item.headers ?? {}).filter(([name]) => name !== "content-type")
      .map(([name, value]) => h("code", { class: "header" }, `${name}: ${typeof value === "string" ? value : JSON.stringify(value)}`)));
  return h("li", { "data-seq": item.seq }, meta, body(item));
}

function body(item) {
  if (item.json !== undefined) return text(JSON.stringify(item.json, null, 1).replace(/\n\s*/g, " "), "json");
  if (item.text !== undefined) return text(item.text, "text");
  if (item.base64 !== undefined) return text(item.base64, "base64");
  return h("p", { class: "quiet" }, "No body: the key is removed.");
}

function text(whole, kind) {
  const element = h("pre", { class: `body ${kind}` }, whole.slice(0, BODY_CHARS));
  if (whole === "") return h("p", { class: "quiet" }, "Empty.");
  if (whole.length <= BODY_CHARS) return element;
  const more = h("button", {
    type: "button", class: "link",
    onclick: () => {
      element.textContent = whole;
      more.remove();
    },
  }, `Show all ${count(whole.length)} characters`);
  return h("div", {}, element, more);
}

function notice(item) {
  const which = item.from === null || item.from === undefined ? "Some messages"
    : item.from === item.to ? `Message ${count(item.from)}` : `Messages ${count(item.from)} to ${count(item.to)}`;
  const words = {
    gap: `Gap: ${which.toLowerCase()} ${item.from === item.to ? "is" : "are"} gone (${item.reason}).`,
    skipped: `${which} ${item.from === item.to ? "was" : "were"} compacted away or expired.`,
    hole: `${which} did not arrive, and no gap notice says why. This is a bug: please report it.`,
  }[item.notice];
  return h("li", { class: `notice ${item.notice === "skipped" ? "" : "bad"}`, "data-notice": item.notice }, words);
}
