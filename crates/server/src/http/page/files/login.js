// Who uses the page: the name in the bar, the form to log in, and what happens when a login ends.
//
// The page never sees a secret again once it is sent: the login is a cookie that scripts cannot
// read. A login that ends while the page is open puts the form before what is shown; what was typed
// there is still there when the same user is back.

import { ask } from "./api.js";
import { h, mark, say } from "./dom.js";

export class Login {
  /**
   * `bar` shows the name, `main` the form. `back(isSame)` is called when a user has logged in,
   * with whether it is the one whose view is open; `known(who)` whenever the server said who it is.
   */
  constructor(bar, main, back, known) {
    this.known = known;
    this.bar = bar;
    this.main = main;
    this.back = back;
    this.name = null;
    this.form = null;
    addEventListener("gapless:unauthenticated", () => this.check());
  }

  /** Asks the server who this is, and shows it; `false` if it is not let in, or sees no state. */
  async check() {
    let who;
    try {
      who = await ask("POST", "/v1/auth", { json: { do: "who_am_i" }, quiet: true });
    } catch (problem) {
      // A server that is away is waited for as always.
      if (problem.status !== 401) return true;
      this.#show(this.name === null ? "" : "The login has ended. Log in again to go on.");
      return false;
    }
    this.#bar(who);
    this.known(who);
    try {
      await ask("GET", "/v1/server", { quiet: true });
    } catch (problem) {
      if (problem.status === 401) return this.check();
      if (problem.status !== 403) return true;
      this.#show(`${who.name} may not see the state of this server: that needs the right admin on server, ` +
        "which the role monitor has.");
      return false;
    }
    this.#hide(who.name);
    return true;
  }

  #bar(who) {
    const stranger = who.name === "anonymous";
    this.bar.hidden = stranger && !who.required;
    if (this.bar.hidden) return;
    const act = who.login
      ? h("button", { type: "button", class: "link", onclick: () => this.#leave() }, "Log out")
      : stranger && h("button", { type: "button", class: "link", onclick: () => this.#show("") }, "Log in");
    this.bar.replaceChildren(h("span", { class: "name", title: `logged in as ${who.name}` }, who.name), ...(act ? [act] : []));
  }

  #show(words) {
    if (this.form) {
      say(this.form.querySelector(".words"), words);
      return;
    }
    const name = h("input", { id: "login-name", name: "username", autocomplete: "username", required: true });
    const password = h("input", {
      id: "login-password", name: "password", type: "password", autocomplete: "current-password", required: true,
    });
    const trouble = h("p", { class: "trouble", role: "alert" });
    const button = h("button", { type: "submit", class: "main" }, "Log in");
    const enter = async (event) => {
      event.preventDefault();
      mark(button, "disabled", true);
      say(trouble, "");
      try {
        await ask("POST", "/v1/auth/login", {
          json: { name: name.value, password: password.value }, quiet: true,
        });
        await this.check();
      } catch (problem) {
        say(trouble, problem.message);
        password.focus();
      } finally {
        password.value = "";
        mark(button, "disabled", false);
      }
    };
    this.form = h("form", { class: "login panel", onsubmit: enter, "aria-label": "Log in" },
      h("h1", {}, "Log in"),
      h("p", { class: "words" }, words),
      h("label", { for: "login-name" }, "Name"), name,
      h("label", { for: "login-password" }, "Password"), password,
      trouble,
      h("div", { class: "buttons" }, button));
    this.main.prepend(this.form);
    mark(this.main, "data-locked", true);
    name.focus();
  }

  #hide(name) {
    const isSame = this.name === name;
    this.name = name;
    if (!this.form) return;
    this.form.remove();
    this.form = null;
    mark(this.main, "data-locked", null);
    this.back(isSame);
  }

  async #leave() {
    await ask("POST", "/v1/auth/logout", { quiet: true }).catch(() => {});
    // Nothing of what was shown stays behind a form for the next user.
    location.reload();
  }
}
