// Light or dark: as the system has it, until somebody presses the button.

const Theme = {
  listeners: [],
  get isDark() {
    const chosen = document.documentElement.dataset.theme;
    return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  },
  // A colour of the style sheet as it is now: `light-dark()` is only resolved where it is used.
  colour(name) {
    const probe = document.getElementById("probe");
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color;
  },
  start() {
    const button = document.getElementById("theme");
    const say = () => {
      button.textContent = Theme.isDark ? "Light" : "Dark";
      button.setAttribute("aria-label", Theme.isDark ? "Change to light colours" : "Change to dark colours");
      for (const listener of Theme.listeners) listener();
    };
    try {
      const kept = localStorage.getItem("poseidon-theme");
      if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
    } catch { /* pages from files may have no storage: the choice then lasts as long as the page */ }
    button.hidden = false;
    button.addEventListener("click", () => {
      const next = Theme.isDark ? "light" : "dark";
      document.documentElement.dataset.theme = next;
      try { localStorage.setItem("poseidon-theme", next); } catch { /* see above */ }
      say();
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", say);
    say();
  },
};
