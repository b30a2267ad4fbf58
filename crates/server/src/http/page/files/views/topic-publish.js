// Publishing into a topic by hand.

import { ask, path } from "../api.js";
import { h, mark, say } from "../dom.js";
import { count } from "../format.js";

/** The form. */
export function publisher(topic) {
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
