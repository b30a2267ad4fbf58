// The settings of a topic, and what changes or destroys it: each asked first, with what will happen.

import { ask, path } from "../api.js";
import { check, dialogue, field } from "../dialog.js";
import { h } from "../dom.js";
import { bytes, count, plural, span } from "../format.js";

const DAY_MS = 86_400_000;
const MIB = 1024 * 1024;

/** The fields of a topic's settings, filled with some; `changes()` gives what a request sends. */
export function fieldsOf(settings) {
  const number = (value, attributes) => h("input", { type: "number", min: "0", step: "any", ...attributes, value: value ?? "" });
  const days = number(settings?.retention.age_ms && settings.retention.age_ms / DAY_MS, { placeholder: "for ever" });
  const most = number(settings?.retention.count, { min: "1", step: "1", placeholder: "no limit" });
  const size = number(settings?.retention.bytes && settings.retention.bytes / MIB, { placeholder: "no limit" });
  const compaction = h("input", { type: "checkbox", checked: Boolean(settings?.compaction) });
  return {
    elements: [
      h("div", { class: "pair" }, field("Keep for (days)", days), field("Keep at most (messages)", most)),
      field("Keep at most (MiB)", size, "Empty fields are no limit. What is beyond a limit is deleted, oldest first."),
      check("Keep only the latest message of each key", compaction),
    ],
    changes: () => ({
      retention: {
        age_ms: days.value ? Math.round(Number(days.value) * DAY_MS) : null,
        count: most.value ? Number(most.value) : null,
        bytes: size.value ? Math.round(Number(size.value) * MIB) : null,
      },
      compaction: compaction.checked,
    }),
  };
}

function described(settings) {
  const retention = [
    settings.retention.age_ms && span(settings.retention.age_ms),
    settings.retention.bytes && bytes(settings.retention.bytes),
    settings.retention.count && plural(settings.retention.count, "message"),
  ].filter(Boolean).join(" or ");
  const rows = {
    Storage: settings.storage === "durable" ? "durable: on disk" : "volatile: in memory only",
    Durability: settings.durability ?? "default of the server",
    "Kept for": retention || "ever",
    Compaction: settings.compaction ? "latest message of each key" : "off",
    "Ids remembered": `${span(settings.dedup.time_ms)}, ${plural(settings.dedup.count, "id")}`,
    "Largest message": settings.max_message_bytes ? bytes(settings.max_message_bytes) : "default of the server",
  };
  return Object.entries(rows).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)));
}

/** The panel, and the buttons for the head of the view. `now()` gives the state that is shown. */
export function settingsOf(topic, now) {
  const address = path`/v1/topics/${topic}`;
  const list = h("dl", { class: "facts" });
  const element = h("section", { class: "panel", "aria-label": "Settings" }, h("header", {}, h("h2", {}, "Settings")), list);
  let settings = null;
  const load = () => ask("GET", address).then((info) => {
    settings = info.settings;
    list.replaceChildren(...described(settings));
  }, () => {
    element.hidden = settings === null;
  });
  load();

  const edit = h("button", { type: "button", onclick: () => change() }, "Edit");
  const purge = h("button", { type: "button", onclick: () => empty() }, "Purge");
  const remove = h("button", { type: "button", class: "danger", onclick: () => destroy() }, "Delete");
  const buttons = h("div", { class: "actions", role: "group", "aria-label": "Actions" }, edit, purge, remove);

  async function change() {
    await load();
    const fields = fieldsOf(settings);
    const work = () => ask("PATCH", address, { json: fields.changes() });
    await dialogue({ title: `Settings of ${topic}`, content: fields.elements, action: "Save", work });
    load();
  }

  async function empty() {
    const { topic: row } = now();
    const kept = row.next - row.first;
    await dialogue({
      title: `Purge ${topic}?`, danger: true, action: "Purge",
      content: [kept === 0 ? "It has no messages now." :
        `Its ${plural(kept, "message")}, seqs ${count(row.first)} to ${count(row.next - 1)} (${bytes(row.bytes)}), are deleted for ever.`,
      "Readers that have not read them get a gap notice. The topic stays, and its seqs go on."],
      // What is published while the question stands is not meant.
      work: () => ask("POST", `${address}/purge?below=${row.next}`),
    });
  }

  async function destroy() {
    const { topic: row, groups, subscribers } = now();
    const kept = row.next - row.first;
    const reading = groups?.rows.map((group) => group.name) ?? [];
    const done = await dialogue({
      title: `Delete ${topic}?`, danger: true, action: "Delete",
      content: [`The topic and its ${plural(kept, "message")} (${bytes(row.bytes)}) are deleted for ever.`,
        ...(subscribers?.matching > 0 ? [`${plural(subscribers.matching, "client")} that follow it are told, and get no more of it.`] : []),
        ...(reading.length > 0 ? [`What these groups have not done of it is lost to them: ${reading.join(", ")}.`] : [])],
      work: () => ask("DELETE", address),
    });
    if (done) location.hash = "#/topics";
  }

  return {
    element, buttons,
    update(row) {
      buttons.hidden = row === null;
      if (row === null) return;
      edit.hidden = !row.may.includes("configure");
      purge.hidden = !row.may.includes("delete") || settings?.storage === "volatile";
      remove.hidden = !row.may.includes("delete");
    },
  };
}
