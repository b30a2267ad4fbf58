// The browser's own EventSource, without any help from us, through restarts of the server.

import assert from "node:assert/strict";
import { test, until } from "./harness.js";

/** Follows a path and notes what comes, in the page. */
function follow(page, path) {
  return page.evaluate((path) => {
    window.seen = [];
    window.told = [];
    window.opened = 0;
    window.source = new EventSource(path);
    window.source.onopen = () => { window.opened += 1; };
    window.source.onmessage = (event) => {
      const { topic, seq, cursor } = JSON.parse(event.data);
      window.seen.push({ topic, seq, same: cursor === event.lastEventId });
    };
    for (const name of ["gap", "skipped", "deleted", "failed", "live"]) {
      window.source.addEventListener(name, () => window.told.push(name));
    }
  }, path);
}

/** Publishes until told to stop, also while the server is away. */
function publishing(server, topic) {
  let going = true;
  const work = (async () => {
    while (going) {
      // Whether one that failed was accepted is not known, and does not matter here.
      await server.publish(topic, "a message").catch(() => new Promise(setImmediate));
    }
  })();
  return { stop: () => { going = false; return work; } };
}

for (const signal of ["SIGTERM", "SIGKILL"]) {
  test(`an EventSource goes on without gap or repeat after ${signal}`, async ({ server, page }) => {
    const topics = [`cut.${signal}.one`, `cut.${signal}.two`];
    for (const topic of topics) await server.create(topic);
    await page.goto(`${server.url}/about`);
    await follow(page, `/v1/follow?pattern=cut.${signal}.*&from=now`);
    await page.waitForFunction(() => window.told.includes("live"));
    const publishers = topics.map((topic) => publishing(server, topic));
    const count = () => page.evaluate(() => window.seen.length);
    for (let cut = 0; cut < 2; cut += 1) {
      const goal = (await count()) + 20;
      await until("messages arrive", async () => (await count()) > goal);
      await server.restart(signal);
    }
    const goal = (await count()) + 20;
    await until("they arrive again", async () => (await count()) > goal);
    for (const publisher of publishers) await publisher.stop();
    const next = {};
    for (const topic of topics) next[topic] = (await server.ask("GET", `/v1/topics/${topic}`)).next;
    const all = topics.reduce((sum, topic) => sum + next[topic] - 1, 0);
    await until("everything has arrived", async () => (await count()) >= all);
    const { seen, told, opened } = await page.evaluate(() => {
      window.source.close();
      return { seen: window.seen, told: window.told, opened: window.opened };
    });
    for (const topic of topics) {
      const seqs = seen.filter((each) => each.topic === topic).map((each) => each.seq);
      assert.deepEqual(seqs, Array.from({ length: next[topic] - 1 }, (_, at) => at + 1));
    }
    assert.ok(seen.every((each) => each.same), "the cursor is the event's own id");
    assert.ok(told.every((name) => name === "live"), `nothing was missed: ${told}`);
    assert.equal(opened, 3, "it came back by itself after each cut");
  });
}
