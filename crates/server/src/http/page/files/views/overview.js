// What is going on, at a glance.

import { chart, sparkline } from "../charts.js";
import { h, Lines, mark, say } from "../dom.js";
import { byteRate, bytes, capital, clock, count, micros, plural, rate, span } from "../format.js";
import { sentence } from "./events.js";

export const nav = "Overview";
export const title = "Overview";

const BUSIEST = 8;
const EVENTS = 9;

function card(name, { series, format, what, legend }) {
  const value = h("p", { class: "figure" }, "–");
  const side = h("p", { class: "figure-side" });
  const picture = chart({ what, series, format });
  const keys = legend?.map((text, at) =>
    h("span", { class: `key ${series[at]}` }, text));
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

export function open() {
  const state = h("span", { class: "state" }, "…");
  const about = h("span", { class: "quiet" });
  const trouble = h("p", { class: "notice bad", role: "alert", hidden: true });
  const messages = card("Messages in", {
    what: "Messages per second over the last five minutes", series: ["one"], format: rate,
  });
  const traffic = card("Traffic", {
    what: "Bytes in and out per second over the last five minutes",
    series: ["one", "two"], format: byteRate, legend: ["in", "out"],
  });
  const flush = card("Flush time", {
    what: "Time of flushes over the last five minutes", series: ["one", "two"],
    format: micros, legend: ["median", "99 %"],
  });
  const recovery = card("Recovery", {
    what: "Bytes of history read per second over the last five minutes",
    series: ["one"], format: byteRate,
  });
  const store = facts({
    topics: "Topics", messages: "Messages accepted", position: "Last position",
    delayed: "Delayed messages", segments: "Segments", disk: "Bytes in segments",
    memory: "Newest in memory", waiting: "Waiting to be written", written: "Written since start",
  });
  const clients = facts({
    sessions: "Sessions", online: "Online", recovering: "Recovering", connected: "Connected",
    offline: "Recently disconnected",
  });
  const busiest = h("tbody");
  const none = h("tr", {}, h("td", { colspan: 3, class: "empty" }, "No topic yet. ",
    h("a", { href: "#/topics?new=1" }, "Create the first one.")));
  const lines = new Lines(busiest, () => {
    const spark = sparkline();
    const link = h("a", { class: "name" });
    const speed = h("td", { class: "number" });
    return {
      element: h("tr", {}, h("td", {}, link), h("td", { class: "spark-cell" }, spark.element), speed),
      update(row) {
        say(link, row.name);
        mark(link, "href", `#/topic/${encodeURIComponent(row.name)}`);
        say(speed, rate(row.messages_per_s));
        spark.update(row.recent);
      },
    };
  });
  const said = h("ol", { class: "events" });
  const quiet = h("p", { class: "empty" }, "No events yet.");
  const eventLines = new Lines(said, (row) => ({
    element: h("li", {}, h("time", {}, clock(row.time_ms)), h("span", {}, sentence(row))),
    update() {},
  }));

  const element = h("div", { class: "overview" },
    h("div", { class: "lead" }, h("h1", {}, "Overview"), h("p", {}, state, about)),
    trouble,
    h("div", { class: "cards" },
      messages.element, traffic.element, flush.element, recovery.element),
    h("div", { class: "columns" },
      h("section", { class: "panel" },
        h("header", {}, h("h2", {}, "Busiest topics"), h("a", { href: "#/topics?sort=rate" }, "All topics")),
        h("table", {}, h("thead", { class: "unseen" }, h("tr", {}, h("th", { scope: "col" }, "Topic"),
          h("th", { scope: "col" }, "Last minute"), h("th", { scope: "col" }, "Messages per second"))), busiest)),
      h("section", { class: "panel" },
        h("header", {}, h("h2", {}, "Events"), h("a", { href: "#/events" }, "All events")), said, quiet),
      h("section", { class: "panel" }, h("header", {}, h("h2", {}, "Store")), store.element),
      h("section", { class: "panel" },
        h("header", {}, h("h2", {}, "Subscribers"), h("a", { href: "#/subscribers" }, "All subscribers")),
        clients.element)));

  return {
    element,
    query: { show: "overview,topics,events", sort: "rate", rows: BUSIEST },
    update({ server, totals, rates, history, flush: flushed, recovery: recovering, journal, topics, events }) {
      if (!totals) return;
      say(state, capital(server.state));
      mark(state, "data-state", server.state);
      say(about, `gapless ${server.version}, up ${span(Date.now() - server.since_ms)}, store ${server.epoch}`);
      trouble.hidden = !server.trouble && !journal.full;
      say(trouble, server.trouble ? `The journal takes no more messages: ${server.trouble}`
        : journal.full ? "The disk is full: messages wait until there is room." : "");
      say(messages.value, rate(rates.messages_in));
      say(messages.side, `${count(totals.messages)} so far`);
      messages.picture.update(history.messages_in);
      say(traffic.value, byteRate(rates.bytes_in));
      say(traffic.side, `${byteRate(rates.bytes_out)} out`);
      traffic.picture.update(history.bytes_in, history.bytes_out);
      say(flush.value, micros(flushed.p50_us));
      say(flush.side, flushed.p99_us === null ? "no flush yet" : `99 % within ${micros(flushed.p99_us)}`);
      flush.picture.update(history.flush_p50_us, history.flush_p99_us);
      say(recovery.value, recovering.recovering === 0 ? "None" : plural(recovering.recovering, "subscriber"));
      say(recovery.side, recovering.waiting > 0 ? `${plural(recovering.waiting, "request")} waiting`
        : `${bytes(recovering.recovered_bytes)} so far`);
      recovery.picture.update(history.recovered_bytes);
      store.set("topics", count(totals.topics));
      store.set("messages", count(totals.messages));
      store.set("position", count(totals.position));
      store.set("delayed", count(totals.delayed));
      store.set("segments", count(journal.segments));
      store.set("disk", bytes(journal.segment_bytes));
      store.set("memory", bytes(journal.tail_bytes));
      store.set("waiting", bytes(journal.waiting_bytes));
      store.set("written", bytes(journal.written_bytes));
      for (const name of ["sessions", "online", "recovering", "connected", "offline"]) {
        clients.set(name, count(totals[name]));
      }
      lines.show(topics.rows);
      if (topics.total === 0) busiest.append(none);
      else none.remove();
      const newest = events.rows.slice(-EVENTS).reverse();
      quiet.hidden = newest.length > 0;
      eventLines.show(newest);
    },
  };
}
