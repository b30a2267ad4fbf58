// Groups on the page: how they stand, why they do not move, and dead letters with a way back.

import assert from "node:assert/strict";
import { test, until } from "./harness.js";

const fetched = (server, group, query) =>
  server.ask("POST", `/v1/groups/${group}/fetch?wait_ms=30000&${query}`);

test("a group shows its lag, its members and the sentence why it does not move", async ({ server, page, shot }) => {
  await server.create("groups.orders");
  for (let number = 1; number <= 5; number++) await server.publish("groups.orders", `order ${number}`);
  await server.ask("PUT", "/v1/groups/billing", { json: { source: "groups.orders" } });
  await page.goto(`${server.url}/#/groups`);
  const row = page.getByRole("row", { name: /billing/ });
  await row.getByText("It has no members; 5 messages wait for one.").waitFor();
  await row.getByText("Running").waitFor();

  // A member takes two, and the page sees it by itself.
  const two = await fetched(server, "billing", "member=worker-1&max=2");
  await row.getByText(/2 in flight/).waitFor();
  await shot("groups");
  await row.getByRole("link", { name: "billing" }).click();
  await page.getByRole("heading", { name: "billing" }).waitFor();
  await page.getByRole("row", { name: /worker-1/ }).waitFor();

  await server.ask("POST", "/v1/groups/billing/ack", { json: { leases: two.leases } });
  await page.locator(".facts div", { hasText: "Not done" }).first().getByText("3", { exact: true }).waitFor();
  await page.getByRole("button", { name: "Pause" }).click();
  await page.getByText(/It is paused/).waitFor();
  await shot("group-paused");
  await page.getByRole("button", { name: "Resume" }).click();
  await page.getByRole("button", { name: "Pause" }).waitFor();
  assert.equal((await server.ask("GET", "/v1/groups/billing")).state, "running");
});

test("dead letters are shown and driven again by a button", async ({ server, page, shot }) => {
  await server.create("groups.jobs");
  for (const body of ["<b>one</b>", "two", "three"]) await server.publish("groups.jobs", body, "?key=k");
  await server.ask("PUT", "/v1/groups/jobs", { json: { source: "groups.jobs", attempts_max: 1 } });
  const all = await fetched(server, "jobs", "member=m");
  await server.ask("POST", "/v1/groups/jobs/terminate", {
    json: { leases: all.leases, reason: "cannot be <read>" },
  });
  await page.goto(`${server.url}/#/group/jobs`);
  const letters = page.getByRole("region", { name: "Dead letters" });
  await letters.locator("li[data-seq]").nth(2).waitFor();
  const first = letters.locator("li[data-seq]").first();
  // What was published, and what was said of it, is shown as text.
  assert.match(await first.textContent(), /groups\.jobs, seq 1, key k.*cannot be <read>.*<b>one<\/b>/);
  await shot("dead-letters");

  await first.getByRole("button", { name: "Redrive" }).click();
  await letters.getByText("1 letter redriven.").waitFor();
  await until("two are left", async () => (await letters.locator("li[data-seq]").count()) === 2);
  // Many at once are asked first.
  await letters.getByRole("button", { name: "Redrive all" }).click();
  await page.getByRole("dialog", { name: "Redrive all dead letters of jobs?" }).getByText("2 messages").waitFor();
  await page.getByRole("dialog").getByRole("button", { name: "Redrive all" }).click();
  await letters.getByText("There are none.").waitFor();
  const again = await fetched(server, "jobs", "member=m");
  assert.ok(again.messages.some((message) => message.text === "<b>one</b>"));
  assert.equal((await server.ask("GET", "/v1/groups/jobs")).dead_letters, 0);
});

test("the views of groups are there in light and dark, wide and narrow", async ({ server, page, shot }) => {
  await server.ask("PUT", "/v1/groups/seen", { json: { source: "groups.seen.>" } });
  for (const [scheme, width] of [["light", 1280], ["dark", 1280], ["light", 390]]) {
    await page.emulateMedia({ colorScheme: scheme });
    await page.setViewportSize({ width, height: 844 });
    for (const view of ["groups", "group/seen"]) {
      await page.goto(`${server.url}/#/${view}`);
      await page.locator("main[data-ready]").waitFor();
      const overflow = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
      assert.ok(overflow <= 0, `${view} is ${overflow} px too wide at ${width}`);
      await shot(`view-${view.replace("/", "-")}-${scheme}-${width}`);
    }
  }
  await page.goto(`${server.url}/#/group/none`);
  await page.getByText("There is no such group").waitFor();
}, { allowed: /status of 404/ });
