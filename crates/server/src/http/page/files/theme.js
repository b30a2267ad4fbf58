// Light or dark: what the system says, unless the user chose. Not a module, so that it runs
// before the first paint.
"use strict";
(() => {
  const KEY = "gapless.theme";
  const system = matchMedia("(prefers-color-scheme: dark)");
  const chosen = () => {
    try {
      return localStorage.getItem(KEY);
    } catch {
      return null;
    }
  };
  const apply = () => {
    const theme = chosen() ?? (system.matches ? "dark" : "light");
    document.documentElement.dataset.theme = theme;
    const button = document.getElementById("theme");
    if (button) {
      const other = theme === "dark" ? "light" : "dark";
      button.setAttribute("aria-label", `Use the ${other} colours`);
      button.title = button.getAttribute("aria-label");
      button.textContent = theme === "dark" ? "☀" : "☾";
    }
    dispatchEvent(new Event("themechange"));
  };
  system.addEventListener("change", apply);
  addEventListener("DOMContentLoaded", () => {
    document.getElementById("theme").addEventListener("click", () => {
      const other = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
      try {
        // What the system says anyway is not a choice.
        if (other === (system.matches ? "dark" : "light")) localStorage.removeItem(KEY);
        else localStorage.setItem(KEY, other);
      } catch {
        document.documentElement.dataset.theme = other;
        return;
      }
      apply();
    });
    apply();
  });
  apply();
})();
