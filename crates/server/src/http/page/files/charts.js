// Small charts as SVG: an area with a line on it, scaled to their own largest point.

import { h, mark, say, svg } from "./dom.js";

const WIDTH = 300;
const LENGTH_MIN = 60;

function scaled(points, length, max, height) {
  // The newest point is at the right edge, however few there are.
  const step = WIDTH / Math.max(1, length - 1);
  const from = WIDTH - (points.length - 1) * step;
  const top = 2;
  return points.map((point, at) => {
    const share = max > 0 ? (point ?? 0) / max : 0;
    return [from + at * step, height - top - share * (height - 2 * top)];
  });
}

/** A single point has nothing to draw a line from: it rises from nothing. */
function ofTwo(points) {
  return points.length === 1 ? [0, ...points] : points;
}

function path(points) {
  return points.map(([x, y], at) => `${at ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
}

/** A line without axes, for a table. */
export function sparkline(length = 60, height = 22) {
  const ground = svg("path", { class: "grid", d: `M0 ${height - 2}H${WIDTH}` });
  const area = svg("path", { class: "area" });
  const line = svg("path", { class: "line" });
  const element = svg("svg", {
    class: "spark", viewBox: `0 0 ${WIDTH} ${height}`, preserveAspectRatio: "none",
    "aria-hidden": "true",
  }, ground, area, line);
  return {
    element,
    update(points) {
      const shown = ofTwo(points ?? []);
      const max = Math.max(0, ...shown);
      const placed = max === 0 ? [] : scaled(shown, length, max, height);
      const begin = placed[0]?.[0].toFixed(1);
      mark(line, "d", path(placed));
      mark(area, "d", max === 0 ? "" : `${path(placed)}L${WIDTH} ${height}L${begin} ${height}Z`);
    },
  };
}

/**
 * A chart of several series with the largest value at its side. `series` names their
 * classes; `format` writes a value; `what` is the label for screen readers.
 */
export function chart({ what, series, format, length: most = 300, height = 96 }) {
  const shapes = series.map((name) => ({
    area: svg("path", { class: `area ${name}` }),
    line: svg("path", { class: `line ${name}` }),
  }));
  const cursor = svg("path", { class: "cursor" });
  const grid = svg("path", {
    class: "grid", d: `M0 2H${WIDTH}M0 ${height / 2}H${WIDTH}M0 ${height - 2}H${WIDTH}`,
  });
  const picture = svg("svg", {
    viewBox: `0 0 ${WIDTH} ${height}`, preserveAspectRatio: "none", role: "img",
    "aria-label": what,
  }, grid, shapes.map((each) => [each.area, each.line]).flat(), cursor);
  const top = h("span", { class: "chart-max" });
  const note = h("span", { class: "chart-note" });
  const element = h("div", { class: "chart" }, picture, top, note);
  let shown = series.map(() => []);
  let pointer = null;
  // It begins with a minute and grows with what there is to show.
  let length = Math.min(most, LENGTH_MIN);

  const tell = () => {
    if (pointer === null) {
      mark(cursor, "d", null);
      say(note, "");
      return;
    }
    const back = Math.round((1 - pointer) * (length - 1));
    const at = shown[0].length - 1 - back;
    const x = WIDTH - back * (WIDTH / (length - 1));
    mark(cursor, "d", `M${x.toFixed(1)} 0V${height}`);
    const values = shown.map((points) => (at < 0 ? null : points[at])).map(format);
    say(note, at < 0 ? "" : `${values.join(" · ")}, ${back === 0 ? "now" : `${back} s ago`}`);
  };
  element.addEventListener("pointermove", (event) => {
    const box = element.getBoundingClientRect();
    pointer = Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
    tell();
  });
  element.addEventListener("pointerleave", () => {
    pointer = null;
    tell();
  });

  return {
    element,
    update(...points) {
      shown = points.map((each) => each ?? []);
      length = Math.min(most, Math.max(LENGTH_MIN, shown[0].length));
      const max = Math.max(0, ...shown.flat().map((each) => each ?? 0));
      say(top, max > 0 ? format(max) : "");
      shown.forEach((each, at) => {
        const placed = scaled(ofTwo(each), length, max, height);
        mark(shapes[at].line, "d", path(placed));
        const begin = placed[0]?.[0].toFixed(1);
        mark(shapes[at].area, "d", each.length > 0 && max > 0
          ? `${path(placed)}L${WIDTH} ${height}L${begin} ${height}Z`
          : null);
      });
      tell();
    },
  };
}
