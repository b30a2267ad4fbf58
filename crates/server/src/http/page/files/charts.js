// Charts as SVG: lines over time, with the time below them and the scale beside them.
//
// A point stands where its time is, so that a pause of the server is a hole and not a line. One
// outlier does not flatten the rest: the scale ends a little above what is usual, what is higher is
// cut off at the top with a mark, and the peak is written in words.

import { h, mark, say, svg } from "./dom.js";
import { axisTime, axisDay, clock } from "./format.js";

const WIDTH = 1000;
/** A point that is so many times as high as nearly all others is cut off. */
const OUTLIER = 4;
/** Points from which on an outlier can be told from a beginning. */
const OUTLIER_POINTS = 12;
/** Points that are so many steps apart are not joined. */
const HOLE_STEPS = 3.5;
/** Steps of the axis, in ms: the first that gives at most five labels is taken. */
const TICKS = [60e3, 5 * 60e3, 15 * 60e3, 3600e3, 4 * 3600e3, 12 * 3600e3];
const LABELS_MAX = 5;

/** A line without axes, for a table: the newest point is at the right edge. */
export function sparkline(length = 60, height = 22) {
  const ground = svg("path", { class: "grid", d: `M0 ${height - 2}H${WIDTH}` });
  const area = svg("path", { class: "area" });
  const line = svg("path", { class: "line" });
  const element = svg("svg", {
    class: "spark", viewBox: `0 0 ${WIDTH} ${height}`, preserveAspectRatio: "none", "aria-hidden": "true",
  }, ground, area, line);
  return {
    element,
    update(points) {
      // A single point has nothing to draw a line from: it rises from nothing.
      const shown = points?.length === 1 ? [0, ...points] : points ?? [];
      const max = Math.max(0, ...shown);
      const step = WIDTH / (length - 1);
      const from = WIDTH - (shown.length - 1) * step;
      const placed = max === 0 ? [] : shown.map((point, at) =>
        [from + at * step, height - 2 - (point / max) * (height - 4)]);
      const path = joined([placed]);
      mark(line, "d", path);
      mark(area, "d", max === 0 ? "" : `${path}L${WIDTH} ${height}L${from.toFixed(1)} ${height}Z`);
    },
  };
}

/**
 * Where the scale ends: above the highest point, or above the usual ones if that is far away. Bytes are
 * counted in powers of 1024 (`unit`).
 */
export function ceiling(values, unit = 1) {
  const sorted = values.filter((value) => value > 0).sort((a, b) => a - b);
  if (sorted.length === 0) return { top: 0, isCut: false };
  const highest = sorted.at(-1);
  const usual = sorted[Math.floor((sorted.length - 1) * 0.9)];
  const isCut = sorted.length >= OUTLIER_POINTS && highest > usual * OUTLIER;
  return { top: round(isCut ? usual * 1.5 : highest, unit), isCut };
}

/** The next of 1, 1.5, 2, 3, 4, 5, 6, 8 times a power of ten, in its unit. */
function round(number, unit) {
  if (unit > 1 && number >= unit) return round(number / unit, unit) * unit;
  const power = 10 ** Math.floor(Math.log10(number));
  return ([1, 1.5, 2, 3, 4, 5, 6, 8, 10].find((step) => step * power >= number * 0.9999) ?? 10) * power;
}

function joined(runs) {
  return runs.filter((run) => run.length > 0).map((run) => {
    const path = run.map(([x, y], at) => `${at ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
    // A point on its own is a dot.
    return run.length === 1 ? `${path}h0.1` : path;
  }).join("");
}

/**
 * A chart of one or more series. `what` says what it shows, `series` names the classes of its lines,
 * `format` writes a value, `names` says what each line is, `unit` is 1024 for bytes.
 */
export function chart({ what, series, format, names = [], unit = 1, height = 120 }) {
  const shapes = series.map((name) => ({
    area: svg("path", { class: `area ${name}` }), line: svg("path", { class: `line ${name}` }),
  }));
  const peaks = svg("path", { class: "peaks" });
  const cursor = svg("path", { class: "cursor" });
  const grid = svg("path", { class: "grid", d: `M0 1H${WIDTH}M0 ${height / 2}H${WIDTH}M0 ${height - 1}H${WIDTH}` });
  const ticks = svg("path", { class: "grid" });
  const picture = svg("svg", {
    viewBox: `0 0 ${WIDTH} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": what,
  }, grid, ticks, shapes.flatMap((each) => [each.area, each.line]), peaks, cursor);
  const [top, middle] = [h("span"), h("span")];
  const scale = h("div", { class: "chart-scale", "aria-hidden": "true" }, top, middle, h("span", {}, "0"));
  const day = h("span", { class: "chart-day", "aria-hidden": "true" });
  const axis = h("div", { class: "chart-axis", "aria-hidden": "true" });
  const note = h("p", { class: "chart-note" });
  const element = h("div", { class: "chart" }, note, scale, picture, day, axis);
  let now = { times: [], values: [], from: 0, to: 1, words: "" };
  let pointer = null;

  const place = (time) => ((time - now.from) / (now.to - now.from)) * WIDTH;

  function tell() {
    if (pointer === null || now.times.length === 0) {
      mark(cursor, "d", null);
      say(note, now.words);
      return;
    }
    const wanted = now.from + pointer * (now.to - now.from);
    let at = 0;
    now.times.forEach((time, each) => {
      if (Math.abs(time - wanted) < Math.abs(now.times[at] - wanted)) at = each;
    });
    mark(cursor, "d", `M${place(now.times[at]).toFixed(1)} 0V${height}`);
    const values = now.values.map((points, each) => `${names[each] ? `${names[each]} ` : ""}${format(points[at])}`);
    say(note, `${axisDay(now.times[at])} ${clock(now.times[at]).slice(0, 8)}: ${values.join(", ")}`);
  }
  picture.addEventListener("pointermove", (event) => {
    const box = picture.getBoundingClientRect();
    pointer = Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
    tell();
  });
  picture.addEventListener("pointerleave", () => {
    pointer = null;
    tell();
  });

  function labels() {
    const span = now.to - now.from;
    const step = TICKS.find((each) => span / each <= LABELS_MAX) ?? TICKS.at(-1);
    // Round in local time, also where that is not whole hours from UTC.
    const shift = new Date(now.to).getTimezoneOffset() * 60e3;
    const found = [];
    for (let at = Math.ceil((now.from - shift) / step) * step + shift; at <= now.to; at += step) found.push(at);
    mark(ticks, "d", found.map((at) => `M${place(at).toFixed(1)} 0V${height}`).join(""));
    const key = found.join();
    if (axis.dataset.key !== key) {
      axis.dataset.key = key;
      axis.replaceChildren(...found.map((at) => h("span", {}, axisTime(at))));
      say(day, axisDay(found[0] ?? now.to));
    }
    [...axis.children].forEach((label, each) => {
      const share = place(found[each]) / WIDTH;
      label.style.left = `${(share * 100).toFixed(2)}%`;
      // Those at the edges stay inside.
      mark(label, "data-edge", share < 0.04 ? "left" : share > 0.96 ? "right" : null);
    });
  }

  return {
    element,
    /** `times` in ms, oldest first; each of `lists` ends with the newest time. */
    update({ times, span, step }, ...lists) {
      const to = times.at(-1) ?? Date.now();
      const values = lists.map((list) => {
        const points = list ?? [];
        return times.map((_, at) => points[points.length - times.length + at] ?? null);
      });
      now = { times, values, from: to - span, to, words: "" };
      const all = values.flat().filter((value) => value !== null);
      const { top: max, isCut } = ceiling(all, unit);
      say(top, max > 0 ? format(max) : "");
      say(middle, max > 0 ? format(max / 2) : "");
      let cut = "";
      values.forEach((points, each) => {
        const runs = [[]];
        points.forEach((value, at) => {
          if (value === null) return void runs.push([]);
          if (at > 0 && times[at] - times[at - 1] > step * HOLE_STEPS) runs.push([]);
          const x = place(times[at]);
          const share = max > 0 ? Math.min(1, value / max) : 0;
          if (isCut && value > max) cut += `M${x.toFixed(1)} 1h0.1`;
          runs.at(-1).push([x, height - 1 - share * (height - 2)]);
        });
        mark(shapes[each].line, "d", max > 0 ? joined(runs) : "");
        mark(shapes[each].area, "d", max > 0 ? runs.filter((run) => run.length > 1).map((run) =>
          `${joined([run])}L${run.at(-1)[0].toFixed(1)} ${height}L${run[0][0].toFixed(1)} ${height}Z`).join("") : "");
      });
      mark(peaks, "d", cut);
      const highest = all.length > 0 ? Math.max(...all) : 0;
      const when = times[values.reduce((found, points) => (found >= 0 ? found : points.indexOf(highest)), -1)];
      if (isCut) now.words = `peak ${format(highest)} at ${clock(when).slice(0, 8)}, cut off`;
      mark(picture, "aria-label", highest > 0 ? `${what}: highest ${format(highest)} at ${clock(when).slice(0, 8)}` : `${what}: nothing`);
      labels();
      tell();
    },
  };
}
