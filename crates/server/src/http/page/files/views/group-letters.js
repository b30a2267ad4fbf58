// Dead letters of a group: shown, redriven, deleted. What concerns many, or destroys, is asked first.

import { ask, path } from "../api.js";
import { dialogue } from "../dialog.js";
import { h, Lines, say } from "../dom.js";
import { count, moment, plural, stamp } from "../format.js";

/** Dead letters that are shown at a time. */
const LETTERS = 50;
/** Characters of a body that are shown. */
const BODY_CHARS = 500;

/** A panel, read again whenever their number changes. */
export function lettersOf(group) {
  const address = path`/v1/groups/${group}/dead-letters`;
  const summary = h("span", { class: "quiet" });
  const all = h("button", { type: "button", onclick: () => driveAll() }, "Redrive all");
  const none = h("button", { type: "button", class: "danger", onclick: () => removeAll() }, "Delete all");
  const actions = h("span", { class: "end", hidden: true }, all, none);
  const list = h("ol", { class: "letters" });
  const lines = new Lines(list, (row) => letter(row));
  const empty = h("p", { class: "empty" }, "There are none.");
  const answer = h("p", { class: "answer", role: "status" });
  const trouble = h("p", { class: "notice bad", role: "alert", hidden: true });
  let known = null;
  let may = false;
  let total = 0;

  async function read() {
    try {
      const page = await ask("GET", `${address}?limit=${LETTERS}`);
      lines.show(page.letters.map((each) => ({ ...each, id: each.seq })));
      empty.hidden = page.letters.length > 0;
    } catch {
      // The group is gone, or the server is away: the next change asks again.
      known = null;
    }
  }

  const moved = (done) => say(answer, `${plural(done.moved, "letter")} redriven.`);

  async function drive(button, row) {
    button.disabled = true;
    trouble.hidden = true;
    try {
      moved(await ask("POST", `${address}/redrive?from=${row.seq}&to=${row.seq}`));
    } catch (error) {
      trouble.hidden = false;
      say(trouble, error.message);
    } finally {
      button.disabled = false;
    }
  }

  async function driveAll() {
    const done = await dialogue({
      title: `Redrive all dead letters of ${group}?`, action: "Redrive all",
      content: `${plural(total, "message")} are handed out to members again, each with all its attempts.`,
      work: () => ask("POST", `${address}/redrive`),
    });
    if (done) moved(done);
  }

  async function removeAll() {
    const done = await dialogue({
      title: `Delete all dead letters of ${group}?`, danger: true, action: "Delete all",
      content: `${plural(total, "dead letter")} are deleted for ever. The messages in their own topics stay.`,
      work: () => ask("DELETE", `${address}?all=true`),
    });
    if (done) say(answer, `${plural(done.removed, "letter")} deleted.`);
  }

  async function remove(row) {
    const done = await dialogue({
      title: "Delete this dead letter?", danger: true, action: "Delete",
      content: `Message ${count(row.origin_seq)} of ${row.topic} is not handed out by ${group} any more. The message in its topic stays.`,
      work: () => ask("DELETE", `${address}/${row.seq}`),
    });
    if (done) say(answer, "1 letter deleted.");
  }

  function letter(row) {
    const again = h("button", { type: "button", onclick: () => drive(again, row) }, "Redrive");
    const end = h("button", { type: "button", onclick: () => remove(row) }, "Delete");
    const text = row.text ?? (row.json === undefined ? row.base64 ?? "" : JSON.stringify(row.json));
    const origin = `${row.topic}, seq ${count(row.origin_seq)}${row.key ? `, key ${row.key}` : ""}`;
    return {
      element: h("li", { "data-seq": row.seq },
        h("div", { class: "letter" },
          h("p", { class: "meta" }, h("span", {}, origin),
            h("time", { title: moment(row.died_ms) }, `${plural(row.attempts, "attempt")}, died ${stamp(row.died_ms)}`)),
          row.error && h("p", { class: "why bad" }, row.error),
          h("pre", { class: "body" }, text.length > BODY_CHARS ? `${text.slice(0, BODY_CHARS)}…` : text)),
        h("div", { class: "actions" }, again, end)),
      update() {},
    };
  }

  return {
    element: h("section", { class: "panel", "aria-label": "Dead letters" },
      h("header", {}, h("h2", {}, "Dead letters"), summary, actions), answer, trouble, list, empty),
    update(now) {
      total = now.dead_letters;
      may = now.may.includes("dlq");
      say(summary, [total > LETTERS ? `the first ${LETTERS} of ${count(total)}` : plural(total, "letter"),
        now.redriving ? "being redriven" : ""].filter(Boolean).join(", "));
      actions.hidden = total === 0 || !may;
      if (!may) return void say(empty, "You may not see them: that needs the right dlq on this group.");
      if (known !== total) {
        known = total;
        read();
      }
    },
  };
}
