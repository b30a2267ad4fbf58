// The modules as they are, in a page of another origin in headless Chromium.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createServer } from "node:http";
import type { IncomingMessage, ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { text } from "node:stream/consumers";
import { Server, numbers, root, test, until } from "./harness.js";

const chromium = process.env["CHROMIUM"] ?? "/usr/bin/chromium";
const COUNT = 60;

/** Publishes and follows at the same time, and posts what came to `/result`. */
const page = (url: string): string => `<!doctype html><script type="module">
  import { Client } from "/dist/index.js";
  const say = (what) => fetch("/result", { method: "POST", body: JSON.stringify(what) });
  try {
    const client = new Client(${JSON.stringify(url)}, { timeoutMs: 60_000 });
    await client.publishBatch("orders", ["0", "1"], { create: true });
    const publishing = (async () => {
      for (let n = 2; n < ${COUNT}; n += 1) await client.publish("orders", String(n));
    })();
    const follower = client.follow("orders");
    const texts = [];
    for await (const event of follower) {
      texts.push(event.type === "message" ? event.text : event);
      if (texts.length === ${COUNT}) break;
      if (texts.length % 20 === 0) await say({ texts: texts.length });
    }
    await publishing;
    await say({ texts, connections: follower.connections });
  } catch (error) {
    await say({ error: String(error) });
  }
</script>`;

test("a page of another origin publishes and follows through kills of the server", async ({ after }) => {
  let progress = 0;
  let result: { texts?: unknown; connections?: number; error?: string } | undefined;
  let url = "";
  const answer = async (request: IncomingMessage, response: ServerResponse): Promise<void> => {
    if (request.url === "/result") {
      const said = JSON.parse(await text(request)) as { texts?: unknown };
      if (typeof said.texts === "number") progress = said.texts;
      else result = said;
      response.end();
    } else if (request.url?.startsWith("/dist/") && request.url.endsWith(".js")) {
      response.setHeader("content-type", "text/javascript");
      response.end(readFileSync(join(root, "clients", "typescript", request.url)));
    } else if (request.url === "/") {
      response.setHeader("content-type", "text/html");
      response.end(page(url));
    } else {
      response.writeHead(404).end();
    }
  };
  const pages = createServer((request, response) => void answer(request, response)).listen(0, "127.0.0.1");
  await once(pages, "listening");
  after(() => void pages.close().closeAllConnections());
  const origin = `http://127.0.0.1:${(pages.address() as AddressInfo).port}`;
  const server = new Server(`http.cors_origins=${origin}`);
  after(() => server.close());
  await server.start();
  url = server.url;

  const profile = mkdtempSync(join(tmpdir(), "gapless-chromium-"));
  const words = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"];
  const browser = spawn(chromium, [...words, `--user-data-dir=${profile}`, "--remote-debugging-port=0", origin], {
    stdio: "ignore",
    detached: true,
  });
  await once(browser, "spawn");
  const { pid } = browser;
  assert.ok(pid);
  after(async () => {
    const ended = once(browser, "exit");
    // The browser with all its processes: they write into the profile.
    process.kill(-pid, "SIGKILL");
    await ended;
    rmSync(profile, { recursive: true, force: true, maxRetries: 50 });
  });
  for (const at of [20, 40]) {
    await until(`${at} messages came`, () => progress >= at || result !== undefined);
    await server.restart();
  }
  await until("the page is done", () => result !== undefined);
  assert.equal(result?.error, undefined);
  assert.deepEqual(result?.texts, numbers(COUNT));
});
