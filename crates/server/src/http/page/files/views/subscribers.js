// The connected clients, what they follow, how far they are, and a way to close one.

import { ask, path } from "../api.js";
import { dialogue } from "../dialog.js";
import { h, Lines, mark, say } from "../dom.js";
import { bytes, capital, count, moment, plural, span } from "../format.js";
import { pager } from "./topics.js";

export const nav = "Clients";
export const title = "Clients";

const ROWS = 50;
const TYPING_MS = 150;
const STATES = ["online", "recovering", "connected", "offline"];
const MEANING = {
  online: "gets messages as they come", recovering: "reads history",
  connected: "is there and follows nothing yet", offline: "left within the last minute",
};

export function open(place, page) {
  const chosen = {
    filter: place.parameters.get("filter") ?? "",
    state: place.parameters.get("state") ?? "",
    page: Number(place.parameters.get("page")) || 1,
  };
  const filter = h("input", {
    type: "search", placeholder: "Filter by pattern, name or address", value: chosen.filter,
    "aria-label": "Filter clients", autocomplete: "off", spellcheck: "false",
  });
  const buttons = ["", ...STATES].map((state) => h("button", {
    type: "button", class: "chip", "data-state": state, title: MEANING[state] ?? "",
    onclick: () => choose({ state, page: 1 }),
  }));
  const summary = h("p", { class: "summary", role: "status" });
  const body = h("tbody");
  const lines = new Lines(body, () => line());
  const empty = h("p", { class: "empty" });
  const pages = pager((to) => choose({ page: to }));
  const table = h("table", { class: "list" }, h("thead", {}, h("tr", {},
    h("th", { scope: "col" }, "State"), h("th", { scope: "col" }, "Follows"),
    h("th", { scope: "col", class: "wide" }, "Client"), h("th", { scope: "col", class: "number" }, "Behind"),
    h("th", { scope: "col", class: "number wide" }, "Delivered"),
    h("th", { scope: "col" }, h("span", { class: "unseen" }, "Actions")))), body);

  let typing = null;
  filter.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => choose({ filter: filter.value, page: 1 }), TYPING_MS);
  });

  const query = () => ({ show: "subscribers", rows: ROWS, ...chosen });
  function choose(change) {
    Object.assign(chosen, change);
    page.remember({ ...chosen, page: chosen.page > 1 ? chosen.page : "" });
    marks();
    page.watch(query());
  }
  function marks() {
    buttons.forEach((button) => mark(button, "aria-pressed", button.dataset.state === chosen.state));
  }
  marks();

  return {
    element: h("div", {},
      h("div", { class: "lead" }, h("h1", {}, "Clients")),
      h("div", { class: "tools" }, filter,
        h("div", { class: "chips", role: "group", "aria-label": "State" }, buttons), summary),
      h("section", { class: "panel flush" }, table, empty), pages.element),
    get query() {
      return query();
    },
    update({ subscribers, may }) {
      if (!subscribers) return;
      lines.show(subscribers.rows.map((row) => ({ ...row, closable: may.close_clients && row.session && row.state !== "offline" })));
      buttons.forEach((button) => {
        const state = button.dataset.state;
        say(button, state === "" ? "All" : `${state[0].toUpperCase()}${state.slice(1)} ${count(subscribers[state])}`);
      });
      say(summary, subscribers.matching === subscribers.total
        ? plural(subscribers.total, "client") : `${count(subscribers.matching)} of ${plural(subscribers.total, "client")}`);
      empty.hidden = subscribers.rows.length > 0;
      say(empty, subscribers.total === 0 ? "No clients." : "No client matches.");
      pages.update(subscribers);
    },
    close() {
      clearTimeout(typing);
    },
  };
}

function line() {
  const state = h("span", { class: "state" });
  const follows = h("td", { class: "name" });
  const client = h("td", { class: "wide quiet" });
  const behind = h("td", { class: "number" });
  const bar = h("progress", { max: 1, hidden: true });
  const words = h("span");
  behind.append(words, bar);
  const delivered = h("td", { class: "number wide" });
  let now = null;
  const end = h("button", { type: "button", onclick: () => close(now) }, "Close");
  return {
    element: h("tr", {}, h("td", {}, state), follows, client, behind, delivered, h("td", { class: "number" }, end)),
    update(row) {
      now = row;
      end.hidden = !row.closable;
      say(state, capital(row.state));
      mark(state, "data-state", row.state);
      const groups = (row.members ?? []).map((each) =>
        `group ${each.group}: ${count(each.in_flight)} in flight${each.active ? "" : ", stands by"}`);
      say(follows, [row.pattern, ...groups].filter(Boolean).join("; ") || "nothing");
      mark(follows, "data-none", !row.pattern && groups.length === 0);
      const at = row.session;
      say(client, at ? [at.name, at.listener, at.address].filter(Boolean).join(" · ") : "inside the server");
      mark(client, "title", at ? `session ${at.number}, since ${moment(at.since_ms)} (${span(Date.now() - at.since_ms)})` : null);
      say(words, row.pattern === undefined ? "–" : row.behind === 0 ? "nothing" : `${count(row.behind)} ${row.unit}s`);
      const recovering = row.state === "recovering" && row.recovery_to > 0;
      bar.hidden = !recovering;
      if (recovering) bar.value = Math.min(1, row.place / row.recovery_to);
      say(delivered, row.pattern === undefined ? "–" : bytes(row.delivered_bytes));
    },
  };
}

/** Closes a client, once the user has read what that means. */
function close(row) {
  const { number, name, address } = row.session;
  const held = (row.members ?? []).reduce((sum, each) => sum + each.in_flight, 0);
  return dialogue({
    title: `Close client ${name || address}?`, danger: true, action: "Close",
    content: [`The connection of session ${number} (${address}) ends, with all that it follows.`,
      ...(held > 0 ? [`${plural(held, "message")} that it holds for groups go to other members.`] : []),
      "A client that reconnects by itself comes back: to keep it out, revoke its token."],
    work: () => ask("DELETE", path`/v1/clients/${number}`),
  });
}
