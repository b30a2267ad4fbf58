// One job: where it is, what it was given, what it writes as it writes it, and what it left.

import { ask, path } from "../api.js";
import { h, mark, say } from "../dom.js";
import { bytes, count, moment, span } from "../format.js";
import { buttonsFor, stateOf } from "./jobs.js";

export const title = (place) => `Job ${place.name ?? ""}`;

/** Characters of output that stay on the page. */
const OUTPUT_CHARS = 64 * 1024;

const FIGURES = {
  client: "Client", exec: "Executable", args: "Arguments", files: "Files", priority: "Priority",
  cron: "Schedule", submitted: "Submitted", until: "Not before", attempt: "Attempt", failures: "Failures",
  lost: "Workers lost", worker: "Worker", started: "Started", ended: "Ended", status: "Result",
};

export function open(place) {
  const id = place.name ?? "";
  const state = h("span", { class: "state" });
  const what = h("span", { class: "quiet" });
  const missing = h("p", { class: "notice bad", role: "alert", hidden: true },
    "There is no such job. Ended jobs are forgotten after a time.");
  const trouble = h("p", { class: "notice bad", role: "alert", hidden: true });
  const values = {};
  const figures = h("dl", { class: "facts" }, Object.entries(FIGURES).map(([key, label]) => {
    values[key] = h("dd", {}, "–");
    return h("div", {}, h("dt", {}, label), values[key]);
  }));
  const buttons = buttonsFor(id, trouble, read);
  const output = tail(id, () => read());
  let job = null;
  let reading = false;

  async function read() {
    if (reading) return;
    reading = true;
    try {
      job = await ask("GET", path`/v1/jobs/${id}`);
      show();
      output.follow(job);
    } catch (error) {
      missing.hidden = error.status !== 404 && error.status !== 400;
      if (!missing.hidden) job = { gone: true };
    } finally {
      reading = false;
    }
  }

  function show() {
    stateOf(state, job);
    say(what, job.phase === job.state ? "" : job.phase);
    buttons.update(job);
    const time = (ms) => (ms === undefined ? "–" : moment(ms));
    const files = Object.entries(job.files).map(([name, size]) => `${name} (${bytes(size)})`);
    const shown = {
      client: job.client_id, exec: job.exec_name, args: job.args.join(" ") || "none",
      files: files.join(", ") || "none", priority: count(job.priority), cron: job.cron ?? job.schedule_id ?? "–",
      submitted: time(job.submitted_ms), until: time(job.not_before_ms), attempt: count(job.attempt),
      failures: count(job.failures), lost: count(job.lost_workers), worker: job.worker_id ?? "–",
      started: time(job.started_ms), ended: time(job.ended_ms), status: job.result ? ending(job.result) : "–",
    };
    for (const [key, text] of Object.entries(shown)) say(values[key], text);
  }

  read();
  return {
    element: h("div", { class: "group job" },
      h("p", { class: "back" }, h("a", { href: "#/jobs" }, "← Jobs")),
      h("div", { class: "lead" }, h("h1", { class: "name" }, id), h("p", {}, state, what), buttons.elements),
      missing, trouble,
      h("section", { class: "panel" }, h("header", {}, h("h2", {}, "How it stands")), figures),
      output.element),
    query: { show: "," },
    update() {
      // An ended job changes only by a command.
      if (job === null || !(job.gone || job.ended_ms)) read();
    },
    close() {
      output.stop();
    },
  };
}

/** How a job ended, in words. */
function ending(result) {
  return [result.status, result.exit_code === undefined ? "" : `exit code ${result.exit_code}`,
    result.signal === undefined ? "" : `signal ${result.signal}`, result.reason ?? "",
    result.run_ms === undefined ? "" : span(result.run_ms)].filter(Boolean).join(", ");
}

/** What the job writes: as it writes it while it runs, and from its result afterwards. */
function tail(id, ended) {
  const text = h("pre", { class: "output", tabindex: 0, "aria-label": "Output" });
  const empty = h("p", { class: "empty" }, "It has written nothing.");
  let source = null;
  let shown = null;

  function clear() {
    text.replaceChildren();
    empty.hidden = false;
  }
  function write(stream, piece) {
    if (piece === "") return;
    const atEnd = text.scrollTop + text.clientHeight >= text.scrollHeight - 4;
    text.append(h("span", { class: stream }, piece));
    while (text.textContent.length > OUTPUT_CHARS && text.childNodes.length > 1) text.firstChild.remove();
    empty.hidden = true;
    if (atEnd) text.scrollTop = text.scrollHeight;
  }
  function stop() {
    source?.close();
    source = null;
  }

  return {
    element: h("section", { class: "panel", "aria-label": "Output" },
      h("header", {}, h("h2", {}, "Output")), text, empty),
    stop,
    follow(job) {
      mark(text, "data-running", !job.ended_ms);
      if (job.ended_ms) {
        stop();
        if (shown === job.ended_ms) return;
        shown = job.ended_ms;
        clear();
        write("stdout", job.result?.stdout ?? "");
        write("stderr", job.result?.stderr ?? "");
        return;
      }
      shown = null;
      if (source) return;
      source = new EventSource(path`/v1/jobs/${id}/follow`);
      // After a lost connection all that is kept comes again.
      source.addEventListener("open", clear);
      source.addEventListener("output", (event) => {
        const piece = JSON.parse(event.data);
        write(piece.stream, piece.text);
      });
      source.addEventListener("result", () => {
        stop();
        ended();
      });
      source.addEventListener("error", () => {
        // A browser comes back by itself, unless the server answered with an error.
        if (source?.readyState === EventSource.CLOSED) stop();
      });
    },
  };
}
