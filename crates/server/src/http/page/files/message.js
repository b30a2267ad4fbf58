// A message as a line of a list. Whatever a publisher sent is shown as text.

import { h } from "./dom.js";
import { count, moment, stamp } from "./format.js";

/** Characters of a body that are shown until the user asks for all of it. */
const BODY_CHARS = 2000;

/** A line for a message, or for a notice of what is missing. */
export function line(item) {
  if (item.notice) return notice(item);
  const meta = h("div", { class: "meta" },
    h("span", { class: "seq" }, count(item.seq)),
    h("time", { title: moment(item.time_ms) }, stamp(item.time_ms)),
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
