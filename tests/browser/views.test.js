// Every view at three widths, in light and dark: nothing is cut off, and axe finds no serious fault.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { test, until } from "./harness.js";

const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core"), "utf8");

const VIEWS = ["", "topics", "topic/views.orders", "topic/views.orders?browse=1", "subscribers", "groups", "group/views-billing",
  "jobs", "outbox", "cluster", "events", "access", "nosuch"];

/** What axe finds that is serious or critical: rule, and where. */
async function faults(page) {
  // The page lets no script in but its own; the test does.
  await page.evaluate(axe);
  const found = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ["violations"] }));
  return found.violations.filter(({ impact }) => impact === "serious" || impact === "critical")
    .map(({ id, nodes }) => `${id}: ${nodes.map((node) => node.target.join(" ")).slice(0, 5).join(", ")}`);
}

test("every view is whole and accessible at 375, 768 and 1,280 px, light and dark", async ({ server, page, shot }) => {
  await server.create("views.orders");
  for (let number = 1; number <= 5; number++) await server.publish("views.orders", `{"order":${number}}`, "?key=k");
  await server.ask("PUT", "/v1/groups/views-billing", { json: { source: "views.>", attempts_max: 1 } });
  const all = await server.ask("POST", "/v1/groups/views-billing/fetch?wait_ms=30000&max=2&member=w");
  await server.ask("POST", "/v1/groups/views-billing/terminate", { json: { leases: all.leases, reason: "refused" } });
  await until("there are dead letters", async () => (await server.ask("GET", "/v1/groups/views-billing")).dead_letters > 0);
  for (const scheme of ["light", "dark"]) {
    await page.emulateMedia({ colorScheme: scheme });
    for (const width of [375, 768, 1280]) {
      await page.setViewportSize({ width, height: 900 });
      for (const view of VIEWS) {
        await page.goto(`${server.url}/#/${view}`);
        await page.locator("main[data-ready]").waitFor();
        if (view.startsWith("group/")) await page.locator("li[data-seq]:visible").first().waitFor();
        if (view.startsWith("topic/")) await page.locator("li[data-seq]:visible").first().waitFor();
        const where = `#/${view} at ${width} px, ${scheme}`;
        await shot(`view-${view.replaceAll(/\W+/g, "-") || "overview"}-${width}-${scheme}`);
        const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
        assert.ok(wide <= 0, `${where} is ${wide} px too wide`);
        assert.deepEqual(await faults(page), [], where);
      }
    }
  }
}, { allowed: /status of 40\d/ });

test("dialogues are accessible too", async ({ server, page }) => {
  await page.goto(`${server.url}/#/groups?new=1`);
  await page.getByRole("dialog", { name: "New group" }).waitFor();
  assert.deepEqual(await faults(page), []);
  await page.goto(`${server.url}/#/topics?new=1`);
  await page.getByRole("dialog", { name: "New topic" }).waitFor();
  assert.deepEqual(await faults(page), []);
});
