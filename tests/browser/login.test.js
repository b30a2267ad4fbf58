// Logging in, out, and a login that ends while the page is open, on a server that asks who is there.

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { join } from "node:path";
import { after, before } from "node:test";
import { Server, binary, test, until } from "./harness.js";

const PASSWORD = "correct horse battery";
let guarded;

/** A command of an administrator, who comes by the Unix socket. */
function admin(words, input) {
  const socket = join(guarded.folder, "data", "gapless.sock");
  const done = spawnSync(binary, ["--server", `unix:${socket}`, ...words], { input, encoding: "utf8" });
  assert.equal(done.status, 0, `${words.join(" ")}: ${done.stderr}`);
  return done.stdout;
}

before(async () => {
  guarded = await Server.start(["--set", "auth.required=true"]);
  admin(["auth", "grant", "ada", "admin"]);
  admin(["auth", "password", "ada"], `${PASSWORD}\n`);
  admin(["auth", "role", "shop", "allow publish,read on orders.>"]);
  admin(["auth", "grant", "shop", "shop"]);
  admin(["auth", "password", "shop"], `${PASSWORD}\n`);
});

after(() => guarded?.close());

const allowed = { allowed: /status of 40[13]/ };

async function enter(page, name, password) {
  await page.fill("#login-name", name);
  await page.fill("#login-password", password);
  await page.click("form.login button[type=submit]");
}

test("the form lets in with the right password, says who is in, and logs out", async ({ page, shot }) => {
  await page.goto(`${guarded.url}/#/topics`);
  await page.waitForSelector("form.login");
  await shot("login");
  await enter(page, "ada", "wrong horse battery");
  await page.waitForFunction(() => document.querySelector("form.login .trouble")?.textContent.includes("wrong"));
  assert.equal(await page.inputValue("#login-password"), "");
  await enter(page, "ada", PASSWORD);
  await page.waitForSelector("#main[data-ready]");
  assert.equal(await page.textContent("#who .name"), "ada");
  assert.equal(await page.locator("form.login").count(), 0);
  await shot("logged-in");
  // A script of the page cannot read the login, and the browser keeps it to this site.
  assert.equal(await page.evaluate(() => document.cookie), "");
  const [cookie] = (await page.context().cookies(guarded.url)).filter(({ name }) => name === "gapless_login");
  assert.deepEqual([cookie.httpOnly, cookie.sameSite], [true, "Strict"]);
  await page.click("#who button");
  await page.waitForSelector("form.login");
  const old = await fetch(`${guarded.url}/v1/topics`, { headers: { cookie: `gapless_login=${cookie.value}` } });
  assert.equal(old.status, 401, "the cookie is good no more, wherever it was kept");
}, allowed);

test("a login that ends while the page is open asks again, and what was typed stays", async ({ page, shot }) => {
  await page.goto(`${guarded.url}/#/topics`);
  await page.waitForSelector("form.login");
  await enter(page, "ada", PASSWORD);
  await page.waitForSelector("#main[data-ready]");
  await page.fill("input[type=search]", "typed");
  // A new password ends the logins that were made with the old one.
  admin(["auth", "password", "ada"], `${PASSWORD}\n`);
  await page.waitForSelector("form.login");
  assert.match(await page.textContent("form.login .words"), /login has ended/);
  assert.equal(await page.locator("input[type=search]").isVisible(), false);
  await shot("login-ended");
  await enter(page, "ada", PASSWORD);
  await page.waitForFunction(() => !document.querySelector("form.login"));
  assert.equal(await page.inputValue("input[type=search]"), "typed");
  await page.waitForFunction(() => document.getElementById("status").textContent === "Live");
  // So does a restart, which forgets all logins.
  await guarded.restart();
  await page.waitForSelector("form.login");
  await page.context().clearCookies();
}, allowed);

test("one who may not see the state is told so, by name", async ({ page }) => {
  await page.goto(`${guarded.url}/`);
  await page.waitForSelector("form.login");
  await enter(page, "shop", PASSWORD);
  await page.waitForFunction(() => document.querySelector("form.login .words")?.textContent.startsWith("shop may not"));
  assert.equal(await page.textContent("#who .name"), "shop");
  await enter(page, "ada", PASSWORD);
  await page.waitForSelector("#main[data-ready]");
  assert.equal(await page.textContent("#who .name"), "ada");
  await page.context().clearCookies();
}, allowed);

test("an administrator changes roles and tokens on the page", async ({ page, shot }) => {
  await page.goto(`${guarded.url}/#/access`);
  await page.waitForSelector("form.login");
  await enter(page, "ada", PASSWORD);
  await page.waitForFunction(() => !document.querySelector("form.login"));
  await page.waitForSelector("#nav a[href='#/access']:not([hidden])");
  await page.waitForSelector(".access tbody tr");
  await page.fill("#access-role", "reader");
  await page.fill("#access-rule", "allow read on orders.>");
  await page.click("text=Add role");
  await page.waitForSelector("[aria-label='Rules of reader']");
  await page.fill("#access-name", "robot");
  await page.fill("#access-roles", "reader");
  await page.click("text=Add identity");
  await page.waitForSelector("[aria-label='Roles of robot']");
  await page.locator("tr", { has: page.locator("[aria-label='Roles of robot']") }).getByText("New token").click();
  const token = await page.locator(".access .notice code").textContent();
  await shot("access");
  const asked = (path) => fetch(guarded.url + path, { headers: { authorization: `Bearer ${token}` } });
  assert.equal((await asked("/v1/topics/orders.eu")).status, 404, "it may read, and there is nothing");
  assert.equal((await asked("/v1/topics/other")).status, 403);
  // A rule that is none is refused in words, and nothing changes.
  await page.fill("[aria-label='Rules of reader']", "allow all");
  await page.locator("tr", { has: page.locator("[aria-label='Rules of reader']") }).getByText("Save").click();
  await page.waitForSelector(".access .notice.bad:not([hidden])");
  await page.locator("tr", { has: page.locator("[aria-label='Roles of robot']") }).getByText("Revoke").click();
  await until("the token is revoked", async () => (await asked("/v1/topics/orders.eu")).status === 401);
  await page.context().clearCookies();
}, { allowed: /status of 40[0134]/ });

test("a server that asks for nothing shows no form and no name", async ({ server, page }) => {
  await page.goto(server.url);
  await page.waitForSelector("#main[data-ready]");
  assert.equal(await page.locator("#who").isVisible(), false);
  assert.equal(await page.locator("form.login").count(), 0);
  await until("the state is there", async () => (await server.state()).server);
});
