// Who may do what: identities with their tokens, and roles with their rules. Every change is a
// command of docs/security.md, checked and audited by the server.

import { h, say } from "../dom.js";
import { ask } from "../api.js";
import { moment } from "../format.js";

export const nav = "Access";
export const title = "Access";

const command = (json) => ask("POST", "/v1/auth", { json });
const words = (text) => text.split(/[\s,]+/).filter(Boolean);
const head = (...names) => h("thead", {}, h("tr", {}, ...names.map((name) => h("th", { scope: "col" }, name))));

export function open() {
  const trouble = h("p", { class: "notice bad", role: "alert", hidden: true });
  const secret = h("p", { class: "notice", role: "status", hidden: true });
  const identities = h("tbody");
  const roles = h("tbody");

  /** Does a command, and shows what is so then, or why it was not done. */
  const act = async (json) => {
    trouble.hidden = true;
    try {
      const done = await command(json);
      await load();
      return done;
    } catch (error) {
      trouble.hidden = false;
      say(trouble, error.message);
      return null;
    }
  };

  async function load() {
    const [listed, known, tokens] = await Promise.all(
      ["identity_list", "role_list", "token_list"].map((each) => command({ do: each })));
    const of = (name) => tokens.tokens.filter((token) => token.name === name);
    identities.replaceChildren(...listed.identities.map((each) => identity(each, of(each.name))));
    roles.replaceChildren(...known.roles.map(role));
  }

  function identity({ name, roles: held, password }, tokens) {
    const field = h("input", { value: held.join(", "), "aria-label": `Roles of ${name}` });
    const save = () => act({ do: "identity_set", name, roles: words(field.value) });
    const create = async () => {
      const made = await act({ do: "token_create", name });
      if (!made) return;
      secret.hidden = false;
      // It is shown this once, and not kept anywhere on the page.
      secret.replaceChildren(`A token of ${name}, shown only now: `, h("code", {}, made.token));
    };
    const token = ({ id, expires_ms: ends }) => h("li", {}, h("code", {}, id),
      ends ? ` until ${moment(ends)} ` : " ",
      h("button", { type: "button", class: "link", onclick: () => act({ do: "token_revoke", id }) }, "Revoke"));
    return h("tr", {},
      h("td", {}, name),
      h("td", {}, field, " ", h("button", { type: "button", onclick: save }, "Save")),
      h("td", {}, h("ul", { class: "plain" }, ...tokens.map(token)),
        h("button", { type: "button", class: "link", onclick: create }, "New token")),
      h("td", {}, password ? "set" : ""),
      h("td", {}, h("button", {
        type: "button", class: "link", onclick: () => act({ do: "identity_remove", name }),
      }, "Remove")));
  }

  function role({ role: name, rules, built_in: fixed }) {
    const field = h("textarea", { rows: Math.max(rules.length, 1), disabled: fixed, "aria-label": `Rules of ${name}` });
    field.value = rules.join("\n");
    const save = () => act({ do: "role_set", role: name, rules: field.value.split("\n").filter(Boolean) });
    return h("tr", {},
      h("td", {}, name), h("td", {}, field),
      h("td", {}, fixed ? "built in" : [
        h("button", { type: "button", onclick: save }, "Save"), " ",
        h("button", { type: "button", class: "link", onclick: () => act({ do: "role_remove", role: name }) }, "Remove"),
      ]));
  }

  const newName = h("input", { id: "access-name", required: true, autocomplete: "off" });
  const newRoles = h("input", { id: "access-roles", placeholder: "monitor", autocomplete: "off" });
  const addIdentity = (event) => {
    event.preventDefault();
    act({ do: "identity_set", name: newName.value.trim(), roles: words(newRoles.value) });
  };
  const newRole = h("input", { id: "access-role", required: true, autocomplete: "off" });
  const newRule = h("input", { id: "access-rule", placeholder: "allow publish on orders.>", autocomplete: "off" });
  const addRole = (event) => {
    event.preventDefault();
    act({ do: "role_set", role: newRole.value.trim(), rules: [newRule.value.trim()].filter(Boolean) });
  };

  load().catch((error) => {
    trouble.hidden = false;
    say(trouble, error.message);
  });
  return {
    element: h("div", { class: "access" },
      h("div", { class: "lead" }, h("h1", {}, "Access")), trouble, secret,
      h("section", { class: "panel" }, h("header", {}, h("h2", {}, "Identities")),
        h("table", { class: "list" }, head("Name", "Roles", "Tokens", "Password", ""), identities),
        h("form", { class: "tools", onsubmit: addIdentity },
          h("label", { for: "access-name" }, "Name"), newName,
          h("label", { for: "access-roles" }, "Roles"), newRoles,
          h("button", { type: "submit" }, "Add identity"))),
      h("section", { class: "panel" }, h("header", {}, h("h2", {}, "Roles")),
        h("table", { class: "list" }, head("Role", "Rules", ""), roles),
        h("form", { class: "tools", onsubmit: addRole },
          h("label", { for: "access-role" }, "Role"), newRole,
          h("label", { for: "access-rule" }, "First rule"), newRule,
          h("button", { type: "submit" }, "Add role")))),
    query: {},
    update() {},
  };
}
