// All groups: how far each is behind, what is with its members, and why it does not move.

import { h, Lines, mark, say } from "../dom.js";
import { count, plural, span } from "../format.js";
import { createGroup } from "./group-settings.js";
import { pager } from "./topics.js";

export const nav = "Groups";
export const title = "Groups";

const ROWS = 50;
const TYPING_MS = 150;

export function open(place, page) {
  const chosen = {
    filter: place.parameters.get("filter") ?? "",
    page: Number(place.parameters.get("page")) || 1,
  };
  const filter = h("input", {
    type: "search", placeholder: "Filter by text or pattern", value: chosen.filter,
    "aria-label": "Filter groups", autocomplete: "off", spellcheck: "false",
  });
  const summary = h("p", { class: "summary", role: "status" });
  const body = h("tbody");
  const lines = new Lines(body, () => line());
  const empty = h("p", { class: "empty" });
  const pages = pager((to) => choose({ page: to }));
  const head = (name, classes) => h("th", { scope: "col", class: classes }, name);
  const table = h("table", { class: "list" }, h("thead", {}, h("tr", {},
    head("Group"), head("State"), head("Not done", "number"), head("In flight", "number wide"),
    head("Oldest", "number wide"), head("Redelivered", "number wide"),
    head("Dead letters", "number"), head("Members", "number wide"))), body);

  const create = h("button", { type: "button", class: "main", hidden: true, onclick: () => createGroup() }, "New group");
  if (place.parameters.get("new")) queueMicrotask(() => createGroup());
  let typing = null;
  filter.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => choose({ filter: filter.value, page: 1 }), TYPING_MS);
  });
  const query = () => ({ show: "groups", rows: ROWS, ...chosen });
  function choose(change) {
    Object.assign(chosen, change);
    page.remember({ ...chosen, page: chosen.page > 1 ? chosen.page : "" });
    page.watch(query());
  }

  return {
    element: h("div", {},
      h("div", { class: "lead" }, h("h1", {}, "Groups"), create),
      h("div", { class: "tools" }, filter, summary),
      h("section", { class: "panel flush" }, table, empty), pages.element),
    get query() {
      return query();
    },
    update({ groups, may }) {
      if (!groups) return;
      create.hidden = !may.group;
      lines.show(groups.rows);
      say(summary, groups.matching === groups.total
        ? plural(groups.total, "group") : `${count(groups.matching)} of ${plural(groups.total, "group")}`);
      empty.hidden = groups.rows.length > 0;
      say(empty, groups.total === 0 ? "No groups yet." : "No group matches.");
      pages.update(groups);
    },
    close() {
      clearTimeout(typing);
    },
  };
}

/** How a group's state is written, and which colour it has. */
export function stateOf(element, group) {
  const words = { running: "Running", paused: "Paused", stopped: "Stopped" };
  const colours = { running: "Online", paused: "Connected", stopped: "Offline" };
  say(element, words[group.state] ?? group.state);
  mark(element, "data-state", colours[group.state]);
}

export function lagOf(group) {
  return `${group.lag_exact ? "" : "≤ "}${count(group.lag)}`;
}

function line() {
  const link = h("a", { class: "name" });
  const source = h("span", { class: "quiet" });
  const why = h("div", { class: "quiet why" });
  const state = h("span", { class: "state" });
  const cells = ["number", "number wide", "number wide", "number wide", "number", "number wide"]
    .map((name) => h("td", { class: name }));
  return {
    element: h("tr", {}, h("td", {}, link, " ", source, why), h("td", {}, state), cells),
    update(row) {
      say(link, row.name);
      mark(link, "href", `#/group/${encodeURIComponent(row.name)}`);
      say(source, `${row.source}, ${row.mode}`);
      say(why, row.why);
      stateOf(state, row);
      say(cells[0], lagOf(row));
      say(cells[1], count(row.in_flight));
      say(cells[2], row.oldest_age_ms === null ? "–" : span(row.oldest_age_ms));
      say(cells[3], count(row.redelivered));
      say(cells[4], count(row.dead_letters));
      mark(cells[4], "data-bad", row.dead_letters > 0);
      say(cells[5], count(row.member_count));
    },
  };
}
