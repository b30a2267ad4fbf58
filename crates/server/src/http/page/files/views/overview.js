// What is going on, at a glance.

import { chart, sparkline } from "../charts.js";
import { h, Lines, mark, say } from "../dom.js";
import { byteRate, bytes, capital, clock, count, micros, plural, rate, span } from "../format.js";
import { Hour, rangeOf, ranges, usualRange } from "../history.js";
import { sentence } from "./events.js";
import { lagOf, stateOf } from "./groups.js";

export const nav = "Overview";
export const title = "Overview";

const BUSIEST = 8;
const EVENTS = 9;

/** What the states of the server mean. */
const STATES = {
  online: "takes and delivers messages", listening: "is ready, and no topic exists yet",
  starting: "opens its store", error: "takes no more messages",
};

function card(name, { series, format, what, legend, unit }) {
  const value = h("p", { class: "figure" }, "–");
  const side = h("p", { class: "figure-side" });
  const picture = chart({ what, series, format, unit, names: legend });
  const keys = legend?.map((text, at) => h("span", { class: `key ${series[at]}` }, text));
  const element = h("section", { class: "card", "aria-label": name },
    h("header", {}, h("h2", {}, name), keys && h("span", { class: "keys" }, keys)),
    h("div", { class: "figures" }, value, side), picture.element);
  return { element, value, side, picture };
}

function facts(rows) {
  const values = {};
  const element = h("dl", { class: "facts" }, Object.entries(rows).map(([name, label]) => {
    values[name] = h("dd", {}, "–");
    return h("div", {}, h("dt", {}, label), values[name]);
  }));
  return { element, set: (name, text) => say(values[name], text) };
}

const panel = (name, link, ...content) => h("section", { class: "panel", "aria-label": name },
  h("header", {}, h("h2", {}, name), link), content);

export function open(place, page) {
  let chosen = ["minutes", "hour"].includes(place.parameters.get("range")) ? place.parameters.get("range") : null;
  let last = null;
  const state = h("span", { class: "state" }, "…");
  const about = h("span", { class: "quiet" });
  const trouble = h("p", { class: "notice bad", role: "alert", hidden: true });
  const messages = card("Messages", {
    what: "Messages per second", series: ["one", "two"], format: rate, legend: ["in", "out"],
  });
  const traffic = card("Bytes", {
    what: "Bytes per second", series: ["one", "two"], format: byteRate, legend: ["in", "out"], unit: 1024,
  });
  const flush = card("Flush time", {
    what: "Time that flushes to disk took", series: ["one", "two"], format: micros, legend: ["median", "99 %"],
  });
  const memory = card("Memory", { what: "Memory of the server", series: ["one"], format: bytes, unit: 1024 });
  const range = ranges((wanted) => {
    chosen = wanted;
    page.remember({ range: wanted });
    draw();
  });
  const hour = new Hour(() => draw());
  const machine = facts({
    memory: "Memory", disk: "Disk free", files: "Open files", cpu: "Processor",
  });
  const store = facts({
    topics: "Topics", messages: "Messages accepted", delayed: "Delayed messages", disk: "Bytes in segments",
    memory: "Newest in memory", waiting: "Waiting to be written",
  });
  const clients = facts({
    sessions: "Connected clients", online: "Follow live", recovering: "Read history", offline: "Left in the last minute",
  });
  const groups = attention();
  const busy = busiest();
  const said = h("ol", { class: "events" });
  const quiet = h("p", { class: "empty" }, "No events since this page was opened.");
  const eventLines = new Lines(said, (row) => ({
    element: h("li", {}, h("time", {}, clock(row.time_ms).slice(0, 8)), h("span", {}, sentence(row))),
    update() {},
  }));

  const element = h("div", { class: "overview" },
    h("div", { class: "lead" }, h("h1", {}, "Overview"), h("p", {}, state, about), range.element),
    trouble,
    h("div", { class: "cards" }, messages.element, traffic.element, flush.element, memory.element),
    h("div", { class: "columns stacked" },
      h("div", {}, groups.element,
        panel("Machine", null, machine.element),
        panel("Store", h("a", { href: "#/topics" }, "All topics"), store.element),
        panel("Clients", h("a", { href: "#/subscribers" }, "All clients"), clients.element)),
      h("div", {}, busy.element,
        panel("Events", h("a", { href: "#/events" }, "All events"), said, quiet))));

  function draw() {
    if (!last?.server) return;
    const now = chosen ?? usualRange(last.server);
    range.press(now, hour.columns);
    const [axis, columns] = rangeOf(now, hour.columns, last.history);
    messages.picture.update(axis, columns.messages_in, columns.messages_out);
    traffic.picture.update(axis, columns.bytes_in, columns.bytes_out);
    flush.picture.update(axis, columns.flush_p50_us, columns.flush_p99_us);
    memory.picture.update(axis, columns.memory_bytes);
  }

  const cpu = processor();
  return {
    element,
    query: { show: "overview,topics,events", sort: "rate", rows: BUSIEST },
    update(all) {
      const { server, totals, rates, flush: flushed, recovery, journal, process, topics, events } = all;
      if (!totals) return;
      last = all;
      say(state, capital(server.state));
      mark(state, "data-state", server.state);
      mark(state, "title", STATES[server.state] ?? null);
      say(about, `gapless ${server.version}, up ${span(Date.now() - server.since_ms)}`);
      mark(about, "title", `store ${server.epoch}`);
      trouble.hidden = !server.trouble && !journal.full;
      say(trouble, server.trouble ? `The journal takes no more messages: ${server.trouble}`
        : journal.full ? "The disk is full: messages wait until there is room." : "");
      say(messages.value, `${rate(rates.messages_in)} in`);
      say(messages.side, `${rate(rates.messages_out)} out, ${count(totals.messages)} accepted so far`);
      say(traffic.value, `${byteRate(rates.bytes_in)} in`);
      say(traffic.side, `${byteRate(rates.bytes_out)} out${recovery.recovering > 0
        ? `, ${plural(recovery.recovering, "client")} reading history` : ""}`);
      say(flush.value, micros(flushed.p50_us));
      say(flush.side, flushed.p99_us === null ? "no flush in the last minute" : `99 % within ${micros(flushed.p99_us)}`);
      say(memory.value, bytes(process.memory_bytes));
      say(memory.side, process.disk_free_bytes === null ? "" : `${bytes(process.disk_free_bytes)} of disk free`);
      machine.set("memory", bytes(process.memory_bytes));
      machine.set("disk", process.disk_free_bytes === null ? "–"
        : `${bytes(process.disk_free_bytes)} of ${bytes(process.disk_bytes)}`);
      machine.set("files", `${count(process.open_files)} of ${count(process.open_files_max)}`);
      machine.set("cpu", cpu(process.cpu_ms));
      store.set("topics", count(totals.topics));
      store.set("messages", count(totals.messages));
      store.set("delayed", count(totals.delayed));
      store.set("disk", bytes(journal.segment_bytes));
      store.set("memory", bytes(journal.tail_bytes));
      store.set("waiting", bytes(journal.waiting_bytes));
      for (const name of ["sessions", "online", "recovering", "offline"]) clients.set(name, count(totals[name]));
      groups.update(all.attention);
      busy.update(topics);
      const newest = events.rows.slice(-EVENTS).reverse();
      quiet.hidden = newest.length > 0;
      eventLines.show(newest);
      draw();
    },
    close() {
      hour.close();
    },
  };
}

/** Processor time between two looks, in percent of one core. */
function processor() {
  let before = null;
  return (ms) => {
    const now = { ms, at: performance.now() };
    const share = before === null ? null : (100 * (ms - before.ms)) / Math.max(1, now.at - before.at);
    if (before === null || now.at - before.at > 900) before = now;
    return share === null ? "–" : `${Math.max(0, Math.round(share))} % of a core`;
  };
}

/** The groups that most need a look. */
function attention() {
  const summary = h("span", { class: "quiet" });
  const body = h("tbody");
  const empty = h("p", { class: "empty" }, "No groups yet. ", h("a", { href: "#/groups?new=1" }, "Create one."));
  const lines = new Lines(body, () => {
    const link = h("a", { class: "name" });
    const state = h("span", { class: "state" });
    const lag = h("td", { class: "number" });
    const dead = h("td", { class: "number" });
    return {
      element: h("tr", {}, h("td", {}, link), h("td", {}, state), lag, dead),
      update(row) {
        say(link, row.name);
        mark(link, "href", `#/group/${encodeURIComponent(row.name)}`);
        stateOf(state, row);
        say(lag, lagOf(row));
        say(dead, count(row.dead_letters));
        mark(dead, "data-bad", row.dead_letters > 0);
      },
    };
  });
  const head = (name, classes) => h("th", { scope: "col", class: classes }, name);
  const table = h("table", {}, h("thead", {}, h("tr", {}, head("Group"), head("State"),
    head("Not done", "number"), head("Dead letters", "number"))), body);
  return {
    element: h("section", { class: "panel", "aria-label": "Groups" },
      h("header", {}, h("h2", {}, "Groups"), summary, h("a", { href: "#/groups" }, "All groups")), table, empty),
    update(found) {
      if (!found) return;
      lines.show(found.rows);
      table.hidden = found.rows.length === 0;
      empty.hidden = found.rows.length > 0;
      say(summary, found.total === 0 ? "" : `${plural(found.total, "group")}, ${plural(found.dead_letters, "dead letter")}`);
      mark(summary, "data-bad", found.dead_letters > 0);
    },
  };
}

/** The topics that move, fastest first. */
function busiest() {
  const body = h("tbody");
  const none = h("p", { class: "empty" });
  const lines = new Lines(body, () => {
    const spark = sparkline();
    const link = h("a", { class: "name" });
    const [into, out] = [h("td", { class: "number" }), h("td", { class: "number" })];
    return {
      element: h("tr", {}, h("td", {}, link), h("td", { class: "spark-cell wide" }, spark.element), into, out),
      update(row) {
        say(link, row.name);
        mark(link, "href", `#/topic/${encodeURIComponent(row.name)}`);
        say(into, rate(row.messages_per_s));
        say(out, rate(row.messages_out_per_s));
        spark.update(row.recent);
      },
    };
  });
  const head = (name, classes) => h("th", { scope: "col", class: classes }, name);
  const table = h("table", {}, h("thead", {}, h("tr", {}, head("Topic"), head("Last minute", "spark-cell wide"),
    head("In", "number"), head("Out", "number"))), body);
  return {
    element: panel("Busiest topics", h("a", { href: "#/topics?sort=rate" }, "All topics"), table, none),
    update(topics) {
      const rows = topics.rows.filter((row) => row.messages_per_s > 0 || row.messages_out_per_s > 0
        || row.recent.some((points) => points > 0));
      lines.show(rows);
      table.hidden = rows.length === 0;
      none.hidden = rows.length > 0;
      if (topics.total === 0) {
        none.replaceChildren("No topic yet. ", h("a", { href: "#/topics?new=1" }, "Create the first one."));
      } else say(none, "No messages in the last minute.");
    },
  };
}
