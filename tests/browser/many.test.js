// Ten thousand topics are as quick as ten.

import assert from "node:assert/strict";
import { test, until } from "./harness.js";

const TOPICS = 10_000;
/** A generous limit for a loaded machine; it is some milliseconds on an idle one. */
const BLOCKED_MS_MAX = 500;

test("with 10,000 topics the page stays quick", async ({ server, page, shot }) => {
  const names = Array.from({ length: TOPICS }, (_, at) => `many.t${String(at).padStart(5, "0")}`);
  const queue = [...names];
  await Promise.all(Array.from({ length: 64 }, async () => {
    for (let name = queue.pop(); name; name = queue.pop()) await server.create(name);
  }));
  await page.goto(`${server.url}/#/topics`);
  await page.getByText("10,000 topics").waitFor();
  assert.equal(await page.locator("tbody tr").count(), 50);

  // Every line changes every second now; the page must still answer at once.
  let publishing = true;
  const busy = (async () => {
    for (let at = 0; publishing; at = (at + 1) % 200) await server.publish(names[at], "x");
  })();
  await page.evaluate(() => {
    window.longest = 0;
    new PerformanceObserver((list) => {
      for (const entry of list.getEntries()) window.longest = Math.max(window.longest, entry.duration);
    }).observe({ entryTypes: ["longtask"] });
  });
  await page.getByLabel("Filter topics").fill("t09");
  await page.getByText("1,000 of 10,000 topics").waitFor();
  await page.getByRole("button", { name: "Next" }).click();
  await page.getByText("Page 2 of 20").waitFor();
  await page.getByLabel("Filter topics").fill("");
  await page.getByRole("button", { name: "In", exact: true }).click();
  await until("the busiest come first", async () =>
    /many\.t00[01]\d\d/.test(await page.locator("tbody tr").first().textContent()));
  await page.getByRole("button", { name: "Size" }).click();
  await page.locator("th[aria-sort=descending]").getByText("Size").waitFor();
  await shot("many-topics");
  publishing = false;
  await busy;
  const longest = await page.evaluate(() => window.longest);
  assert.ok(longest < BLOCKED_MS_MAX, `the page was blocked for ${longest} ms`);

  // And what a viewer is sent is bounded by what it asked to see.
  const state = await (await fetch(`${server.url}/?show=topics`, { headers: { accept: "application/json" } })).text();
  assert.ok(state.length < 64 * 1024, `${state.length} bytes`);
});
