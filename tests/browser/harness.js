// A real server and a real browser for each test file.
//
// To add a test: a file `name.test.js` beside this one, with
//
//     import { test } from "./harness.js";
//     test("a sentence that could be false", async ({ server, page, shot }) => { … });
//
// `server` is the binary on free ports and a folder of its own; it can be restarted on the
// same port. `page` is a fresh tab; whatever it says on its console as an error, or throws,
// fails the test. `shot(name)` keeps a picture below `artefacts/`. Nothing here sleeps: wait
// for what must become true, with `page.waitForFunction`, locators, or `until`.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdirSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { createInterface } from "node:readline";
import { after, before, test as nodeTest } from "node:test";
import { setTimeout as pause } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { chromium } from "playwright-core";

const here = dirname(fileURLToPath(import.meta.url));
const root = join(here, "..", "..");
export const artefacts = process.env.GAPLESS_ARTEFACTS ?? join(here, "artefacts");
export const binary = process.env.GAPLESS_BIN ?? join(root, "target", "debug", "gapless");
const browserPath = process.env.CHROMIUM ?? "/usr/bin/chromium";

/** Longer than anything takes on a loaded machine; only a failing test waits for it. */
export const DEADLINE_MS = 60_000;
/** How often a condition outside the browser is looked at. */
const LOOK_MS = 25;

/** The server in a process of its own. */
export class Server {
  /** `more` are further arguments for `serve`. */
  static async start(more = []) {
    const server = new Server();
    server.more = more;
    server.folder = mkdtempSync(join(tmpdir(), "gapless-browser-"));
    server.port = 0;
    await server.run();
    return server;
  }

  get url() {
    return `http://127.0.0.1:${this.port}`;
  }

  /** Starts the process; on the same port if it ran before. */
  async run() {
    const listen = ["--listen", "127.0.0.1:0", "--http", `127.0.0.1:${this.port}`];
    const data = ["--data", join(this.folder, "data"), "--json", "--set", "http.hosts=lan.test"];
    this.process = spawn(binary, ["serve", ...listen, ...data, ...this.more], {
      stdio: ["ignore", "pipe", "inherit"],
    });
    this.ended = once(this.process, "exit");
    for await (const line of createInterface({ input: this.process.stdout })) {
      const said = JSON.parse(line);
      if (said.event === "ready") {
        this.native = said.native;
        this.cluster = said.cluster?.address;
        this.port = Number(new URL(said.http).port);
        this.process.stdout.resume();
        return;
      }
    }
    throw new Error("the server ended before it was ready");
  }

  /** Ends the process: SIGTERM asks it, SIGKILL cuts it. */
  async stop(signal = "SIGTERM") {
    this.process.kill(signal);
    await this.ended;
  }

  async restart(signal = "SIGTERM") {
    await this.stop(signal);
    await this.run();
  }

  async close() {
    await this.stop("SIGKILL");
    rmSync(this.folder, { recursive: true, force: true });
  }

  /** A request past the browser. */
  async ask(method, path, { json, body, headers } = {}) {
    const answer = await fetch(this.url + path, {
      method,
      body: json === undefined ? body : JSON.stringify(json),
      headers: {
        accept: "application/json",
        ...(json === undefined ? {} : { "content-type": "application/json" }),
        ...headers,
      },
    });
    const text = await answer.text();
    assert.ok(answer.ok, `${method} ${path}: ${answer.status} ${text}`);
    return text === "" ? null : JSON.parse(text);
  }

  create(topic, settings = {}) {
    return this.ask("PUT", `/v1/topics/${topic}`, { json: settings });
  }

  publish(topic, body, query = "") {
    return this.ask("POST", `/v1/topics/${topic}/messages${query}`, {
      body, headers: { "content-type": "text/plain" },
    });
  }

  state(query = "") {
    return this.ask("GET", `/${query}`);
  }
}

/** Waits until something outside the browser is true. */
export async function until(what, is) {
  const deadline = Date.now() + DEADLINE_MS;
  for (;;) {
    const found = await is();
    if (found) return found;
    assert.ok(Date.now() < deadline, `it did not happen in time: ${what}`);
    await pause(LOOK_MS);
  }
}

let server;
let browser;
let profile;

before(async () => {
  mkdirSync(artefacts, { recursive: true });
  profile = mkdtempSync(join(tmpdir(), "gapless-profile-"));
  server = await Server.start();
  browser = await chromium.launchPersistentContext(profile, {
    executablePath: browserPath,
    headless: true,
    viewport: { width: 1280, height: 900 },
    args: [
      "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
      "--disable-background-networking", "--disable-component-update", "--disable-sync",
      "--host-resolver-rules=MAP *.test 127.0.0.1",
    ],
  });
});

after(async () => {
  await browser?.close();
  await server?.close();
  if (profile) rmSync(profile, { recursive: true, force: true });
});

/** A test with a server, a fresh tab, and a camera. `allowed` matches errors it provokes. */
export function test(name, work, { allowed } = {}) {
  nodeTest(name, { timeout: 3 * DEADLINE_MS }, async () => {
    const page = await browser.newPage();
    page.setDefaultTimeout(DEADLINE_MS);
    const said = [];
    page.on("pageerror", (error) => said.push(`${error}`));
    page.on("console", (message) => {
      if (message.type() === "error" || message.type() === "warning") said.push(message.text());
    });
    // While the server is away the browser itself notes that it cannot be reached.
    const ofTheCut = /ERR_(CONNECTION_REFUSED|INCOMPLETE_CHUNKED_ENCODING|EMPTY_RESPONSE|CONNECTION_RESET)/;
    const shot = (file, options) =>
      page.screenshot({ path: join(artefacts, `${file}.png`), ...options });
    try {
      await work({ server, page, shot });
      const faults = said.filter((text) => !ofTheCut.test(text) && !allowed?.test(text));
      assert.deepEqual(faults, [], "the console is quiet");
    } catch (error) {
      await shot(`failed-${name.replaceAll(/\W+/g, "-").slice(0, 60)}`).catch(() => {});
      throw error;
    } finally {
      await page.close();
    }
  });
}
