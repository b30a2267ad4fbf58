// Jobs on the page: what runs, waits and is dead, per worker and client, with buttons; and the
// output of a job as it is written.

import assert from "node:assert/strict";
import { test, until } from "./harness.js";

const submit = async (server, job) => (await server.ask("POST", "/v1/jobs", { json: job })).job_id;
const take = (server, worker, exec) =>
  server.ask("POST", `/v1/workers/${worker}/take?exec=${exec}&wait_ms=30000`);
const say = (server, worker, verb, job, more = {}) =>
  server.ask("POST", `/v1/workers/${worker}/${verb}`, {
    json: { job_id: job.job_id, attempt: job.attempt, epoch: job.epoch, ...more },
  });

test("jobs show what runs where, for whom, and how long it takes", async ({ server, page, shot }) => {
  const first = await submit(server, { exec: "render", client: "<b>studio</b>", args: ["one"] });
  await submit(server, { exec: "render", client: "<b>studio</b>" });
  await page.goto(`${server.url}/#/jobs`);
  const row = page.locator(`tr[data-job="${first}"]`);
  await row.getByText("Ready", { exact: true }).waitFor();
  // What people call themselves is shown as text.
  await page.getByRole("region", { name: "Clients" }).getByText("<b>studio</b>").waitFor();

  const job = await take(server, "w-1", "render");
  assert.equal(job.job_id, first);
  await row.getByText("Running", { exact: true }).waitFor();
  await page.getByRole("region", { name: "Workers" }).getByText("w-1").waitFor();
  await page.getByRole("region", { name: "In flight" }).getByText("1 running").waitFor();
  await shot("jobs");
  await say(server, "w-1", "complete", job, { stdout: "done\n" });
  await row.getByText("Succeeded", { exact: true }).waitFor();
  await page.getByRole("region", { name: "Run time" }).getByText(/95 % within/).waitFor();

  await page.getByRole("button", { name: "Succeeded", exact: true }).click();
  await until("one is left", async () => (await page.locator("tr[data-job]").count()) === 1);
  assert.match(page.url(), /state=succeeded/);
});

test("jobs are cancelled, retried and looked at by buttons and links", async ({ server, page, shot }) => {
  const id = await submit(server, { exec: "mail", attempts_max: 1, args: ["<i>a</i>"] });
  await page.goto(`${server.url}/#/jobs`);
  const row = page.locator(`tr[data-job="${id}"]`);
  await row.getByRole("button", { name: "Cancel" }).click();
  await row.getByText("Cancelled", { exact: true }).waitFor();
  await row.getByRole("button", { name: "Retry" }).click();
  await row.getByText("Ready", { exact: true }).waitFor();

  // It is given up, and its page is opened.
  let job = await take(server, "w-2", "mail");
  await say(server, "w-2", "fail", job, { retryable: true, stderr: "no <server>\n", reason: "no answer" });
  await row.getByText("Dead", { exact: true }).waitFor();
  await row.getByRole("link", { name: "mail" }).click();
  await page.getByRole("heading", { name: id }).waitFor();
  await page.getByText("no <server>").waitFor();
  await page.locator(".facts div", { hasText: "Arguments" }).getByText("<i>a</i>").waitFor();
  await shot("job-dead");

  // Tried again, what it writes comes by itself, and so does its end.
  await page.getByRole("button", { name: "Retry" }).click();
  job = await take(server, "w-2", "mail");
  await say(server, "w-2", "output", job, { text: "half of it\n" });
  await page.getByText("half of it").waitFor();
  await page.locator(".lead").getByText("Running", { exact: true }).waitFor();
  await say(server, "w-2", "output", job, { text: "the rest\n", stream: "stderr" });
  await page.locator(".output .stderr").getByText("the rest").waitFor();
  await shot("job-running");
  await say(server, "w-2", "complete", job, { stdout: "half of it\nall\n" });
  await page.locator(".lead").getByText("Succeeded", { exact: true }).waitFor();
  await page.locator(".output").getByText(/half of it\s+all/).waitFor();
  await page.getByRole("button", { name: "Retry" }).waitFor({ state: "hidden" });
});

test("the views of jobs are there in light and dark, wide and narrow", async ({ server, page, shot }) => {
  const id = await submit(server, { exec: "seen", args: ["a".repeat(200)] });
  for (const [scheme, width] of [["light", 1280], ["dark", 1280], ["light", 360]]) {
    await page.emulateMedia({ colorScheme: scheme });
    await page.setViewportSize({ width, height: 844 });
    for (const view of ["jobs", `job/${id}`]) {
      await page.goto(`${server.url}/#/${view}`);
      await page.locator("main[data-ready]").waitFor();
      await page.getByText("Ready", { exact: true }).first().waitFor();
      const overflow = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
      assert.ok(overflow <= 0, `${view} is ${overflow} px too wide at ${width}`);
      await shot(`view-${view.split("/")[0]}-${scheme}-${width}`);
    }
  }
  await page.goto(`${server.url}/#/job/00000000-0000-4000-8000-000000000000`);
  await page.getByText("There is no such job").waitFor();
}, { allowed: /status of 404/ });
