// The page as people use it: make a topic, publish, see it arrive, lose the connection.

import assert from "node:assert/strict";
import { join } from "node:path";
import { artefacts, test, until } from "./harness.js";

const seqs = (page) =>
  page.$$eval(".messages li[data-seq]", (lines) => lines.map((line) => Number(line.dataset.seq)).reverse());
const upTo = (last, first = 1) => Array.from({ length: last - first + 1 }, (_, at) => first + at);

test("a topic is made, a message published, and it arrives", async ({ server, page, shot }) => {
  await page.goto(`${server.url}/#/topics`);
  await page.getByRole("button", { name: "New topic" }).click();
  await page.getByLabel("Name").fill("browser.first");
  await page.getByLabel("Keep only the latest").check();
  await shot("new-topic");
  await page.getByRole("button", { name: "Create" }).click();
  await page.getByRole("heading", { name: "browser.first" }).waitFor();

  // What is published is shown as text, whatever it looks like.
  const body = "<img src=x onerror=alert(1)> & friends";
  await page.getByLabel("Key", { exact: true }).fill("k1");
  await page.getByText("Headers").first().click();
  await page.getByLabel("Headers", { exact: true }).fill("source: browser");
  await page.getByLabel("Body", { exact: true }).fill(body);
  await page.getByRole("button", { name: "Publish" }).click();
  await page.getByText("Accepted as seq 1").waitFor();
  const line = page.locator(".messages li[data-seq='1']");
  await line.getByText(body).waitFor();
  assert.match(await line.textContent(), /k1.*source: browser/);
  assert.equal(await page.locator(".messages img").count(), 0);
  await page.locator(".follow .state[data-state=live]").waitFor();
  await page.getByText("seqs 1 to 1").waitFor();
  await shot("topic");

  // The server has it, with its settings.
  const made = await server.ask("GET", "/v1/topics/browser.first");
  assert.ok(made.settings.compaction);
  assert.equal(made.next, 2);
});

test("errors are told in words", async ({ server, page }) => {
  await page.goto(`${server.url}/#/topics?new=1`);
  await page.getByLabel("Name").fill("no..name");
  await page.getByRole("button", { name: "Create" }).click();
  await page.locator("dialog .notice", { hasText: "no..name" }).waitFor();
  await page.getByRole("button", { name: "Cancel" }).click();
  await page.goto(`${server.url}/#/topic/not.there`);
  await page.getByText("There is no such topic").waitFor();
}, { allowed: /status of 4\d\d/ });

for (const signal of ["SIGTERM", "SIGKILL"]) {
  test(`after ${signal} and a restart nothing is lost and nothing comes twice`, async ({ server, page, shot }) => {
    const topic = `browser.cut.${signal.toLowerCase()}`;
    await server.create(topic);
    for (let number = 1; number <= 5; number++) await server.publish(topic, `before ${number}`);
    await page.goto(`${server.url}/#/topic/${topic}`);
    await page.locator(".messages li[data-seq='5']").waitFor();

    await server.stop(signal);
    await page.locator(".follow .state[data-state=connecting]").waitFor();
    await page.locator("#status[data-state=connecting]").waitFor();
    await shot(`cut-${signal}`);
    await server.run();
    for (let number = 6; number <= 25; number++) await server.publish(topic, `after ${number}`);

    await page.locator(".messages li[data-seq='25']").waitFor();
    await page.locator(".follow .state[data-state=live]").waitFor();
    await page.locator("#status[data-state=live]").waitFor();
    assert.deepEqual(await seqs(page), upTo(25));
    const list = page.locator(".messages");
    assert.equal(await list.getAttribute("data-count"), "25");
    assert.equal(await list.getAttribute("data-holes"), "0");
    assert.equal(await list.getAttribute("data-repeats"), "0");
    await shot(`resumed-${signal}`);
    // While it opens its folder the server says 503, and the browser notes that it did.
  }, { allowed: /status of 503/ });
}

test("what is gone is shown as a gap", async ({ server, page, shot }) => {
  await server.create("browser.gap");
  for (let number = 1; number <= 9; number++) await server.publish("browser.gap", `${number}`);
  await server.ask("POST", "/v1/topics/browser.gap/purge?below=6");
  await page.goto(`${server.url}/#/topic/browser.gap`);
  await page.locator(".messages li[data-seq='9']").waitFor();
  await page.getByLabel("Start at").selectOption("seq");
  await page.getByLabel("First seq").fill("2");
  await page.getByLabel("First seq").press("Enter");
  await page.locator("[data-notice=gap]").waitFor();
  assert.match(await page.locator("[data-notice=gap]").textContent(), /2 to 5 are gone \(purge\)/);
  await page.locator(".messages li[data-seq='9']").waitFor();
  assert.deepEqual(await seqs(page), [6, 7, 8, 9]);
  await shot("gap");
});

test("the overview shows rates and who follows", async ({ server, page, shot }) => {
  await server.create("browser.busy");
  await page.goto(`${server.url}/#/topic/browser.busy`);
  await page.locator(".follow .state[data-state=live]").waitFor();
  const looking = await page.context().newPage();
  await looking.goto(server.url);
  await looking.getByRole("heading", { name: "Overview" }).waitFor();
  await until("the charts move", async () => {
    for (let number = 0; number < 20; number++) await server.publish("browser.busy", "again");
    const busiest = await looking.locator(".overview tbody tr").first().textContent();
    return /browser\.busy.*[1-9]/.test(busiest);
  });
  await looking.screenshot({ path: join(artefacts, "overview.png") });
  await looking.goto(`${server.url}/#/subscribers`);
  await looking.getByRole("row", { name: /Online.*browser\.busy/ }).waitFor();
  await looking.goto(`${server.url}/#/events`);
  await looking.getByText("Topic browser.busy").or(looking.getByText("subscription.")).first().waitFor();
  await looking.close();
  await shot("busy");
});

test("every view is there in light and dark, wide and narrow", async ({ server, page, shot }) => {
  for (const [scheme, width] of [["light", 1280], ["dark", 1280], ["light", 390], ["dark", 390]]) {
    await page.emulateMedia({ colorScheme: scheme });
    await page.setViewportSize({ width, height: 844 });
    for (const view of ["", "topics", "subscribers", "events"]) {
      await page.goto(`${server.url}/#/${view}`);
      await page.locator("main[data-ready]").waitFor();
      // The browser tells the page of the system's colours when it gets to it.
      await page.locator(`html[data-theme=${scheme}]`).waitFor();
      const overflow = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
      assert.ok(overflow <= 0, `${view} is ${overflow} px too wide at ${width}`);
      await shot(`view-${view || "overview"}-${scheme}-${width}`);
    }
  }
  // A choice holds against the system, and after a reload.
  await page.getByRole("button", { name: "Use the light colours" }).click();
  assert.equal(await page.locator("html").getAttribute("data-theme"), "light");
  await page.reload();
  assert.equal(await page.locator("html").getAttribute("data-theme"), "light");
  await page.getByRole("button", { name: "Use the dark colours" }).click();
});
