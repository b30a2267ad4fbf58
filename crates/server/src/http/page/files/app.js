// The frame of the page: which view is shown, and the one stream of state that feeds it.
//
// A view is a module with `title`, `nav` (its name in the bar, if it has one) and `open(place,
// page)`, which gives `{ element, query, update(state), close() }`. `query` says what of the
// state it wants to see. To add a view: write the module, and put it into `views`.

import { h, mark, say } from "./dom.js";
import { Live } from "./live.js";
import { Login } from "./login.js";
import * as overview from "./views/overview.js";
import * as topics from "./views/topics.js";
import * as topic from "./views/topic.js";
import * as subscribers from "./views/subscribers.js";
import * as groups from "./views/groups.js";
import * as group from "./views/group.js";
import * as jobs from "./views/jobs.js";
import * as job from "./views/job.js";
import * as outbox from "./views/outbox.js";
import * as cluster from "./views/cluster.js";
import * as events from "./views/events.js";
import * as access from "./views/access.js";
import * as missing from "./views/missing.js";

const views = { "": overview, topics, topic, subscribers, groups, group, jobs, job, outbox, cluster, events, access };

const main = document.getElementById("main");
const status = document.getElementById("status");
const nav = document.getElementById("nav");

const links = new Map();
for (const [name, view] of Object.entries(views)) {
  if (!view.nav) continue;
  const link = h("a", { href: `#/${name}` }, view.nav);
  link.hidden = name === "access";
  links.set(name, link);
  nav.append(link);
}

let shown = null;
let place = null;
let lostAt = null;

/** How long the stream may be away before that is said. */
const PAUSE_MS = 700;
/** State comes every second; when none came for so long, what is shown is old. */
const SILENCE_MS = 3000;

const silence = document.getElementById("silence");

const live = new Live(
  (state) => {
    const ok = state.server?.state !== "Error";
    mark(document.body, "data-trouble", !ok);
    shown?.update(state);
    mark(main, "data-ready", true);
  },
  (now) => {
    if (now === "live") lostAt = null;
    else lostAt ??= Date.now();
    if (now === "connecting" && Date.now() - lostAt < PAUSE_MS) {
      // A short pause while another view is opened is not worth a word.
      setTimeout(() => lostAt !== null && live.tell("connecting"), PAUSE_MS);
      return;
    }
    mark(status, "data-state", now);
    say(status, { live: "Live", connecting: "Reconnecting…", paused: "Paused" }[now]);
  },
  (ms) => {
    const silent = ms >= SILENCE_MS;
    silence.hidden = !silent;
    mark(document.body, "data-silent", silent);
    if (!silent) return;
    say(silence.querySelector("span"), `${Math.floor(ms / 1000)} s`);
    mark(status, "data-state", "connecting");
    say(status, "No data");
  },
  () => login.check(),
);

const login = new Login(document.getElementById("who"), main, (isSame) => {
  live.resume();
  if (!isSame) go();
}, (who) => {
  // Where everyone may do everything there is no access to grant.
  links.get("access").hidden = !who.required;
});

/** What the address says: `#/topics?filter=a` is the view `topics` with a parameter. */
function placeOf(hash) {
  const [path, query] = hash.replace(/^#\/?/, "").split("?");
  const [view, ...rest] = path.split("/");
  return {
    view,
    asked: path,
    name: rest.length > 0 ? decodeURIComponent(rest.join("/")) : null,
    parameters: new URLSearchParams(query ?? ""),
  };
}

const page = {
  /** Asks for another part of the state. */
  watch(query) {
    live.watch(query);
  },
  /** Remembers parameters in the address without a step in the history. */
  remember(parameters) {
    const given = Object.entries(parameters).filter(([, value]) => value);
    const query = new URLSearchParams(given).toString();
    const path = location.hash.split("?")[0] || "#/";
    history.replaceState(null, "", query ? `${path}?${query}` : path);
  },
};

function go() {
  if (location.hash && !location.hash.startsWith("#/")) return;
  const next = placeOf(location.hash);
  const isFirst = place === null;
  place = next;
  shown?.close?.();
  const view = Object.hasOwn(views, next.view) ? views[next.view] : missing;
  shown = view.open(next, page);
  main.replaceChildren(...(login.form ? [login.form] : []), shown.element);
  mark(main, "data-ready", null);
  const title = typeof view.title === "function" ? view.title(next) : view.title;
  document.title = `${title} · gapless`;
  for (const [name, link] of links) {
    // The view of one thing belongs to the list of them.
    const here = name === next.view || name === `${next.view}s`;
    mark(link, "aria-current", here ? "page" : null);
  }
  live.watch(shown.query);
  if (!isFirst) {
    main.focus({ preventScroll: true });
    scrollTo(0, 0);
  }
}

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});

// The slash goes to the filter of a view, as on many pages.
addEventListener("keydown", (event) => {
  const typing = event.target.closest?.("input, textarea, select");
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) {
    const filter = document.querySelector("input[type=search]");
    if (filter) {
      event.preventDefault();
      filter.focus();
    }
  }
});

addEventListener("hashchange", go);
go();
login.check();
