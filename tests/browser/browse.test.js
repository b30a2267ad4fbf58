// Browsing and searching the messages of a topic.

import assert from "node:assert/strict";
import { test } from "./harness.js";

const HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>";

/** Publishes many at once, as lines. */
async function publishLines(server, topic, lines) {
  const answer = await fetch(`${server.url}/v1/topics/${topic}/messages`, {
    method: "POST", headers: { "content-type": "application/x-ndjson" },
    body: lines.map((line) => JSON.stringify(line)).join("\n"),
  });
  assert.ok(answer.ok, await answer.text());
}

async function openBrowser(page, server, topic) {
  await page.goto(`${server.url}/#/topic/${topic}`);
  await page.getByRole("button", { name: "Browse and search" }).click();
  await page.locator(".found li[data-seq]").first().waitFor();
}

const seqs = (page) => page.$$eval(".found li[data-seq]", (lines) => lines.map((line) => Number(line.dataset.seq)));

test("messages are browsed from the newest, the oldest, a seq and a time", async ({ server, page, shot }) => {
  await server.create("browse.range");
  await publishLines(server, "browse.range", Array.from({ length: 120 }, (_, at) => ({ text: `message ${at + 1}` })));
  await openBrowser(page, server, "browse.range");
  assert.deepEqual([(await seqs(page))[0], (await seqs(page)).length], [120, 50], "newest first");
  await page.getByRole("button", { name: "Show older" }).click();
  await page.locator(".found li[data-seq='21']").waitFor();
  await page.getByRole("button", { name: "Show older" }).click();
  await page.getByText("120 messages. That is all.").waitFor();
  assert.equal((await seqs(page)).at(-1), 1);

  const form = page.getByRole("form", { name: "Browse messages" });
  await form.getByLabel("Begin with").selectOption("seq");
  await form.getByLabel("Seq").fill("40");
  await form.getByRole("button", { name: "Show" }).click();
  await page.locator(".found li[data-seq='89']").waitFor();
  assert.equal((await seqs(page))[0], 40);
  await page.getByRole("button", { name: "Show more" }).click();
  await page.getByText("81 messages. That is all.").waitFor();

  // From a time long ago all come, from one to come none.
  await form.getByLabel("Begin with").selectOption("time");
  await form.getByLabel("Time").fill("2020-01-01T00:00:01");
  await form.getByRole("button", { name: "Show" }).click();
  await page.locator(".found li[data-seq='1']").waitFor();
  await form.getByLabel("Time").fill("2099-01-01T00:00:01");
  await form.getByRole("button", { name: "Show" }).click();
  await page.getByText("0 messages. That is all.").waitFor();
  await shot("browse");
});

test("a search by key and text says how much it looked at, and goes on when asked", async ({ server, page, shot }) => {
  await server.create("browse.search");
  // More than one step of a search looks at.
  const lines = Array.from({ length: 6000 }, (_, at) => ({ key: `k${at % 3}`, text: at === 10 ? "the NEEDLE" : `hay ${at}` }));
  await publishLines(server, "browse.search", lines);
  await openBrowser(page, server, "browse.search");
  const form = page.getByRole("form", { name: "Browse messages" });
  await form.getByLabel("Text contains").fill("needle");
  await form.getByRole("button", { name: "Show" }).click();
  await page.getByText("0 found, 5,000 messages looked at; there are more to look at.").waitFor();
  await page.getByRole("button", { name: "Search further" }).click();
  await page.getByText("1 found, 6,000 messages looked at. That is all.").waitFor();
  assert.deepEqual(await seqs(page), [11]);
  await shot("browse-search");
  await form.getByLabel("Key is").fill("k2");
  await form.getByRole("button", { name: "Show" }).click();
  await page.getByText("0 found, 5,000 messages looked at; there are more to look at.").waitFor();
  await form.getByLabel("Text contains").fill("hay 5999");
  await form.getByRole("button", { name: "Show" }).click();
  await page.getByText(/^1 found/).waitFor();
});

test("hostile content is text, wherever it is shown", async ({ server, page }) => {
  const name = "browse.hostile";
  await server.create(name);
  const query = new URLSearchParams({ key: HOSTILE, header: `note=${HOSTILE}` });
  await server.publish(name, HOSTILE, `?${query}`);
  await server.ask("PUT", "/v1/groups/browse-hostile", { json: { source: name, attempts_max: 1 } });
  const member = encodeURIComponent("<b>worker</b>");
  const all = await server.ask("POST", `/v1/groups/browse-hostile/fetch?wait_ms=30000&member=${member}`);
  await server.ask("POST", "/v1/groups/browse-hostile/terminate", { json: { leases: all.leases, reason: HOSTILE } });
  const stream = await fetch(`${server.url}/v1/topics/${name}/follow`, { headers: { "user-agent": HOSTILE } });
  await openBrowser(page, server, name);
  assert.ok((await page.locator(".found li[data-seq='1']").textContent()).split(HOSTILE).length - 1 >= 3, "key, header and body");
  await page.getByRole("region", { name: "Readers" }).getByText(HOSTILE.slice(0, 20)).waitFor();
  await page.goto(`${server.url}/#/group/browse-hostile`);
  await page.getByRole("region", { name: "Dead letters" }).locator("li[data-seq]").waitFor();
  await page.goto(`${server.url}/#/subscribers`);
  await page.getByText(HOSTILE.slice(0, 20)).first().waitFor();
  await page.goto(`${server.url}/#/events`);
  await page.getByRole("heading", { name: "Events" }).waitFor();
  assert.doesNotMatch(await page.title(), /owned/);
  assert.equal(await page.locator("main img, main script").count(), 0);
  await stream.body.cancel();
});
