// Creating, editing, resetting and deleting a group: each in a dialogue that says what will happen.

import { ask, path } from "../api.js";
import { check, dialogue, field } from "../dialog.js";
import { h } from "../dom.js";
import { count, plural, span } from "../format.js";

const MODES = {
  shared: "Shared: members work side by side", keyed: "Keyed: messages of one key in order",
  ordered: "Ordered: all messages in order, one member at a time",
};
const GAPS = { stop: "stop until resumed or reset", continue: "report it and go on" };

/** Fields that can be changed later too. */
function common(settings) {
  const number = (value, attributes) =>
    h("input", { type: "number", min: "1", step: "1", placeholder: "default", value: value ?? "", ...attributes });
  const lease = number(settings && settings.lease_ms / 1000, { step: "any", min: "0.1" });
  const attempts = number(settings?.attempts_max);
  const window = number(settings?.in_flight_max);
  const dead = h("input", { type: "checkbox", checked: settings?.dead_letters ?? true });
  const gap = h("select", {}, Object.entries(GAPS).map(([value, text]) =>
    h("option", { value, selected: value === settings?.on_gap }, text)));
  return {
    elements: [
      h("div", { class: "pair" }, field("Lease (seconds)", lease, "A message that is not acked in that time is handed out again."),
        field("Attempts", attempts, "After the last one it becomes a dead letter.")),
      h("div", { class: "pair" }, field("In flight at most", window), field("When messages are gone", gap)),
      check("Keep messages that failed for the last time as dead letters", dead),
    ],
    // An empty field leaves the setting to the server.
    changes: () => ({
      lease_ms: lease.value ? Math.round(Number(lease.value) * 1000) : null,
      attempts_max: attempts.value ? Number(attempts.value) : null,
      in_flight_max: window.value ? Number(window.value) : null, on_gap: gap.value, dead_letters: dead.checked,
    }),
  };
}

/** Where a group begins, or is reset to: a select with a field, and its text. */
function startField(label) {
  const where = h("select", {},
    h("option", { value: "beginning" }, "The oldest message"), h("option", { value: "now" }, "New messages only"),
    h("option", { value: "time" }, "A time"));
  const time = h("input", { type: "datetime-local", step: "1", "aria-label": "Time" });
  time.hidden = true;
  where.addEventListener("change", () => (time.hidden = where.value !== "time"));
  return {
    elements: [field(label, where), time],
    text: () => (where.value === "time" ? `time:${new Date(time.value).getTime() || 0}` : where.value),
  };
}

/** The dialogue that creates a group and goes there. */
export async function createGroup() {
  const name = h("input", { required: true, maxlength: 255, autocomplete: "off", spellcheck: "false", placeholder: "billing" });
  const source = h("input", { required: true, autocomplete: "off", spellcheck: "false", placeholder: "orders.>" });
  const mode = h("select", {}, Object.entries(MODES).map(([value, text]) => h("option", { value }, text)));
  const start = startField("Start with");
  const rest = common(null);
  const done = await dialogue({
    title: "New group", action: "Create",
    content: [field("Name", name), field("Reads", source, "A topic, or a pattern such as orders.>"),
      field("Mode", mode), ...start.elements, ...rest.elements],
    work: () => ask("PUT", path`/v1/groups/${name.value.trim()}`, {
      json: { source: source.value.trim(), mode: mode.value, start: start.text(), ...rest.changes() },
    }),
  });
  if (done) location.hash = `#/group/${encodeURIComponent(name.value.trim())}`;
}

/** The buttons of a group; `now()` gives it as it is shown. */
export function groupActions(name, now) {
  const address = path`/v1/groups/${name}`;
  const edit = h("button", { type: "button", onclick: () => change() }, "Edit");
  const back = h("button", { type: "button", onclick: () => reset() }, "Reset");
  const remove = h("button", { type: "button", class: "danger", onclick: () => destroy() }, "Delete");

  function change() {
    const fields = common(now().settings);
    return dialogue({
      title: `Settings of ${name}`, content: fields.elements, action: "Save",
      work: () => ask("PATCH", address, { json: fields.changes() }),
    });
  }

  function reset() {
    const group = now();
    const to = startField("Begin again with");
    const force = h("input", { type: "checkbox" });
    const held = group.members.length > 0;
    return dialogue({
      title: `Reset ${name}?`, danger: true, action: "Reset",
      content: [`What it has done so far is forgotten, and it reads ${group.source} from there on: messages may be handed out a second time, or skipped.`,
        ...to.elements,
        ...(held ? [check(`Though it has ${plural(group.members.length, "member")}, which lose what they hold (${count(group.in_flight)} in flight)`, force)] : [])],
      work: () => ask("POST", `${address}/reset?to=${encodeURIComponent(to.text())}${force.checked ? "&force=true" : ""}`),
    });
  }

  async function destroy() {
    const group = now();
    const done = await dialogue({
      title: `Delete ${name}?`, danger: true, action: "Delete",
      content: [`The group forgets how far it is in ${group.source}; the messages there stay.`,
        ...(group.lag > 0 ? [`${plural(group.lag, "message")} are not done.`] : []),
        ...(group.dead_letters > 0 ? [`Its ${plural(group.dead_letters, "dead letter")} are deleted for ever.`] : []),
        ...(group.members.length > 0 ? [`Its ${plural(group.members.length, "member")} are told, and get no more.`] : [])],
      work: () => ask("DELETE", address),
    });
    if (done) location.hash = "#/groups";
  }

  return {
    elements: [edit, back, remove],
    update(group) {
      edit.hidden = !group.may.includes("configure");
      back.hidden = remove.hidden = !group.may.includes("group");
    },
  };
}

/** The settings of a group, as rows for people. */
export function described(settings) {
  const retry = settings.retry.steps_ms
    ? settings.retry.steps_ms.map((each) => span(each)).join(", ")
    : `${span(settings.retry.first_ms)}, growing to ${span(settings.retry.most_ms)}`;
  const rows = {
    Reads: settings.source, Mode: settings.mode, Began: settings.start, Lease: span(settings.lease_ms),
    Attempts: count(settings.attempts_max), "Wait before another attempt": retry,
    "Dead letters": settings.dead_letters ? "kept" : "dropped", "When messages are gone": GAPS[settings.on_gap] ?? settings.on_gap,
    "In flight at most": count(settings.in_flight_max),
  };
  return Object.entries(rows).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)));
}
