// Charts: an hour that is there though no page was open, an axis with times, and outliers.

import assert from "node:assert/strict";
import { Server, test, until } from "./harness.js";

test("what happened while no page was open is in the chart", async ({ page, shot }) => {
  // Steps are short here, so that the test is.
  const server = await Server.start(["--set", "http.history_step_ms=200"]);
  try {
    await server.create("charts.unseen");
    for (let number = 1; number <= 20; number++) await server.publish("charts.unseen", "x");
    await until("a step has them", async () => {
      const { messages_in: rates } = await server.ask("GET", "/v1/state/history");
      return rates.some((rate) => rate > 0) && rates.at(-1) === 0;
    });
    await page.goto(`${server.url}/#/?range=hour`);
    const chart = page.getByRole("region", { name: "Messages" }).locator("svg");
    await page.waitForFunction(() => /highest .*\/s at \d\d:\d\d/.test(document.querySelector("section[aria-label=Messages] svg").getAttribute("aria-label")));
    assert.match(await chart.getAttribute("aria-label"), /^Messages per second: highest/);
    const axis = page.getByRole("region", { name: "Messages" }).locator(".chart-axis span");
    assert.match(await axis.first().textContent(), /^\d\d:\d\d$/);
    assert.match(await page.getByRole("region", { name: "Messages" }).locator(".chart-day").textContent(), /^\d{1,2} [A-Z][a-z]{2}$/);
    await shot("chart-hour");
  } finally {
    await server.close();
  }
});

test("one outlier does not flatten a chart, and its height is written", async ({ server, page }) => {
  await page.goto(server.url);
  await page.locator("main[data-ready]").waitFor();
  // The chart itself, with points of our own: an hour of about 100, and one of 10,000.
  const drawn = await page.evaluate(async () => {
    const app = document.querySelector("script[type=module]").src;
    const { chart } = await import(app.replace("app.js", "charts.js"));
    const picture = chart({ what: "Test", series: ["one"], format: (number) => `${number} ms` });
    document.querySelector("main").replaceChildren(picture.element);
    const times = Array.from({ length: 100 }, (_, at) => Date.now() - (100 - at) * 10_000);
    const values = times.map((_, at) => (at === 50 ? 10_000 : 90 + (at % 20)));
    picture.update({ times, span: 1_000_000, step: 10_000 }, values);
    const box = (selector) => picture.element.querySelector(selector).getBoundingClientRect();
    const ys = picture.element.querySelector(".line").getAttribute("d").match(/[ML][\d.]+ [\d.]+/g).map((each) => Number(each.split(" ")[1]));
    return {
      scale: picture.element.querySelector(".chart-scale span").textContent,
      note: picture.element.querySelector(".chart-note").textContent,
      usual: ys[10], label: box(".chart-scale span").right, plot: box("svg").left,
      cut: picture.element.querySelector(".peaks").getAttribute("d"),
    };
  });
  assert.equal(drawn.scale, "200 ms");
  assert.match(drawn.note, /^peak 10000 ms at \d\d:\d\d:\d\d, cut off$/);
  assert.ok(drawn.usual > 40 && drawn.usual < 80, `usual points are in the middle, at ${drawn.usual} of 120`);
  assert.notEqual(drawn.cut, "", "it is marked where it was cut off");
  assert.ok(drawn.label <= drawn.plot, "the scale is beside the lines, not on them");
});

test("rates in and out of a topic are shown", async ({ server, page }) => {
  await server.create("charts.rates");
  const stream = await fetch(`${server.url}/v1/topics/charts.rates/follow`);
  await page.goto(`${server.url}/#/topics`);
  const row = page.getByRole("row", { name: /charts\.rates/ });
  await row.waitFor();
  await until("both move", async () => {
    await server.publish("charts.rates", "x");
    const cells = await row.locator("td").allTextContents();
    return !cells[2].startsWith("0") && cells[2] !== "–" && !cells[3].startsWith("0") && cells[3] !== "–";
  });
  await stream.body.cancel();
});
