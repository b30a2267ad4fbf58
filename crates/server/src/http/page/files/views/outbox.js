// The outbox: what is settled, what holds it up, and how far each consumer is behind.

import { h, Lines, mark, say } from "../dom.js";
import { count, plural, span } from "../format.js";

export const nav = "Outbox";
export const title = "Outbox";

export function open() {
  const summary = h("p", { class: "summary", role: "status" });
  const held = h("p", { class: "empty" });
  const body = h("tbody");
  const lines = new Lines(body, () => line());
  const empty = h("p", { class: "empty" });
  const head = (name, classes) => h("th", { scope: "col", class: classes }, name);
  const table = h("table", { class: "list" }, h("thead", {}, h("tr", {},
    head("Consumer"), head("State"), head("Done up to", "number"), head("Backlog", "number"),
    head("Age", "number wide"), head("Dead letters", "number wide"))), body);
  return {
    element: h("div", {},
      h("div", { class: "lead" }, h("h1", {}, "Outbox")),
      h("div", { class: "tools" }, summary),
      h("section", { class: "panel flush" }, table, empty, held)),
    query: { show: "outbox" },
    update({ outbox }) {
      const consumers = outbox?.consumers ?? [];
      lines.show(consumers.map((consumer) => ({ id: consumer.name, ...consumer })));
      empty.hidden = consumers.length > 0;
      if (!outbox) {
        say(summary, "");
        say(empty, "This server moves no outbox: set outbox.dsn.");
      } else if (outbox.error) {
        say(summary, "");
        say(empty, outbox.error);
      } else {
        const fence = outbox.fence_owner ? "" : " No fence runs: nothing more is settled.";
        say(summary, `Settled up to ${count(outbox.safe_seq)}, ${count(outbox.unsettled)} unsettled.${fence}`);
        say(empty, plural(0, "consumer"));
      }
      held.hidden = !outbox?.culprit;
      say(held, outbox?.culprit?.text ?? "");
    },
  };
}

function line() {
  const cells = {
    name: h("td"), state: h("td"), done: h("td", { class: "number" }),
    backlog: h("td", { class: "number" }), age: h("td", { class: "number wide" }),
    dead: h("td", { class: "number wide" }),
  };
  const state = h("span", { class: "state" });
  cells.state.append(state);
  return {
    element: h("tr", {}, ...Object.values(cells)),
    update(consumer) {
      say(cells.name, consumer.name);
      const words = consumer.behind_retention ? "Behind retention" : consumer.running ? "Running" : "Not running";
      say(state, words);
      mark(state, "data-state", consumer.behind_retention ? "Offline" : consumer.running ? "Online" : "Connected");
      say(cells.done, count(consumer.last_seq));
      say(cells.backlog, count(consumer.backlog));
      say(cells.age, span(consumer.age_ms));
      say(cells.dead, count(consumer.dead_letters));
    },
  };
}
