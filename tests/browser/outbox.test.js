// The outbox on the page: what is settled, who is behind, and who holds everything up.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { promisify } from "node:util";
import { Server, binary, test } from "./harness.js";
import { Postgres } from "./postgres.js";

const ROWS = "SELECT gapless.emit('shop.orders', i::text, 'upsert') FROM generate_series(1, 4) i";

test("a server without an outbox says how to get one", async ({ server, page }) => {
  await page.goto(`${server.url}/#/outbox`);
  await page.getByText("This server moves no outbox: set outbox.dsn.").waitFor();
});

test("the outbox shows consumers, what is settled, and the transaction that holds it up", async ({ page, shot }) => {
  const postgres = await Postgres.start();
  let server;
  try {
    await promisify(execFile)(binary, ["outbox", "install", "--dsn", postgres.dsn]);
    await postgres.sql(ROWS);
    // One that is done with a row, and does not run.
    await postgres.sql("INSERT INTO gapless.consumer_offsets (consumer, last_seq) VALUES ('<b>slow</b>', 1)");
    server = await Server.start([
      "--set", `outbox.dsn=${postgres.dsn}`, "--set", "outbox.create_topics=true", "--log", "error",
    ]);
    await page.goto(`${server.url}/#/outbox`);
    await page.getByText("Settled up to 4, 0 unsettled.", { exact: true }).waitFor();
    const relay = page.getByRole("row", { name: /relay/ });
    await relay.getByText("Running", { exact: true }).waitFor();
    await relay.getByRole("cell", { name: "4", exact: true }).waitFor();
    const slow = page.getByRole("row", { name: /<b>slow<\/b>/ });
    await slow.getByText("Not running", { exact: true }).waitFor();
    await slow.getByRole("cell", { name: "3", exact: true }).waitFor();

    // A transaction that stays open: the page names it by itself, and stops when it ends.
    const end = await postgres.hold(
      "SET application_name = 'billing'; BEGIN; SELECT gapless.emit('shop.orders', 'k', 'upsert');",
    );
    await postgres.sql(ROWS);
    await page.getByText(/held \d+ s by pid \d+, application "billing", idle in transaction/).waitFor();
    await page.getByText("Settled up to 4, 5 unsettled.", { exact: true }).waitFor();
    await shot("outbox-held");
    await end("COMMIT;");
    await page.getByText("Settled up to 9, 0 unsettled.", { exact: true }).waitFor();
    await page.getByText(/held \d+ s/).waitFor({ state: "hidden" });
    await relay.getByRole("cell", { name: "9", exact: true }).waitFor();
    await shot("outbox");

    for (const width of [360, 1280]) {
      await page.setViewportSize({ width, height: 800 });
      const overflow = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
      assert.ok(overflow <= 0, `the outbox is ${overflow} px too wide at ${width}`);
    }
    await shot("outbox-1280");
  } finally {
    await server?.close();
    await postgres.close();
  }
});

test("a database that is away is said on the page", async ({ page, shot }) => {
  const server = await Server.start(["--set", "outbox.dsn=host=/nowhere dbname=shop user=app", "--log", "off"]);
  try {
    await page.goto(`${server.url}/#/outbox`);
    await page.getByText(/cannot reach PostgreSQL at \/nowhere\/shop/).waitFor();
    await shot("outbox-away");
  } finally {
    await server.close();
  }
});
