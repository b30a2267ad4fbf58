// All of it without a mouse.

import assert from "node:assert/strict";
import { test } from "./harness.js";

test("a topic is made, filled and followed with the keyboard alone", async ({ server, page }) => {
  const { keyboard } = page;
  const focused = () => page.evaluate(() => document.activeElement?.textContent || document.activeElement?.id);
  const tabTo = async (name) => {
    for (let presses = 0; presses < 60; presses++) {
      const there = await page.evaluate(() => {
        const element = document.activeElement;
        if (!element?.matches("a, button, input, select, textarea")) return "";
        const label = element?.labels?.[0]?.textContent ?? element?.getAttribute("aria-label");
        return label || element?.textContent;
      });
      if (there?.includes(name)) return;
      await keyboard.press("Tab");
    }
    assert.fail(`${name} is not reached by Tab`);
  };

  await page.goto(server.url);
  await page.locator("#status[data-state=live]").waitFor();
  await keyboard.press("Tab");
  assert.match(await focused(), /Skip/);
  await keyboard.press("Enter");
  assert.equal(await page.evaluate(() => document.activeElement.id), "main");

  await page.evaluate(() => document.activeElement.blur());
  await tabTo("Topics");
  const outline = await page.evaluate(() => getComputedStyle(document.activeElement).outlineStyle);
  assert.equal(outline, "solid", "what has the focus is marked");
  await keyboard.press("Enter");
  await page.getByRole("heading", { name: "Topics" }).waitFor();
  await tabTo("New topic");
  await keyboard.press("Enter");
  await page.locator("dialog[open]").waitFor();
  await keyboard.type("keys.only");
  await keyboard.press("Enter");
  await page.getByRole("heading", { name: "keys.only" }).waitFor();
  await tabTo("Body is");
  await keyboard.press("Tab");
  await keyboard.type("typed");
  await keyboard.press("Control+Enter");
  await page.locator(".messages li[data-seq='1']").getByText("typed").waitFor();

  // The slash goes to the filter, and the filter finds it.
  await page.goto(`${server.url}/#/topics`);
  await page.getByRole("link", { name: "keys.only" }).waitFor();
  await keyboard.press("/");
  await keyboard.type("keys.on");
  await page.getByText(/1 of \d+ topics|^1 topic$/).first().waitFor();
  await keyboard.press("Tab");
  await tabTo("keys.only");
  await keyboard.press("Enter");
  await page.getByRole("heading", { name: "keys.only" }).waitFor();
});
