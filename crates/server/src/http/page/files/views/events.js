// What the broker says about itself, and each of it as a sentence.

import { h, Lines, say } from "../dom.js";
import { count, moment, plural, stamp } from "../format.js";

export const nav = "Events";
export const title = "Events";

const range = (event) => `${count(event.from)} to ${count(event.to)}`;
const who = (event) => `Subscriber ${event.subscriber} of ${event.pattern}`;

const member = (event) => `Member ${event.member || "without a name"}`;

const sentences = {
  "topic.created": (event) => `Topic ${event.topic} was created.`,
  "topic.configured": (event) => `Topic ${event.topic} was configured.`,
  "topic.deleted": (event) => `Topic ${event.topic} was deleted.`,
  "topic.trimmed": (event) => `Messages ${range(event)} of ${event.topic} are gone (${event.reason}).`,
  "subscription.added": (event) => `${who(event)} started.`,
  "subscription.removed": (event) => `${who(event)} ended.`,
  "recovery.started": (event) => `${who(event)} reads history, ${range(event)}.`,
  "recovery.done": (event) => `${who(event)} is live.`,
  "delivery.gap": (event) =>
    `Subscriber ${event.subscriber} received a gap notice${event.topic ? ` in ${event.topic}` : ""}` +
    `${event.from === null ? "" : `, ${range(event)}`} (${event.reason}).`,
  "delayed.dropped": (event) => `A delayed message for ${event.topic} was dropped: the topic is gone.`,
  "journal.sealed": () => "The newest messages were written to a segment.",
  "journal.collected": () => "Dead data was dropped.",
  "journal.failed": (event) => `The journal takes no more messages: ${event.why}`,
  "group.created": (event) => `Group ${event.group} was created.`,
  "group.configured": (event) => `Group ${event.group} was configured.`,
  "group.deleted": (event) => `Group ${event.group} was deleted.`,
  "group.paused": (event) => `Group ${event.group} was paused.`,
  "group.resumed": (event) => `Group ${event.group} was resumed.`,
  "group.reset": (event) => `Group ${event.group} was reset to position ${count(event.floor)}.`,
  "group.joined": (event) => `${member(event)} joined group ${event.group}.`,
  "group.left": (event) => `${member(event)} left group ${event.group}.`,
  "group.expired": (event) =>
    `The lease of ${plural(event.count, "message")} of group ${event.group} ran out` +
    `${event.member ? ` (${event.member})` : ""}.`,
  "group.dropped": (event) =>
    `Group ${event.group} dropped ${plural(event.count, "message")} after the last attempt.`,
  "group.dead": (event) => `${plural(event.count, "message")} of group ${event.group} became dead letters.`,
  "group.gap": (event) =>
    `Messages${event.topic ? ` of ${event.topic}` : ""} are gone that group ${event.group} had not done ` +
    `(${event.reason})${event.stopped ? "; it stopped" : ""}.`,
  "group.redriven": (event) => `${plural(event.count, "dead letter")} of group ${event.group} redriven.`,
  "group.redrive-ended": (event) =>
    `The redrive of group ${event.group} ended${event.why ? `: ${event.why}` : ""}.`,
  "job.submitted": (event) => `Job ${event.job} of ${event.client} was submitted: ${event.exec}.`,
  "job.started": (event) => `Attempt ${count(event.attempt)} of job ${event.job} (${event.exec}) began.`,
  "job.again": (event) => `Attempt ${count(event.attempt)} of job ${event.job} (${event.exec}) did not do; another follows.`,
  "job.ended": (event) => `Job ${event.job} (${event.exec}) ended: ${event.how}.`,
  "job.dead": (event) => `Job ${event.job} (${event.exec}) was given up: ${event.how}.`,
  "publish.rejected": (event) => `A publish to ${event.topic} was refused (${event.reason}).`,
};

/** An event in words. */
export function sentence(event) {
  const words = sentences[event.event];
  if (words) return words(event);
  const { id: _, event: kind, time_ms: __, ...rest } = event;
  return `${kind} ${JSON.stringify(rest)}`;
}

export function open(place, page) {
  const filter = h("input", {
    type: "search", placeholder: "Filter events", "aria-label": "Filter events",
    value: place.parameters.get("filter") ?? "", autocomplete: "off", spellcheck: "false",
  });
  const summary = h("p", { class: "summary" });
  const list = h("ol", { class: "events large" });
  const empty = h("p", { class: "empty" });
  const lines = new Lines(list, (row) => ({
    element: h("li", {}, h("time", { title: moment(row.time_ms) }, stamp(row.time_ms)),
      h("code", { class: "kind", "data-kind": row.event.split(".")[0] }, row.event),
      h("span", {}, sentence(row))),
    update() {},
  }));
  let rows = [];
  let total = 0;
  const show = () => {
    const wanted = filter.value.trim().toLowerCase();
    const found = rows.filter((row) =>
      `${row.event} ${sentence(row)}`.toLowerCase().includes(wanted)).reverse();
    lines.show(found);
    empty.hidden = found.length > 0;
    say(empty, total === 0 ? "No events since this page was opened." : "No event matches.");
    say(summary, total === 0 ? "" : `${plural(total, "event")} since a page was opened` +
      (found.length < total ? `, ${count(found.length)} shown` : ""));
  };
  filter.addEventListener("input", () => {
    page.remember({ filter: filter.value });
    show();
  });
  return {
    element: h("div", {},
      h("div", { class: "lead" }, h("h1", {}, "Events")),
      h("div", { class: "tools" }, filter, summary),
      h("section", { class: "panel flush" }, list, empty)),
    query: { show: "events" },
    update({ events }) {
      if (!events) return;
      rows = events.rows;
      total = events.total;
      show();
    },
  };
}
