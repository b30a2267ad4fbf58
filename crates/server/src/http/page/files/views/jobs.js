// Jobs: how many run and wait, how long they take, who runs them for whom, and the newest of
// them with buttons to cancel and retry.

import { ask, path } from "../api.js";
import { chart } from "../charts.js";
import { h, Lines, mark, say } from "../dom.js";
import { capital, count, micros, moment, rate, stamp } from "../format.js";
import { rangeOf } from "../history.js";

export const nav = "Jobs";
export const title = "Jobs";

/** Jobs that are listed at a time. */
const ROWS = 50;
const STATES = ["running", "ready", "waiting", "dead", "failed", "succeeded", "cancelled"];
const COLOURS = {
  running: "Online", ready: "Recovering", waiting: "Connected", dead: "Error", failed: "Error",
  succeeded: "Online", cancelled: "Offline",
};

export function open(place, page) {
  const chosen = { state: STATES.includes(place.parameters.get("state")) ? place.parameters.get("state") : "" };
  const absent = h("p", { class: "empty" }, "This server leads no jobs: set jobs.enabled.");
  const trouble = h("p", { class: "notice bad", role: "alert", hidden: true });
  const flow = card("In flight", {
    what: "Jobs that ended per second over the last five minutes", series: ["one"], format: rate,
  });
  const run = card("Run time", {
    what: "Mean run time of attempts over the last five minutes", series: ["one"], format: time,
  });
  const wait = card("Waiting time", {
    what: "Mean time that jobs waited for a worker over the last five minutes", series: ["one"], format: time,
  });
  const chips = new Map(["", ...STATES].map((state) => [state, h("button", {
    type: "button", class: "chip", onclick: () => choose(state),
  }, state ? capital(state) : "All")]));
  const body = h("tbody");
  const lines = new Lines(body, (row) => line(row, trouble, read));
  const empty = h("p", { class: "empty", hidden: true }, "There are no such jobs.");
  const summary = h("p", { class: "summary", role: "status" });
  const workers = names("Workers", ["Worker", "Runs", "Takes more"], "No worker is connected.");
  const clients = names("Clients", ["Client", "Not ended", "Running", "At most"], "No client has jobs.");
  const content = h("div", { hidden: true },
    h("div", { class: "cards three" }, flow.element, run.element, wait.element),
    h("div", { class: "tools" }, h("div", { class: "chips", role: "group", "aria-label": "State" }, ...chips.values()), summary),
    trouble,
    h("section", { class: "panel flush", "aria-label": "Jobs" }, h("table", { class: "list" },
      h("thead", {}, h("tr", {}, ["Job", "State"].map((name) => h("th", { scope: "col" }, name)),
        h("th", { scope: "col", class: "wide" }, "Worker"), h("th", { scope: "col", class: "number wide" }, "Attempt"),
        h("th", { scope: "col", class: "number wide" }, "Submitted"),
        h("th", { scope: "col" }, h("span", { class: "unseen" }, "What to do")))), body), empty),
    h("div", { class: "columns names" }, workers.element, clients.element));

  let known = null;
  let reading = false;
  async function read() {
    if (reading) return;
    reading = true;
    try {
      const state = chosen.state ? `&state=${chosen.state}` : "";
      const { jobs } = await ask("GET", `/v1/jobs?limit=${ROWS}${state}`);
      lines.show(jobs.map((job) => ({ ...job, id: job.job_id })));
      empty.hidden = jobs.length > 0;
      body.parentElement.hidden = jobs.length === 0;
    } catch {
      // The server is away: the next change asks again.
      known = null;
    } finally {
      reading = false;
    }
  }

  function choose(state) {
    chosen.state = state;
    page.remember(chosen);
    known = null;
    press();
    read();
  }
  function press() {
    for (const [state, chip] of chips) mark(chip, "aria-pressed", String(state === chosen.state));
  }
  press();

  return {
    element: h("div", { class: "jobs" }, h("div", { class: "lead" }, h("h1", {}, "Jobs")), absent, content),
    query: { show: "jobs" },
    update({ jobs, history }) {
      if (jobs === undefined) return;
      absent.hidden = jobs !== null;
      content.hidden = jobs === null;
      if (jobs === null) return;
      const [axis] = rangeOf("minutes", null, history);
      say(flow.value, `${count(jobs.running)} running`);
      say(flow.side, `${count(jobs.ready)} ready, ${count(jobs.waiting)} waiting, ${count(jobs.dead)} dead`);
      flow.picture.update(axis, history?.jobs_ended);
      say(run.value, time(jobs.run.p50_ms));
      say(run.side, within(jobs.run));
      run.picture.update(axis, history?.job_run_ms);
      say(wait.value, time(jobs.wait.p50_ms));
      say(wait.side, within(jobs.wait));
      wait.picture.update(axis, history?.job_wait_ms);
      say(summary, `${count(jobs.totals.submitted)} submitted, ${count(jobs.totals.succeeded)} succeeded, ` +
        `${count(jobs.totals.resends)} sent again since the server started`);
      workers.update(jobs.workers.map((each) => ({
        id: each.worker_id, quiet: each.pattern ?? "", away: !each.connected,
        values: [count(each.running), count(each.credit)],
      })), jobs.worker_count);
      clients.update(jobs.clients.map((each) => ({
        id: each.client_id, quiet: "", away: false,
        values: [count(each.open), count(each.in_flight), count(each.cap)],
      })), jobs.client_count);
      const now = JSON.stringify([jobs.waiting, jobs.ready, jobs.running, jobs.ended, jobs.dead, jobs.totals]);
      if (known !== now) {
        known = now;
        read();
      }
    },
    close() {},
  };
}

/** Milliseconds with the unit that fits. */
function time(ms) {
  return micros(ms === null || ms === undefined ? null : ms * 1000);
}

function within(times) {
  return times.p95_ms === null ? "none yet" : `95 % within ${time(times.p95_ms)}, 99 % within ${time(times.p99_ms)}`;
}

function card(name, { series, format, what }) {
  const value = h("p", { class: "figure" }, "–");
  const side = h("p", { class: "figure-side" });
  const picture = chart({ what, series, format });
  const element = h("section", { class: "card", "aria-label": name },
    h("header", {}, h("h2", {}, name)), h("div", { class: "figures" }, value, side), picture.element);
  return { element, value, side, picture };
}

/** How a job's state is written, and which colour it has. */
export function stateOf(element, job) {
  say(element, job.cancelling ? "Being cancelled" : capital(job.state));
  mark(element, "data-state", COLOURS[job.state]);
}

/** The buttons that fit a job. After a click `read` shows what has changed, or `trouble` why nothing has. */
export function buttonsFor(id, trouble, read) {
  const button = (name, verb) => {
    const element = h("button", { type: "button", onclick: act }, name);
    async function act() {
      element.disabled = true;
      trouble.hidden = true;
      try {
        await ask("POST", path`/v1/jobs/${id}/${verb}`);
        await read();
      } catch (error) {
        trouble.hidden = false;
        say(trouble, error.message);
      } finally {
        element.disabled = false;
      }
    }
    return element;
  };
  const [cancel, retry] = [button("Cancel", "cancel"), button("Retry", "retry")];
  return {
    elements: [cancel, retry],
    update(job) {
      cancel.hidden = !["waiting", "ready", "running"].includes(job.state) || job.cancelling === true;
      retry.hidden = !["failed", "cancelled", "dead"].includes(job.state);
    },
  };
}

function line(row, trouble, read) {
  const link = h("a", { class: "name", href: `#/job/${row.id}` }, row.exec_name);
  const about = h("span", { class: "quiet" }, row.cron ? `at ${row.cron} for ${row.client_id}` : `for ${row.client_id}`);
  const state = h("span", { class: "state" });
  const worker = h("td", { class: "wide name" });
  const attempt = h("td", { class: "number wide" });
  const buttons = buttonsFor(row.id, trouble, read);
  return {
    element: h("tr", { "data-job": row.id },
      h("td", {}, link, " ", about, h("div", { class: "quiet why" }, row.id)), h("td", {}, state), worker, attempt,
      h("td", { class: "number wide quiet", title: moment(row.submitted_ms) }, stamp(row.submitted_ms)),
      h("td", { class: "number" }, buttons.elements)),
    update(job) {
      stateOf(state, job);
      say(worker, job.worker_id ?? (job.phase === job.state ? "–" : job.phase));
      say(attempt, count(job.attempt));
      buttons.update(job);
    },
  };
}

/** A panel with a line for each name, and numbers behind it. */
function names(name, heads, none) {
  const body = h("tbody");
  const lines = new Lines(body, (row) => {
    const quiet = h("span", { class: "quiet" });
    const cells = row.values.map(() => h("td", { class: "number" }));
    return {
      element: h("tr", {}, h("td", {}, h("span", { class: "name" }, row.id), " ", quiet), cells),
      update(now) {
        say(quiet, [now.quiet, now.away ? "not connected" : ""].filter(Boolean).join(", "));
        now.values.forEach((value, at) => say(cells[at], value));
      },
    };
  });
  const more = h("span", { class: "quiet" });
  const table = h("table", {}, h("thead", {}, h("tr", {}, heads.map((head, at) =>
    h("th", { scope: "col", class: at > 0 && "number" }, head)))), body);
  const empty = h("p", { class: "empty" }, none);
  return {
    element: h("section", { class: "panel", "aria-label": name },
      h("header", {}, h("h2", {}, name), more), table, empty),
    update(rows, all) {
      lines.show(rows);
      table.hidden = rows.length === 0;
      empty.hidden = rows.length > 0;
      say(more, rows.length < all ? `the first ${count(rows.length)} of ${count(all)}` : "");
    },
  };
}
