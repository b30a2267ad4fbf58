// A dialogue: a question before something is destroyed, or a form. It stays open while the server
// works, and says in it why something was refused.

import { h, say } from "./dom.js";

let number = 0;

/**
 * Asks. `content` is text or elements, `action` the word on the button, `danger` whether it destroys
 * something. `work()` is done on the button; the promise gives what it gave, or `null` if the user
 * went back.
 */
export function dialogue({ title, content, action, danger = false, work }) {
  return new Promise((resolve) => {
    const id = `dialogue-${++number}`;
    const trouble = h("p", { class: "notice bad", role: "alert", hidden: true });
    const back = h("button", { type: "button", onclick: () => end(null) }, "Cancel");
    const go = h("button", { type: "submit", class: danger ? "danger" : "main" }, action);
    const form = h("form", {},
      h("h2", { id }, title),
      [content].flat().map((each) => (typeof each === "string" ? h("p", { class: "words" }, each) : each)),
      trouble, h("div", { class: "buttons" }, back, go));
    const element = h("dialog", { "aria-labelledby": id }, form);
    function end(answer) {
      element.close();
      element.remove();
      resolve(answer);
    }
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      trouble.hidden = true;
      go.disabled = true;
      try {
        end((await work()) ?? true);
      } catch (error) {
        trouble.hidden = false;
        say(trouble, error.message);
      } finally {
        go.disabled = false;
      }
    });
    element.addEventListener("cancel", (event) => {
      event.preventDefault();
      end(null);
    });
    document.body.append(element);
    element.showModal();
    // Enter must not destroy anything by accident.
    if (danger) back.focus();
  });
}

let fields = 0;

/** A field with its label: `[element for the form, the input]`. `hint` stands below it. */
export function field(label, input, hint) {
  input.id ||= `field-${++fields}`;
  return h("div", { class: "field" }, h("label", { for: input.id }, label), input, hint && h("p", { class: "hint" }, hint));
}

/** A check box with its label. */
export function check(label, input) {
  input.id ||= `field-${++fields}`;
  return h("label", { class: "check", for: input.id }, input, label);
}
