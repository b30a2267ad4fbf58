// What pages of others can do to the server, in a real browser: nothing.
//
// The page is one of 127.0.0.1, which is another origin than every name the server is called by
// here. `lan.test` and `evil.test` lead to this machine; the server answers to the first only.

import assert from "node:assert/strict";
import { test, until } from "./harness.js";

const byName = (server, name) => server.url.replace("127.0.0.1", name);

/** Asks for addresses as a hostile page would, and waits until the browser is done with them. */
function attack(page, addresses) {
  return page.evaluate(async (addresses) => {
    const loaded = (element) => new Promise((done) => {
      element.onload = element.onerror = done;
      document.body.append(element);
    });
    for (const src of addresses) {
      await loaded(Object.assign(document.createElement("img"), { src, referrerPolicy: "no-referrer" }));
      await loaded(Object.assign(document.createElement("iframe"), { src, referrerPolicy: "no-referrer" }));
      await fetch(src, { mode: "no-cors", referrerPolicy: "no-referrer" }).catch(() => {});
      await fetch(src, { mode: "no-cors" }).catch(() => {});
    }
  }, addresses);
}

test("a page of another origin changes nothing, whatever name it calls the server by", async ({ server, page }) => {
  await server.create("victim");
  for (let count = 0; count < 3; count += 1) await server.publish("victim", "kept");
  await page.goto(`${server.url}/about`);
  for (const name of ["lan.test", "localhost", "evil.test"]) {
    const url = byName(server, name);
    await attack(page, [
      `${url}/topic/victim/push?message=forged`,
      `${url}/topic/victim/config?retention_count=1`,
      `${url}/topic/forged/create`,
      `${url}/topic/forged/subscribe?anyway=true`,
    ]);
  }
  const { first, next } = await server.ask("GET", "/v1/topics/victim");
  assert.deepEqual({ first, next }, { first: 1, next: 4 });
  const { topics } = await server.ask("GET", "/v1/topics?pattern=forged");
  assert.deepEqual(topics, []);
}, { allowed: /Failed to load resource|Refused to|ERR_BLOCKED|frame/ });

test("a name that was pointed at the server gets nothing", async ({ server, page }) => {
  await server.create("private");
  const evil = byName(server, "evil.test");
  const answer = await page.goto(`${evil}/v1/topics`);
  assert.equal(answer.status(), 421);
  // A script of that name is of the same origin, for the browser.
  const read = await page.evaluate(async () => {
    const listed = await fetch("/v1/topics", { headers: { "user-agent": "curl/8" } });
    const published = await fetch("/v1/topics/private/messages", { method: "POST", body: "x" });
    return [listed.status, published.status];
  });
  assert.deepEqual(read, [421, 421]);
  assert.equal((await server.ask("GET", "/v1/topics/private")).next, 1);
  // By a name that is listed, the page works.
  await page.goto(`${byName(server, "lan.test")}/#/topics`);
  await page.getByRole("cell", { name: "private" }).waitFor();
}, { allowed: /421|Failed to load resource/ });

test("an address typed into the browser does what it says", async ({ server, page }) => {
  const local = byName(server, "localhost");
  for (const path of ["/topic/typed/create", "/topic/typed/push?message={\"data\":1,\"key\":\"k\"}"]) {
    const answer = await page.goto(local + path);
    assert.ok(answer.ok(), `${path}: ${answer.status()} ${await answer.text()}`);
  }
  const found = await server.ask("GET", "/v1/topics/typed/messages/1");
  assert.deepEqual([found.key, found.json], ["k", 1]);
});

test("HTML in a stream or a message does not run as a page of the server", async ({ server, page }) => {
  const script = "<title>quiet</title><script>document.title = 'ran'</script>";
  const headers = { "content-type": "text/html" };
  await server.ask("PUT", "/v1/stream/html", { body: script, headers });
  await server.create("markup");
  await server.ask("POST", "/v1/topics/markup/messages", { body: script, headers });
  for (const path of ["/v1/stream/html?offset=-1", "/v1/topics/markup/messages/1/body"]) {
    await page.goto(server.url + path);
    await until("it is shown", async () => (await page.title()) !== "");
    assert.equal(await page.title(), "quiet", path);
  }
}, { allowed: /sandbox/ });
