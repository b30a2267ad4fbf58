// Browsing a topic: from a seq, a time, the beginning or the newest message, and by key or text.
//
// Content is not indexed, so a search looks at messages one by one; each step looks at a bounded
// part of the topic, says which, and goes on when asked.

import { ask, path } from "../api.js";
import { field } from "../dialog.js";
import { h, say } from "../dom.js";
import { count, plural } from "../format.js";
import { line } from "../message.js";

/** Messages of one step without a search. */
const PAGE = 50;
/** Messages that one step of a search looks at, backwards. */
const WINDOW = 5000;
/** Messages that stay on the page. */
const SHOWN_MAX = 1000;

export function browser(topic) {
  const start = h("select", { id: "browse-from" },
    h("option", { value: "newest" }, "The newest message"), h("option", { value: "beginning" }, "The oldest message"),
    h("option", { value: "seq" }, "A seq"), h("option", { value: "time" }, "A time"));
  const seq = h("input", { id: "browse-seq", type: "number", min: "1", value: "1" });
  const time = h("input", { id: "browse-time", type: "datetime-local", step: "1" });
  const key = h("input", { id: "browse-key", autocomplete: "off", spellcheck: "false", placeholder: "any" });
  const text = h("input", { id: "browse-text", autocomplete: "off", spellcheck: "false", placeholder: "any", maxlength: 256 });
  const [seqField, timeField] = [field("Seq", seq), field("Time", time)];
  const submit = h("button", { type: "submit", class: "main" }, "Show");
  const form = h("form", { class: "browse", "aria-label": "Browse messages" },
    field("Begin with", start), seqField, timeField, field("Key is", key), field("Text contains", text),
    h("div", { class: "buttons" }, submit));
  const summary = h("p", { class: "quiet", role: "status" });
  const trouble = h("p", { class: "notice bad", role: "alert", hidden: true });
  const list = h("ol", { class: "found", tabindex: "0", "aria-label": "Messages found" });
  const more = h("button", { type: "button", hidden: true, onclick: () => step() });
  let row = null;
  let started = false;
  // Where the next step begins: `{ before }` for older messages, `{ from }` for newer ones.
  let next = null;
  let looked = 0;
  let found = 0;

  const chosen = () => {
    seqField.hidden = start.value !== "seq";
    timeField.hidden = start.value !== "time";
  };
  start.addEventListener("change", chosen);
  chosen();
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    begin();
  });

  function begin() {
    list.replaceChildren();
    [looked, found] = [0, 0];
    const ms = time.value ? new Date(time.value).getTime() : 0;
    next = {
      newest: { before: row.next }, beginning: { from: `seq:${row.first}` },
      seq: { from: `seq:${Math.max(1, Number(seq.value) || 1)}` }, time: { from: `time:${ms}` },
    }[start.value];
    return step();
  }

  function query(more) {
    const all = { ...more, key: key.value, text: text.value };
    const given = Object.entries(all).filter(([, value]) => value !== "");
    return `${path`/v1/topics/${topic}/messages`}?${new URLSearchParams(given)}`;
  }

  const isSearch = () => key.value !== "" || text.value !== "";

  /** Reads a part of the topic that ends before a seq; what is in it comes newest first. */
  async function older(before) {
    const size = isSearch() ? WINDOW : PAGE;
    const from = Math.max(row.first, before - size);
    const items = [];
    if (from >= before) return { items, rest: null, looked: 0 };
    let at = from;
    while (at < before) {
      const part = await ask("GET", query({ from: `seq:${at}`, to: before - 1, limit: size }));
      items.push(...part.gaps.map((gap) => ({ notice: "gap", ...gap })), ...part.messages);
      if (!part.more || part.next === null || part.next <= at) break;
      at = part.next;
    }
    return { items: items.reverse(), rest: from > row.first ? { before: from } : null, looked: before - from };
  }

  async function newer(from) {
    const part = await ask("GET", query({ from, limit: PAGE }));
    const items = [...part.gaps.map((gap) => ({ notice: "gap", ...gap })), ...part.messages];
    const seen = part.looked_at ?? part.messages.length;
    return { items, rest: part.more ? { from: `seq:${part.next}` } : null, looked: seen };
  }

  async function step() {
    trouble.hidden = true;
    more.disabled = true;
    submit.disabled = true;
    try {
      const part = next.before === undefined ? await newer(next.from) : await older(next.before);
      next = part.rest;
      looked += part.looked;
      found += part.items.filter((item) => !item.notice).length;
      const lines = part.items.map(line);
      list.append(...lines);
      while (list.children.length > SHOWN_MAX) list.firstElementChild.remove();
      tell();
    } catch (error) {
      trouble.hidden = false;
      say(trouble, error.message);
    } finally {
      more.disabled = false;
      submit.disabled = false;
    }
  }

  function tell() {
    const where = `${plural(looked, "message")} looked at`;
    const words = isSearch() ? `${count(found)} found, ${where}` : plural(found, "message");
    say(summary, next === null ? `${words}. That is all.` : isSearch() ? `${words}; there are more to look at.` : `${words}; there are more.`);
    more.hidden = next === null;
    say(more, isSearch() ? "Search further" : start.value === "newest" ? "Show older" : "Show more");
  }

  return {
    element: h("section", { class: "panel", "aria-label": "Browse messages" }, form, trouble, summary, list, more),
    /** Begins with the newest messages, once. */
    start(now) {
      row = now;
      if (started) return;
      started = true;
      begin();
    },
  };
}
