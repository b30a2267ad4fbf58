// The cluster on the page: nodes, links, what waits, and who is suspended.

import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { Server, test } from "./harness.js";

const node = (name, secret, ...more) => Server.start([
  "--node", name, "--cluster-listen", "127.0.0.1:0", "--cluster-secret-file", secret, "--log", "error", ...more,
]);

test("a server on its own says how to form a cluster", async ({ server, page }) => {
  await page.goto(`${server.url}/#/cluster`);
  await page.getByText("This server is on its own: start it with --node and --cluster-listen").waitFor();
});

test("the page draws the nodes, and says which one is suspended and why", async ({ server, page, shot }) => {
  const secret = join(server.folder, "secret");
  writeFileSync(secret, "a secret of the browser test\n");
  const nodes = [];
  try {
    nodes.push(await node("ann", secret));
    nodes.push(await node("bob", secret, "--join", nodes[0].cluster));
    await page.goto(`${nodes[0].url}/#/cluster`);
    const bob = page.getByRole("row", { name: /bob/ });
    await bob.getByText("Active", { exact: true }).waitFor();
    await page.getByRole("img", { name: "Nodes and links" }).getByText("bob").waitFor();
    await shot("cluster");

    await nodes[1].stop("SIGKILL");
    await bob.getByText("Suspended", { exact: true }).waitFor();
    await bob.getByText(/its node cannot be reached, for/).waitFor();
    await shot("cluster-suspended");

    await nodes[1].run();
    await bob.getByText("Active", { exact: true }).waitFor();
  } finally {
    for (const each of nodes) await each.close();
  }
});
