// A server that says nothing is noticed, whether it is gone or hangs.

import assert from "node:assert/strict";
import { test } from "./harness.js";

const banner = (page) => page.locator("#silence");

async function isOld(page) {
  await banner(page).getByText(/No data for \d+ s/).waitFor();
  assert.equal(await page.locator("#status").textContent(), "No data");
  const opacity = await page.locator("main").evaluate((main) => getComputedStyle(main).opacity);
  assert.ok(Number(opacity) < 0.6, `the values are at ${opacity}`);
}

async function isFresh(page) {
  await banner(page).waitFor({ state: "hidden" });
  await page.locator("#status[data-state=live]").waitFor();
  const opacity = await page.locator("main").evaluate((main) => getComputedStyle(main).opacity);
  assert.equal(opacity, "1");
}

test("a server that was killed is old news after three seconds", async ({ server, page, shot }) => {
  await page.goto(`${server.url}/#/`);
  await isFresh(page);
  await server.stop("SIGKILL");
  const from = Date.now();
  await isOld(page);
  assert.ok(Date.now() - from < 10_000, "it took too long");
  await shot("silence-killed");
  // The number goes on.
  await banner(page).getByText(/No data for [5-9] s/).waitFor();
  await server.run();
  await isFresh(page);
});

test("a server that hangs is noticed though its connection stands", async ({ server, page, shot }) => {
  await page.goto(`${server.url}/#/topics`);
  await isFresh(page);
  server.process.kill("SIGSTOP");
  try {
    await isOld(page);
    await shot("silence-frozen");
  } finally {
    server.process.kill("SIGCONT");
  }
  await isFresh(page);
});
