// What changes or destroys something: offered to those who may, asked first, and done by the server.

import assert from "node:assert/strict";
import { test, until } from "./harness.js";

const fetched = (server, group, query) =>
  server.ask("POST", `/v1/groups/${group}/fetch?wait_ms=30000&${query}`);
const status = async (server, path) => (await fetch(server.url + path, { headers: { accept: "application/json" } })).status;
const dialogue = (page) => page.getByRole("dialog");

test("a topic is edited, purged and deleted, each after a question that says what will happen", async ({ server, page, shot }) => {
  await server.create("manage.orders");
  for (let number = 1; number <= 3; number++) await server.publish("manage.orders", `order ${number}`);
  await server.ask("PUT", "/v1/groups/manage-billing", { json: { source: "manage.>" } });
  await page.goto(`${server.url}/#/topic/manage.orders`);
  await page.getByRole("region", { name: "Readers" }).getByRole("link", { name: "manage-billing" }).waitFor();

  await page.getByRole("button", { name: "Edit" }).click();
  await page.getByLabel("Keep for (days)").fill("2");
  await page.getByLabel("Keep at most (messages)").fill("1000");
  await page.getByRole("button", { name: "Save" }).click();
  await dialogue(page).waitFor({ state: "detached" });
  await page.getByText("2 days or 1,000 messages").waitFor();
  assert.equal((await server.ask("GET", "/v1/topics/manage.orders")).settings.retention.age_ms, 172_800_000);

  // Going back changes nothing.
  await page.getByRole("button", { name: "Purge" }).click();
  await dialogue(page).getByText("Its 3 messages, seqs 1 to 3").waitFor();
  await page.keyboard.press("Escape");
  await dialogue(page).waitFor({ state: "detached" });
  assert.equal((await server.ask("GET", "/v1/topics/manage.orders")).first, 1);
  await page.getByRole("button", { name: "Purge" }).click();
  await dialogue(page).getByRole("button", { name: "Purge" }).click();
  await until("it is empty", async () => (await server.ask("GET", "/v1/topics/manage.orders")).first === 4);

  await page.getByRole("button", { name: "Delete" }).click();
  await dialogue(page).getByText("What these groups have not done of it is lost to them: manage-billing.").waitFor();
  await shot("manage-delete-topic");
  // Enter goes back: nothing is destroyed by accident.
  await page.keyboard.press("Enter");
  await dialogue(page).waitFor({ state: "detached" });
  assert.equal(await status(server, "/v1/topics/manage.orders"), 200);
  await page.getByRole("button", { name: "Delete" }).click();
  await dialogue(page).getByRole("button", { name: "Delete" }).click();
  await page.getByRole("heading", { name: "Topics" }).waitFor();
  assert.equal(await status(server, "/v1/topics/manage.orders"), 404);
}, { allowed: /status of 4\d\d/ });

test("a group is created, edited, reset and deleted", async ({ server, page }) => {
  await server.create("manage.mails");
  for (let number = 1; number <= 4; number++) await server.publish("manage.mails", `mail ${number}`);
  await page.goto(`${server.url}/#/groups`);
  await page.getByRole("button", { name: "New group" }).click();
  await dialogue(page).getByLabel("Name").fill("manage-mailer");
  await dialogue(page).getByLabel("Reads").fill("manage.mails");
  await dialogue(page).getByLabel("Mode").selectOption("keyed");
  await dialogue(page).getByLabel("Attempts").fill("1");
  await dialogue(page).getByRole("button", { name: "Create" }).click();
  await page.getByRole("heading", { name: "manage-mailer" }).waitFor();
  const settings = async () => (await server.ask("GET", "/v1/groups/manage-mailer")).settings;
  const made = await settings();
  assert.deepEqual([made.mode, made.attempts_max, made.source], ["keyed", 1, "manage.mails"]);

  await page.getByRole("button", { name: "Edit" }).click();
  await dialogue(page).getByLabel("Lease (seconds)").fill("90");
  await dialogue(page).getByRole("button", { name: "Save" }).click();
  await dialogue(page).waitFor({ state: "detached" });
  assert.equal((await settings()).lease_ms, 90_000);
  assert.equal((await settings()).attempts_max, 1, "what was not touched stays");

  // A reset with members needs another word, and says what they lose.
  await fetched(server, "manage-mailer", "member=w&max=2");
  await page.getByRole("row", { name: /^w/ }).waitFor();
  await page.getByRole("button", { name: "Reset" }).click();
  await dialogue(page).getByLabel("Begin again with").selectOption("now");
  await dialogue(page).getByRole("button", { name: "Reset" }).click();
  await dialogue(page).getByRole("alert").getByText(/members/).waitFor();
  await dialogue(page).getByLabel(/Though it has 1 member/).check();
  await dialogue(page).getByRole("button", { name: "Reset" }).click();
  await dialogue(page).waitFor({ state: "detached" });
  await until("nothing is left to do", async () => (await server.ask("GET", "/v1/groups/manage-mailer")).lag === 0);

  await page.getByRole("button", { name: "Delete", exact: true }).click();
  await dialogue(page).getByText(/forgets how far it is in manage.mails/).waitFor();
  await dialogue(page).getByRole("button", { name: "Delete" }).click();
  await page.getByRole("heading", { name: "Groups" }).waitFor();
  assert.equal(await status(server, "/v1/groups/manage-mailer"), 404);
}, { allowed: /status of 4\d\d/ });

test("dead letters are deleted, one and all, and the overview shows how many there are", async ({ server, page, shot }) => {
  await server.create("manage.jobs");
  for (let number = 1; number <= 3; number++) await server.publish("manage.jobs", `job ${number}`);
  await server.ask("PUT", "/v1/groups/manage-dead", { json: { source: "manage.jobs", attempts_max: 1 } });
  const all = await fetched(server, "manage-dead", "member=m&max=3");
  await server.ask("POST", "/v1/groups/manage-dead/terminate", { json: { leases: all.leases, reason: "no" } });
  await page.goto(`${server.url}/#/`);
  const groups = page.getByRole("region", { name: "Groups" });
  await groups.getByRole("row", { name: /manage-dead/ }).locator("td[data-bad]").getByText("3", { exact: true }).waitFor();
  await shot("overview-dead-letters");
  await groups.getByRole("link", { name: "manage-dead" }).click();
  const letters = page.getByRole("region", { name: "Dead letters" });
  await letters.locator("li[data-seq]").nth(2).waitFor();
  await letters.locator("li[data-seq]").first().getByRole("button", { name: "Delete" }).click();
  await dialogue(page).getByText("Message 1 of manage.jobs").waitFor();
  await dialogue(page).getByRole("button", { name: "Delete" }).click();
  await until("two are left", async () => (await server.ask("GET", "/v1/groups/manage-dead")).dead_letters === 2);
  await letters.getByText("2 letters", { exact: true }).waitFor();
  await letters.getByRole("button", { name: "Delete all" }).click();
  await dialogue(page).getByText("2 dead letters are deleted for ever.").waitFor();
  await dialogue(page).getByRole("button", { name: "Delete all" }).click();
  await letters.getByText("2 letters deleted.").waitFor();
  assert.equal((await server.ask("GET", "/v1/groups/manage-dead")).dead_letters, 0);
  assert.equal((await server.ask("GET", "/v1/topics/manage.jobs")).next, 4, "the messages themselves stay");
});

test("a client is closed, and told so", async ({ server, page }) => {
  await server.create("manage.followed");
  const stream = await fetch(`${server.url}/v1/topics/manage.followed/follow`, { headers: { "user-agent": "victim" } });
  await page.goto(`${server.url}/#/subscribers`);
  const row = page.getByRole("row", { name: /manage\.followed/ });
  await row.getByRole("button", { name: "Close" }).click();
  await dialogue(page).getByText(/The connection of session \d+ .* ends, with all that it follows\./).waitFor();
  await dialogue(page).getByRole("button", { name: "Close" }).click();
  const text = await stream.text();
  assert.match(text, /event: failed\ndata: .*"code":244.*an administrator closed this connection/);
  await row.getByText("Offline").waitFor();
  assert.equal(await row.getByRole("button", { name: "Close" }).count(), 0);
});

test("a view that does not exist says so", async ({ server, page }) => {
  await page.goto(`${server.url}/#/topicz/orders`);
  await page.getByRole("heading", { name: "Not found" }).waitFor();
  await page.getByText("#/topicz/orders").waitFor();
  await page.getByRole("link", { name: "Go to the overview." }).click();
  await page.getByRole("heading", { name: "Overview" }).waitFor();
});
