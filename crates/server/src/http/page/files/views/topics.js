// All topics: filtered, sorted and paged by the server, so that ten thousand are as quick as
// ten.

import { ask, path } from "../api.js";
import { sparkline } from "../charts.js";
import { h, Lines, mark, say } from "../dom.js";
import { byteRate, bytes, count, plural, rate } from "../format.js";

export const nav = "Topics";
export const title = "Topics";

const ROWS = 50;
const TYPING_MS = 150;
const DAY_MS = 86_400_000;

const columns = [
  { name: "Topic", sort: "name" },
  { name: "Last minute", class: "spark-cell" },
  { name: "Messages/s", sort: "rate", class: "number" },
  { name: "Bytes/s", sort: "throughput", class: "number wide" },
  { name: "Seqs", sort: "messages", class: "number wide" },
  { name: "Size", sort: "size", class: "number" },
];

export function open(place, page) {
  const chosen = {
    filter: place.parameters.get("filter") ?? "",
    sort: place.parameters.get("sort") ?? "name",
    page: Number(place.parameters.get("page")) || 1,
  };
  const filter = h("input", {
    type: "search", placeholder: "Filter by text or pattern, such as orders.>", value: chosen.filter,
    "aria-label": "Filter topics", autocomplete: "off", spellcheck: "false",
  });
  const summary = h("p", { class: "summary", role: "status" });
  const body = h("tbody");
  const heads = columns.map((column) => {
    const cell = h("th", { scope: "col", class: column.class });
    if (column.sort) {
      cell.append(h("button", {
        type: "button", class: "sort",
        onclick: () => choose({ sort: column.sort, page: 1 }),
      }, column.name));
    } else cell.append(column.name);
    return cell;
  });
  const table = h("table", { class: "list topics-list" }, h("thead", {}, h("tr", {}, heads)), body);
  const lines = new Lines(body, () => line());
  const pages = pager((to) => choose({ page: to }));
  const empty = h("p", { class: "empty" });
  const maker = form(() => {});
  const create = h("button", {
    type: "button", class: "main", onclick: () => maker.showModal(),
  }, "New topic");

  let typing = null;
  filter.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => choose({ filter: filter.value, page: 1 }), TYPING_MS);
  });

  function query() {
    return { show: "topics", rows: ROWS, filter: chosen.filter, sort: chosen.sort, page: chosen.page };
  }

  function choose(change) {
    Object.assign(chosen, change);
    page.remember({
      filter: chosen.filter,
      sort: chosen.sort === "name" ? "" : chosen.sort,
      page: chosen.page > 1 ? chosen.page : "",
    });
    marks();
    page.watch(query());
  }

  function marks() {
    columns.forEach((column, at) => {
      const order = column.sort === "name" ? "ascending" : "descending";
      mark(heads[at], "aria-sort", column.sort === chosen.sort ? order : null);
    });
  }
  marks();
  if (place.parameters.get("new")) queueMicrotask(() => maker.showModal());

  return {
    element: h("div", {},
      h("div", { class: "lead" }, h("h1", {}, "Topics"), create),
      h("div", { class: "tools" }, filter, summary),
      h("section", { class: "panel flush" }, table, empty),
      pages.element, maker),
    get query() {
      return query();
    },
    update({ topics }) {
      if (!topics) return;
      lines.show(topics.rows);
      const all = topics.matching === topics.total;
      say(summary, all ? plural(topics.total, "topic")
        : `${count(topics.matching)} of ${plural(topics.total, "topic")}`);
      empty.hidden = topics.rows.length > 0;
      say(empty, topics.total === 0 ? "No topics yet." : "No topic matches.");
      pages.update(topics);
    },
    close() {
      clearTimeout(typing);
    },
  };
}

function line() {
  const link = h("a", { class: "name" });
  const spark = sparkline();
  const cells = ["number", "number wide", "number wide", "number"].map((name) => h("td", { class: name }));
  return {
    element: h("tr", {}, h("td", {}, link), h("td", { class: "spark-cell" }, spark.element), cells),
    update(row) {
      say(link, row.name);
      mark(link, "href", `#/topic/${encodeURIComponent(row.name)}`);
      spark.update(row.recent);
      mark(cells[0].parentElement, "data-idle", !row.messages_per_s);
      say(cells[0], rate(row.messages_per_s));
      say(cells[1], byteRate(row.bytes_per_s));
      say(cells[2], row.next === row.first ? "none" : `${count(row.first)}–${count(row.next - 1)}`);
      say(cells[3], bytes(row.bytes));
    },
  };
}

/** Buttons for the page before and after. */
export function pager(go) {
  let page = 1;
  const before = h("button", { type: "button", onclick: () => go(page - 1) }, "← Previous");
  const after = h("button", { type: "button", onclick: () => go(page + 1) }, "Next →");
  const where = h("span", { class: "quiet" });
  const element = h("nav", { class: "pager", "aria-label": "Pages" }, before, where, after);
  return {
    element,
    update(list) {
      page = list.page;
      element.hidden = list.pages <= 1;
      say(where, `Page ${count(list.page)} of ${count(list.pages)}`);
      before.disabled = list.page <= 1;
      after.disabled = list.page >= list.pages;
    },
  };
}

/** The dialogue that creates a topic and goes there. */
function form() {
  const name = h("input", {
    id: "new-name", required: true, maxlength: 255, autocomplete: "off", spellcheck: "false",
    placeholder: "orders.eu.created",
  });
  const storage = h("select", { id: "new-storage" },
    h("option", { value: "durable" }, "Durable: survives power loss"),
    h("option", { value: "volatile" }, "Volatile: in memory only"));
  const days = h("input", { id: "new-days", type: "number", min: "0", step: "any", placeholder: "for ever" });
  const most = h("input", { id: "new-count", type: "number", min: "1", step: "1", placeholder: "no limit" });
  const compaction = h("input", { id: "new-compaction", type: "checkbox" });
  const trouble = h("p", { class: "notice bad", role: "alert", hidden: true });
  const submit = h("button", { type: "submit", class: "main" }, "Create");
  const fields = h("form", {},
    h("h2", { id: "new-title" }, "New topic"),
    h("label", { for: "new-name" }, "Name"), name,
    h("p", { class: "hint" }, "Words separated by dots, so that patterns such as orders.> match them."),
    h("label", { for: "new-storage" }, "Storage"), storage,
    h("div", { class: "pair" },
      h("div", {}, h("label", { for: "new-days" }, "Keep for (days)"), days),
      h("div", {}, h("label", { for: "new-count" }, "Keep at most (messages)"), most)),
    h("label", { class: "check", for: "new-compaction" }, compaction, "Keep only the latest message of each key"),
    trouble,
    h("div", { class: "buttons" },
      h("button", { type: "button", onclick: () => dialogue.close() }, "Cancel"), submit));
  const dialogue = h("dialog", { "aria-labelledby": "new-title" }, fields);
  fields.addEventListener("submit", async (event) => {
    event.preventDefault();
    const retention = {};
    if (days.value) retention.age_ms = Math.round(Number(days.value) * DAY_MS);
    if (most.value) retention.count = Number(most.value);
    const settings = { storage: storage.value };
    if (Object.keys(retention).length > 0) settings.retention = retention;
    if (compaction.checked) settings.compaction = true;
    trouble.hidden = true;
    submit.disabled = true;
    try {
      await ask("PUT", path`/v1/topics/${name.value.trim()}`, { json: settings });
      dialogue.close();
      location.hash = `#/topic/${encodeURIComponent(name.value.trim())}`;
    } catch (error) {
      trouble.hidden = false;
      say(trouble, error.message);
    } finally {
      submit.disabled = false;
    }
  });
  return dialogue;
}
