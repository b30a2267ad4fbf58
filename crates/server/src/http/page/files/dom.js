// Small helpers around the DOM. Text goes in as text nodes only: what users publish is never
// read as HTML.

const SVG = "http://www.w3.org/2000/svg";

function make(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked" || name === "selected") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined && child !== false) element.append(child);
  }
  return element;
}

/** Creates an element: `h("p", { class: "note" }, "text", other)`. */
export function h(tag, attributes, ...children) {
  return make(document.createElement(tag), attributes, children);
}

/** The same for SVG. */
export function svg(tag, attributes, ...children) {
  return make(document.createElementNS(SVG, tag), attributes, children);
}

/** Sets the text of an element, and touches it only if it is another one. */
export function say(element, text) {
  const wanted = String(text ?? "");
  if (element.textContent !== wanted) element.textContent = wanted;
}

/** Sets or removes an attribute, and touches it only if it is another one. */
export function mark(element, name, value) {
  if (value === null || value === undefined || value === false) {
    if (element.hasAttribute(name)) element.removeAttribute(name);
  } else if (element.getAttribute(name) !== String(value)) {
    element.setAttribute(name, value);
  }
}

/**
 * A list of lines that are created once and then updated, so that focus and selection stay.
 * `create(row)` gives `{ element, update(row) }`.
 */
export class Lines {
  constructor(parent, create) {
    this.parent = parent;
    this.create = create;
    this.lines = new Map();
  }

  show(rows) {
    const wanted = new Set(rows.map((row) => row.id));
    for (const [id, line] of this.lines) {
      if (!wanted.has(id)) {
        line.element.remove();
        this.lines.delete(id);
      }
    }
    let at = this.parent.firstElementChild;
    for (const row of rows) {
      let line = this.lines.get(row.id);
      if (!line) {
        line = this.create(row);
        this.lines.set(row.id, line);
      }
      line.update(row);
      if (line.element === at) at = at.nextElementSibling;
      else this.parent.insertBefore(line.element, at);
    }
  }
}
