// Who reads a topic: the groups whose source matches it, and the clients that follow it.

import { h, Lines, mark, say } from "../dom.js";
import { count, plural } from "../format.js";
import { lagOf } from "./groups.js";

export function readers() {
  const groups = h("tbody");
  const groupLines = new Lines(groups, () => {
    const link = h("a", { class: "name" });
    const [lag, dead] = [h("td", { class: "number" }), h("td", { class: "number" })];
    return {
      element: h("tr", {}, h("td", {}, link), lag, dead),
      update(row) {
        say(link, row.name);
        mark(link, "href", `#/group/${encodeURIComponent(row.name)}`);
        say(lag, lagOf(row));
        say(dead, count(row.dead_letters));
        mark(dead, "data-bad", row.dead_letters > 0);
      },
    };
  });
  const clients = h("tbody");
  const clientLines = new Lines(clients, () => {
    const who = h("td");
    const [pattern, behind] = [h("span", { class: "quiet" }), h("td", { class: "number" })];
    const name = h("span", {});
    who.append(name, " ", pattern);
    return {
      element: h("tr", {}, who, behind),
      update(row) {
        const at = row.session;
        say(name, at ? [at.name, at.address].filter(Boolean).join(" · ") : "inside the server");
        say(pattern, `follows ${row.pattern}`);
        say(behind, row.behind === 0 ? "nothing" : `${count(row.behind)} ${row.unit}s`);
      },
    };
  });
  const head = (...names) => h("thead", {}, h("tr", {}, names.map((name, at) =>
    h("th", { scope: "col", class: at > 0 && "number" }, name))));
  const groupTable = h("table", {}, head("Group", "Not done", "Dead letters"), groups);
  const clientTable = h("table", {}, head("Client", "Behind"), clients);
  const summary = h("span", { class: "quiet" });
  const nobody = h("p", { class: "empty" }, "No group reads it, and no client follows it.");
  return {
    element: h("section", { class: "panel", "aria-label": "Readers" },
      h("header", {}, h("h2", {}, "Readers"), summary), groupTable, clientTable, nobody),
    update({ groups: found, subscribers }) {
      if (!found || !subscribers) return;
      groupLines.show(found.rows);
      clientLines.show(subscribers.rows);
      groupTable.hidden = found.rows.length === 0;
      clientTable.hidden = subscribers.rows.length === 0;
      nobody.hidden = found.rows.length + subscribers.rows.length > 0;
      say(summary, `${plural(found.matching, "group")}, ${plural(subscribers.matching, "client")}`);
    },
  };
}
