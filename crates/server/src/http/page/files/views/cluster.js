// The cluster as this node sees it: the nodes and its links to them, what waits for each, and named subscribers.

import { h, Lines, mark, say, svg } from "../dom.js";
import { bytes, count, plural, span } from "../format.js";

export const nav = "Cluster";
export const title = "Cluster";

/** Nodes that are drawn; the table has them all. */
const DRAWN_MAX = 24;
const [WIDTH, HEIGHT] = [640, 300];

const WORDS = {
  "node-unreachable": "its node cannot be reached", "subscriber-unreachable": "it is not connected",
  timeout: "it took nothing in time", "other-error": "its delivery failed",
};

export function open() {
  const summary = h("p", { class: "summary", role: "status" });
  const absent = h("p", { class: "empty", hidden: true },
    "This server is on its own: start it with --node and --cluster-listen to form a cluster.");
  const picture = svg("svg", { class: "nodes", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": "Nodes and links" });
  const head = (name, classes) => h("th", { scope: "col", class: classes }, name);
  const nodes = h("tbody");
  const nodeLines = new Lines(nodes, () => nodeLine());
  const named = h("tbody");
  const namedLines = new Lines(named, () => namedLine());
  const nobody = h("p", { class: "empty" }, "No subscriber has a name.");
  const content = h("div", { hidden: true },
    h("section", { class: "panel" }, picture),
    h("section", { class: "panel flush", "aria-label": "Nodes" }, h("table", { class: "list" },
      h("thead", {}, h("tr", {}, head("Node"), head("State"), head("Patterns", "number wide"),
        head("Waiting", "number"), head("Oldest", "number wide"), head("Unconfirmed", "number wide"))), nodes)),
    h("section", { class: "panel flush", "aria-label": "Named subscribers" }, h("table", { class: "list" },
      h("thead", {}, h("tr", {}, head("Named subscriber"), head("State"), head("Node", "wide"), head("Held", "number"))),
      named), nobody));
  return {
    element: h("div", { class: "cluster" }, h("div", { class: "lead" }, h("h1", {}, "Cluster")),
      h("div", { class: "tools" }, summary), absent, content),
    query: { show: "cluster" },
    update({ cluster }) {
      if (cluster === undefined) return;
      const alone = cluster.node === null;
      absent.hidden = !alone;
      content.hidden = alone;
      if (alone) return say(summary, "");
      const { counts } = cluster;
      const lost = counts.lost ? `, ${plural(counts.lost, "message")} lost` : "";
      say(summary, `Node ${cluster.node} of ${cluster.cluster}: ${plural(cluster.interest.patterns, "pattern")}, `
        + `${bytes(cluster.queued_bytes)} waiting${lost}.`);
      draw(picture, cluster);
      nodeLines.show(cluster.nodes.map((node) => ({ id: node.node, ...node })));
      namedLines.show(cluster.named.map((each) => ({ id: `${each.subscriber} ${each.pattern}`, ...each })));
      nobody.hidden = cluster.named.length > 0;
      named.parentElement.hidden = cluster.named.length === 0;
    },
  };
}

/** How a node or subscriber is doing: a word, a colour, and why. */
function doing({ state, left, link }) {
  if (left) return ["Left", "offline", ""];
  if (state.is === "suspended") {
    return ["Suspended", "error", `${WORDS[state.reason] ?? state.reason}, for ${span(state.for_ms)}`];
  }
  return link === "down" ? ["Connecting", "recovering", ""] : ["Active", "online", ""];
}

function nodeLine() {
  const name = h("span", { class: "name" });
  const state = h("span", { class: "state" });
  const why = h("div", { class: "quiet why" });
  const cells = ["number wide", "number", "number wide", "number wide"].map((classes) => h("td", { class: classes }));
  return {
    element: h("tr", {}, h("td", {}, name), h("td", {}, state, why), ...cells),
    update(node) {
      const [word, colour, reason] = doing(node);
      say(name, node.node);
      say(state, word);
      mark(state, "data-state", colour);
      say(why, reason);
      const oldest = node.queue.oldest_ms === null ? "–" : span(node.queue.oldest_ms);
      const shown = [count(node.patterns), waiting(node.queue), oldest, bytes(node.unconfirmed_bytes)];
      shown.forEach((text, at) => say(cells[at], text));
    },
  };
}

function namedLine() {
  const name = h("span", { class: "name" });
  const pattern = h("span", { class: "quiet" });
  const state = h("span", { class: "state" });
  const why = h("div", { class: "quiet why" });
  const at = h("td", { class: "wide name" });
  const held = h("td", { class: "number" });
  return {
    element: h("tr", {}, h("td", {}, name, " ", pattern), h("td", {}, state, why), at, held),
    update(named) {
      const [word, colour, reason] = doing(named);
      say(name, named.subscriber);
      say(pattern, named.pattern);
      say(state, word);
      mark(state, "data-state", colour);
      say(why, reason);
      say(at, named.node ?? "–");
      say(held, waiting(named.queue));
    },
  };
}

function waiting(queue) {
  return queue.messages ? `${count(queue.messages)} (${bytes(queue.bytes)})` : "0";
}

/** This node in the middle, the others around it. */
function draw(picture, cluster) {
  const [x, y] = [WIDTH / 2, HEIGHT / 2];
  const others = cluster.nodes.slice(0, DRAWN_MAX);
  const parts = others.flatMap((node, at) => {
    const angle = (2 * Math.PI * at) / others.length;
    const [nx, ny] = [x + Math.cos(angle) * (WIDTH / 2 - 90), y + Math.sin(angle) * (HEIGHT / 2 - 45)];
    const [, colour] = doing(node);
    const label = node.queue.messages ? [svg("text", { x: (x + nx) / 2, y: (y + ny) / 2 - 6, class: "queue" }, waiting(node.queue))] : [];
    return [svg("line", { x1: x, y1: y, x2: nx, y2: ny, "data-state": colour }), ...label, ...circle(nx, ny, node.node, colour)];
  });
  picture.replaceChildren(...parts, ...circle(x, y, cluster.node, "online", "me"));
}

function circle(x, y, name, colour, me) {
  return [svg("circle", { cx: x, cy: y, r: 26, "data-state": colour, class: me }), svg("text", { x, y: y + 42 }, name)];
}
