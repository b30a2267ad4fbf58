// All topics: filtered, sorted and paged by the server, so that ten thousand are as quick as
// ten.

import { ask, path } from "../api.js";
import { sparkline } from "../charts.js";
import { dialogue, field } from "../dialog.js";
import { h, Lines, mark, say } from "../dom.js";
import { byteRate, bytes, count, plural, rate } from "../format.js";
import { fieldsOf } from "./topic-settings.js";

export const nav = "Topics";
export const title = "Topics";

const ROWS = 50;
const TYPING_MS = 150;

const columns = [
  { name: "Topic", sort: "name" },
  { name: "Last minute", class: "spark-cell" },
  { name: "In", sort: "rate", class: "number" },
  { name: "Out", sort: "out", class: "number wide" },
  { name: "Bytes in", sort: "throughput", class: "number wide" },
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
  const create = h("button", { type: "button", class: "main", hidden: true, onclick: () => createTopic() }, "New topic");

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
  if (place.parameters.get("new")) queueMicrotask(() => createTopic());

  return {
    element: h("div", {},
      h("div", { class: "lead" }, h("h1", {}, "Topics"), create),
      h("div", { class: "tools" }, filter, summary),
      h("section", { class: "panel flush" }, table, empty),
      pages.element),
    get query() {
      return query();
    },
    update({ topics, may }) {
      if (!topics) return;
      create.hidden = !may.create;
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
  const cells = ["number", "number wide", "number wide", "number wide", "number"].map((name) => h("td", { class: name }));
  return {
    element: h("tr", {}, h("td", {}, link), h("td", { class: "spark-cell" }, spark.element), cells),
    update(row) {
      say(link, row.name);
      mark(link, "href", `#/topic/${encodeURIComponent(row.name)}`);
      spark.update(row.recent);
      mark(cells[0].parentElement, "data-idle", !row.messages_per_s && !row.messages_out_per_s);
      say(cells[0], rate(row.messages_per_s));
      say(cells[1], rate(row.messages_out_per_s));
      say(cells[2], byteRate(row.bytes_per_s));
      say(cells[3], row.next === row.first ? "none" : `${count(row.first)}–${count(row.next - 1)}`);
      say(cells[4], bytes(row.bytes));
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
async function createTopic() {
  const name = h("input", {
    required: true, maxlength: 255, autocomplete: "off", spellcheck: "false", placeholder: "orders.eu.created",
  });
  const storage = h("select", {},
    h("option", { value: "durable" }, "Durable: survives power loss"),
    h("option", { value: "volatile" }, "Volatile: in memory only"));
  const fields = fieldsOf(null);
  const done = await dialogue({
    title: "New topic", action: "Create",
    content: [
      field("Name", name, "Words separated by dots, so that patterns such as orders.> match them."),
      field("Storage", storage), ...fields.elements],
    work: () => ask("PUT", path`/v1/topics/${name.value.trim()}`, { json: { storage: storage.value, ...fields.changes() } }),
  });
  if (done) location.hash = `#/topic/${encodeURIComponent(name.value.trim())}`;
}
