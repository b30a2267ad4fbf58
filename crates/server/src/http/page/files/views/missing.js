// An address that leads to no view.

import { h } from "../dom.js";

export const title = "Not found";

export function open(place) {
  return {
    element: h("div", {},
      h("div", { class: "lead" }, h("h1", {}, "Not found")),
      h("section", { class: "panel" },
        h("p", {}, "This page has no view ", h("code", {}, `#/${place.asked}`), ". ",
          h("a", { href: "#/" }, "Go to the overview.")))),
    query: { show: "," },
    update() {},
  };
}
