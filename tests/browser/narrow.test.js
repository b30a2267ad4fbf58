// Narrow windows: nothing is cut off, everything can be reached.

import assert from "node:assert/strict";
import { test, until } from "./harness.js";

/** What cannot be seen in this window, however one scrolls. */
const unreachable = (page) => page.evaluate(() => {
  const found = [];
  const wide = document.documentElement.scrollWidth - innerWidth;
  if (wide > 0) found.push(`the page is ${wide} px too wide`);
  for (const link of document.querySelectorAll("nav a")) {
    const { left, right } = link.getBoundingClientRect();
    if (left < 0 || right > innerWidth) found.push(`the tab ${link.textContent}`);
  }
  for (const table of document.querySelectorAll("main table")) {
    let box = table.parentElement;
    while (box !== document.body) {
      const inside = box.scrollWidth <= box.clientWidth;
      const scrolls = ["auto", "scroll"].includes(getComputedStyle(box).overflowX);
      if (!inside && !scrolls) found.push(`${table.className || "a table"} in ${box.className || box.tagName}`);
      if (scrolls) break;
      box = box.parentElement;
    }
  }
  for (const button of document.querySelectorAll("main .panel button, main .card button")) {
    if (button.hidden || button.offsetParent === null) continue;
    button.scrollIntoView({ block: "nearest", inline: "nearest" });
    const inner = button.getBoundingClientRect();
    const outer = button.closest(".panel, .card").getBoundingClientRect();
    if (inner.left < outer.left || inner.right > outer.right) found.push(`the button ${button.textContent}`);
  }
  return found;
});

test("nothing is cut off at 375 and 768 px", async ({ server, page, shot }) => {
  const topic = "narrow.a-name-that-takes-much-room.telemetry";
  await server.create(topic);
  for (let number = 1; number <= 20; number++) await server.publish(topic, `{"a":${number},"text":"some words"}`, "?key=k");
  await server.ask("PUT", "/v1/groups/mailer-of-narrow-windows", { json: { source: topic, attempts_max: 1 } });
  const fetch = "/v1/groups/mailer-of-narrow-windows/fetch?wait_ms=30000&max=20&member=a-member-with-a-long-name";
  const all = await server.ask("POST", fetch);
  await server.ask("POST", "/v1/groups/mailer-of-narrow-windows/terminate", {
    json: { leases: all.leases, reason: "the mail server at mail.example.com refused it" },
  });
  await until("there are dead letters", async () =>
    (await server.ask("GET", "/v1/groups/mailer-of-narrow-windows")).dead_letters === 20);
  for (const width of [375, 768]) {
    await page.setViewportSize({ width, height: 800 });
    for (const view of ["", "topics", `topic/${topic}`, "subscribers", "groups",
      "group/mailer-of-narrow-windows", "events"]) {
      await page.goto(`${server.url}/#/${view}`);
      await page.locator("main[data-ready]").waitFor();
      if (view.startsWith("group/")) await page.locator("li[data-seq]").nth(19).waitFor();
      await shot(`narrow-${width}-${view.split("/")[0] || "overview"}`);
      assert.deepEqual(await unreachable(page), [], `#/${view} at ${width} px`);
    }
    // The dead letters of a group can be seen in the list.
    await page.goto(`${server.url}/#/groups`);
    const dead = page.getByRole("row", { name: /mailer/ }).getByText("20", { exact: true }).first();
    await dead.scrollIntoViewIfNeeded();
    const { x, width: wide } = await dead.boundingBox();
    assert.ok(x >= 0 && x + wide <= width, `it is at ${x}`);
  }
  // The last tab can be clicked.
  await page.setViewportSize({ width: 375, height: 800 });
  await page.getByRole("link", { name: "Events" }).click();
  await page.getByRole("heading", { name: "Events" }).waitFor();
});

test("events tell of groups and dead letters", async ({ server, page, shot }) => {
  await page.goto(`${server.url}/#/events`);
  await page.locator("#status[data-state=live]").waitFor();
  // The server listens to events only while a page is open.
  await until("it listens", async () => {
    await server.create("narrow.probe");
    await server.ask("DELETE", "/v1/topics/narrow.probe");
    return (await page.getByText("Topic narrow.probe was deleted.").count()) > 0;
  });
  await server.create("narrow.mails");
  await server.publish("narrow.mails", "one");
  await server.ask("PUT", "/v1/groups/events", { json: { source: "narrow.mails", attempts_max: 1 } });
  const all = await server.ask("POST", "/v1/groups/events/fetch?wait_ms=30000&member=m1");
  await server.ask("POST", "/v1/groups/events/terminate", { json: { leases: all.leases } });
  await page.getByText("Member m1 joined group events.").waitFor();
  await page.getByText("1 message of group events became dead letters.").waitFor();
  await server.ask("POST", "/v1/groups/events/dead-letters/redrive");
  await page.getByText("1 dead letter of group events redriven.").waitFor();
  await server.ask("POST", "/v1/groups/events/pause");
  await page.getByText("Group events was paused.").waitFor();
  await shot("events-of-groups");
  // What happens to the topic that holds the letters is no news of its own.
  assert.equal(await page.getByText("$dead.").count(), 0);
});
