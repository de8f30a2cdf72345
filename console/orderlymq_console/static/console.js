// Follows the cluster: takes the live part of a page whenever the server sends another one.
// Without this script every page works; it then shows the moment at which it was loaded.
"use strict";

(() => {
  const live = document.getElementById("live");
  const note = document.getElementById("connection");
  const address = document.body.dataset.events;

  // Where the reader is: the focused element by its id or address, and what is unfolded.
  const place = () => {
    const element = document.activeElement;
    const inside = element && live.contains(element);
    return {
      id: inside ? element.id : "",
      href: inside ? element.getAttribute("href") : null,
      open: [...live.querySelectorAll("details[open][id]")].map((each) => each.id),
    };
  };

  const restore = (before) => {
    for (const id of before.open) {
      const details = document.getElementById(id);
      if (details) details.open = true;
    }
    const links = before.href === null ? [] : [...live.querySelectorAll("a[href]")];
    const target = (before.id && document.getElementById(before.id)) ||
      links.find((each) => each.getAttribute("href") === before.href);
    if (target) target.focus({ preventScroll: true });
  };

  const say = (text, isStale) => {
    if (note.textContent !== text) note.textContent = text;
    document.body.classList.toggle("stale", isStale);
  };

  // A browser opens six connections to a host, so a tab that nobody looks at keeps none. The server says something each second:
  // that shows a connection of which only this end is left.
  const QUIET_MS = 5000;

  if (live && note && address && window.EventSource) {
    let source = null;
    let lastHeard = Date.now();

    const hear = (trouble) => {
      lastHeard = Date.now();
      say(trouble || "live", trouble !== "");
    };

    const miss = () => {
      const stopped = source.readyState === EventSource.CLOSED;
      const since = new Date(lastHeard).toISOString().slice(11, 19);
      say(`not live since ${since}Z${stopped ? "; reload the page" : ""}`, true);
    };

    const check = () => {
      if (source && Date.now() - lastHeard >= QUIET_MS) miss();
    };

    const follow = () => {
      if (source || document.hidden) return;
      source = new EventSource(address);
      source.addEventListener("beat", () => hear(""));
      source.addEventListener("live", (event) => {
        const before = place();
        // The server's own template, with every value escaped.
        live.innerHTML = JSON.parse(event.data);
        restore(before);
        hear("");
      });
      source.addEventListener("trouble", (event) => hear(JSON.parse(event.data)));
      source.addEventListener("error", miss);
      check();
    };

    const leave = () => {
      if (source) source.close();
      source = null;
    };

    follow();
    setInterval(check, 1000);
    document.addEventListener("visibilitychange", () => (document.hidden ? leave() : follow()));
    addEventListener("pagehide", leave);
    addEventListener("pageshow", follow);
  }

  // On a phone the names of pages scroll: the reader sees which one this is.
  const current = document.querySelector("header nav a[aria-current]");
  if (current) current.scrollIntoView({ block: "nearest", inline: "nearest" });

  // Keys: / goes to the search, g and a letter to a page.
  let isGoing = false;
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.matches("input, select, textarea")) return;
    if (event.key === "/") {
      const search = document.querySelector("input[type=search]");
      if (search) { event.preventDefault(); search.focus(); }
      return;
    }
    if (isGoing) {
      const link = document.querySelector(`nav a[data-key="${CSS.escape(event.key)}"]`);
      if (link) link.click();
    }
    isGoing = event.key === "g";
  });
})();
