// One group: how it stands and why, its members, and its dead letters with a way back.

import { ask, path } from "../api.js";
import { h, Lines, say } from "../dom.js";
import { clock, count, moment, plural, span } from "../format.js";
import { lagOf, stateOf } from "./groups.js";

export const title = (place) => place.name ?? "Group";

/** Dead letters that are shown at a time. */
const LETTERS = 50;
/** Characters of a body that are shown. */
const BODY_CHARS = 200;

const FIGURES = {
  lag: "Not done", in_flight: "In flight", ready: "Ready", waiting: "Waiting behind a message of the same key",
  parked: "Waiting for another attempt", oldest: "Oldest not done", retry: "Next attempt",
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
  const figures = h("dl", { class: "facts" }, Object.entries(FIGURES).map(([key, label]) => {
    values[key] = h("dd", {}, "–");
    return h("div", {}, h("dt", {}, label), values[key]);
  }));
  const body = h("tbody");
  const members = new Lines(body, () => member());
  const nobody = h("p", { class: "empty" }, "It has no members.");
  const switching = h("button", {
    type: "button", onclick: () => act(switching, path`/v1/groups/${name}/${switching.dataset.verb}`),
  });
  const letters = lettersOf(name, act);

  async function act(button, address, method = "POST") {
    button.disabled = true;
    trouble.hidden = true;
    try {
      return await ask(method, address);
    } catch (error) {
      trouble.hidden = false;
      say(trouble, error.message);
      return null;
    } finally {
      button.disabled = false;
    }
  }

  return {
    element: h("div", { class: "group" },
      h("p", { class: "back" }, h("a", { href: "#/groups" }, "← Groups")),
      h("div", { class: "lead" }, h("h1", { class: "name" }, name), h("p", {}, state, what), switching),
      missing, trouble,
      h("section", { class: "panel" }, h("header", {}, h("h2", {}, "State")), why, figures),
      h("section", { class: "panel" }, h("header", {}, h("h2", {}, "Members")),
        h("table", {}, h("thead", {}, h("tr", {},
          h("th", { scope: "col" }, "Name"), h("th", { scope: "col", class: "number" }, "In flight"),
          h("th", { scope: "col", class: "number" }, "At most"))), body), nobody),
      letters.element),
    query: { group: name, show: "," },
    update({ group }) {
      if (group === undefined) return;
      missing.hidden = group !== null;
      switching.hidden = group === null;
      if (group === null) return;
      stateOf(state, group);
      say(what, `${group.source}, ${group.mode}`);
      say(why, group.why);
      const goesOn = group.state === "running";
      say(switching, goesOn ? "Pause" : "Resume");
      switching.dataset.verb = goesOn ? "pause" : "resume";
      say(values.lag, lagOf(group));
      for (const key of ["in_flight", "ready", "waiting", "parked"]) say(values[key], count(group[key]));
      for (const [key, number] of Object.entries(group.totals)) {
        if (values[key]) say(values[key], count(number));
      }
      say(values.oldest, group.oldest_age_ms === null ? "–" : span(group.oldest_age_ms));
      say(values.retry, group.next_retry_ms === null ? "–" : clock(group.next_retry_ms));
      members.show(group.members);
      nobody.hidden = group.members.length > 0;
      letters.update(group);
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

/** The dead letters, read again whenever their number changes. */
function lettersOf(group, act) {
  const address = path`/v1/groups/${group}/dead-letters`;
  const summary = h("span", { class: "quiet" });
  const all = h("button", {
    type: "button", hidden: true, onclick: () => drive(all, ""),
  }, "Redrive all");
  const list = h("tbody");
  const lines = new Lines(list, (row) => letter(row));
  const table = h("table", { class: "list letters" }, h("thead", {}, h("tr", {},
    h("th", { scope: "col" }, "Message"), h("th", { scope: "col" }, "Error"),
    h("th", { scope: "col", class: "number wide" }, "Attempts"),
    h("th", { scope: "col", class: "wide" }, "Died"),
    h("th", { scope: "col" }, h("span", { class: "unseen" }, "Actions")))), list);
  const empty = h("p", { class: "empty" }, "There are none.");
  const answer = h("p", { class: "answer", role: "status" });
  let known = null;

  async function read() {
    try {
      const page = await ask("GET", `${address}?limit=${LETTERS}`);
      lines.show(page.letters.map((each) => ({ ...each, id: each.seq })));
      table.hidden = page.letters.length === 0;
      empty.hidden = page.letters.length > 0;
    } catch {
      // The group is gone, or the server is away: the next change asks again.
      known = null;
    }
  }

  async function drive(button, query) {
    const done = await act(button, `${address}/redrive${query}`);
    if (done) say(answer, `${plural(done.moved, "letter")} redriven.`);
  }

  function letter(row) {
    const again = h("button", {
      type: "button", onclick: () => drive(again, `?from=${row.seq}&to=${row.seq}`),
    }, "Redrive");
    const text = row.text ?? (row.json === undefined ? row.base64 ?? "" : JSON.stringify(row.json));
    const origin = `${row.topic}, seq ${count(row.origin_seq)}${row.key ? `, key ${row.key}` : ""}`;
    return {
      element: h("tr", { "data-seq": row.seq },
        h("td", {}, h("span", { class: "quiet" }, origin), h("div", { class: "name" },
          text.length > BODY_CHARS ? `${text.slice(0, BODY_CHARS)}…` : text)),
        h("td", {}, row.error || "–"),
        h("td", { class: "number wide" }, count(row.attempts)),
        h("td", { class: "wide quiet", title: moment(row.died_ms) }, clock(row.died_ms)),
        h("td", { class: "number" }, again)),
      update() {},
    };
  }

  return {
    element: h("section", { class: "panel", "aria-label": "Dead letters" },
      h("header", {}, h("h2", {}, "Dead letters"), summary, all), answer, table, empty),
    update(now) {
      say(summary, [now.dead_letters > LETTERS ? `the first ${LETTERS} of ${count(now.dead_letters)}`
        : plural(now.dead_letters, "letter"), now.redriving ? "being redriven" : ""].filter(Boolean).join(", "));
      all.hidden = now.dead_letters === 0;
      if (known !== now.dead_letters) {
        known = now.dead_letters;
        read();
      }
    },
  };
}
