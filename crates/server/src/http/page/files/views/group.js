// One group: how it stands and why, its members, its settings, and its dead letters.

import { ask, path } from "../api.js";
import { h, Lines, say } from "../dom.js";
import { count, span, stamp } from "../format.js";
import { lettersOf } from "./group-letters.js";
import { described, groupActions } from "./group-settings.js";
import { lagOf, stateOf } from "./groups.js";

export const title = (place) => place.name ?? "Group";

const FIGURES = {
  lag: "Not done", in_flight: "In flight", ready: "Ready", waiting: "Waiting behind a message of the same key",
  parked: "Waiting for another attempt", oldest: "Oldest not done", retry: "Next attempt",
};
const TOTALS = {
  delivered: "Handed out", redelivered: "Redelivered", acked: "Acked", nacked: "Nacked",
  expired: "Expired leases", lost: "Lost before delivery",
};

export function open(place) {
  const name = place.name ?? "";
  const state = h("span", { class: "state" });
  const what = h("span", { class: "quiet" });
  const missing = h("p", { class: "notice bad", role: "alert", hidden: true },
    "There is no such group. It may have been deleted.");
  const trouble = h("p", { class: "notice bad", role: "alert", hidden: true });
  const why = h("p", { class: "why", role: "status" });
  const values = {};
  const facts = (rows) => h("dl", { class: "facts" }, Object.entries(rows).map(([key, label]) => {
    values[key] = h("dd", {}, "–");
    return h("div", {}, h("dt", {}, label), values[key]);
  }));
  const body = h("tbody");
  const members = new Lines(body, () => member());
  const nobody = h("p", { class: "empty" }, "It has no members.");
  const settings = h("dl", { class: "facts" });
  const switching = h("button", { type: "button", onclick: () => toggle() });
  let known = null;
  const actions = groupActions(name, () => known);
  const letters = lettersOf(name);
  let shown = "";

  async function toggle() {
    switching.disabled = true;
    trouble.hidden = true;
    try {
      await ask("POST", path`/v1/groups/${name}/${switching.dataset.verb}`);
    } catch (error) {
      trouble.hidden = false;
      say(trouble, error.message);
    } finally {
      switching.disabled = false;
    }
  }

  const buttons = h("div", { class: "actions", role: "group", "aria-label": "Actions" }, switching, actions.elements);
  return {
    element: h("div", { class: "group" },
      h("p", { class: "back" }, h("a", { href: "#/groups" }, "← Groups")),
      h("div", { class: "lead" }, h("h1", { class: "name" }, name), h("p", {}, state, what), buttons),
      missing, trouble,
      h("section", { class: "panel", "aria-label": "State" }, h("header", {}, h("h2", {}, "State")), why, facts(FIGURES)),
      h("div", { class: "columns" },
        h("section", { class: "panel", "aria-label": "Members" }, h("header", {}, h("h2", {}, "Members")),
          h("table", {}, h("thead", {}, h("tr", {},
            h("th", { scope: "col" }, "Name"), h("th", { scope: "col", class: "number" }, "In flight"),
            h("th", { scope: "col", class: "number" }, "At most"))), body), nobody),
        h("section", { class: "panel", "aria-label": "Since the server started" },
          h("header", {}, h("h2", {}, "Since the server started")), facts(TOTALS))),
      letters.element,
      h("section", { class: "panel", "aria-label": "Settings" }, h("header", {}, h("h2", {}, "Settings")), settings)),
    query: { group: name, show: "," },
    update({ group }) {
      if (group === undefined) return;
      missing.hidden = group !== null;
      buttons.hidden = group === null;
      if (group === null) return;
      known = group;
      stateOf(state, group);
      say(what, `${group.source}, ${group.mode}`);
      say(why, group.why);
      const goesOn = group.state === "running";
      say(switching, goesOn ? "Pause" : "Resume");
      switching.dataset.verb = goesOn ? "pause" : "resume";
      switching.hidden = !group.may.includes("group");
      actions.update(group);
      say(values.lag, lagOf(group));
      for (const key of ["in_flight", "ready", "waiting", "parked"]) say(values[key], count(group[key]));
      for (const [key, number] of Object.entries(group.totals)) {
        if (values[key]) say(values[key], count(number));
      }
      say(values.oldest, group.oldest_age_ms === null ? "–" : span(group.oldest_age_ms));
      say(values.retry, group.next_retry_ms === null ? "–" : stamp(group.next_retry_ms));
      members.show(group.members);
      nobody.hidden = group.members.length > 0;
      letters.update(group);
      const now = JSON.stringify(group.settings);
      if (now !== shown) {
        shown = now;
        settings.replaceChildren(...described(group.settings));
      }
    },
    close() {},
  };
}

function member() {
  const name = h("td", { class: "name" });
  const held = h("td", { class: "number" });
  const most = h("td", { class: "number" });
  return {
    element: h("tr", {}, name, held, most),
    update(row) {
      say(name, row.active ? row.name : `${row.name} (stands by)`);
      say(held, count(row.in_flight));
      say(most, count(row.window));
    },
  };
}
