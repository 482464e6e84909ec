// Live updates and keys. Every page works without this script.
"use strict";
(() => {
  const body = document.body;
  const updates = document.getElementById("updates");
  const help = document.getElementById("help");
  const search = document.getElementById("search");
  const stale = document.getElementById("stale");
  let stopped = false;

  // Replaces the parts of the page that have changed. A part in which the user works stays. Returns
  // whether no changed part had to stay.
  const before = new Map();
  const show = (root) => {
    let isWhole = true;
    for (const next of root.querySelectorAll("[data-part]")) {
      const name = next.dataset.part;
      const part = document.querySelector(`[data-part="${CSS.escape(name)}"]`);
      const html = next.innerHTML;
      if (part && part.dataset.rows) {
        // New rows come before the others; the oldest rows make room.
        part.prepend(...next.children);
        while (part.children.length > Number(part.dataset.rows)) part.lastElementChild.remove();
        continue;
      }
      if (!part || before.get(name) === html) continue;
      const selection = document.getSelection();
      const selects = selection && !selection.isCollapsed && part.contains(selection.anchorNode);
      const works = part.contains(document.activeElement) || part.querySelector("details.act[open], input:checked");
      if (selects || works) {
        isWhole = false;
        continue;
      }
      const open = [...part.querySelectorAll("details")].map((details) => details.open);
      part.replaceChildren(...next.childNodes);
      part.querySelectorAll("details").forEach((details, at) => { details.open = open[at] || false; });
      before.set(name, html);
    }
    return isWhole;
  };
  const parse = (text) => new DOMParser().parseFromString(text, "text/html");

  // Says that the figures are old, if no new ones come. The server ends a stream after ten minutes,
  // so an end that lasts less than this time is not worth a message.
  const patience = 10000;
  let fresh = Date.now();
  let late = 0;
  const tell = (text) => {
    if (stale && stale.textContent !== text) stale.textContent = text;
  };
  const isOnTime = () => {
    clearTimeout(late);
    late = 0;
    tell("");
  };
  const hasCome = () => {
    fresh = Date.now();
    isOnTime();
  };
  const isLate = () => {
    late ||= setTimeout(() => {
      tell(`No new figures since ${new Date(fresh).toISOString().slice(11, 19)}. Load the page again.`);
    }, patience);
  };

  // The place in the stream at which a new connection goes on.
  let place = "";
  let source = null;
  let timer = 0;
  const begin = () => {
    if (stopped || document.hidden) return;
    if (body.dataset.stream && !source) {
      const url = new URL(body.dataset.stream, location.href);
      if (place) url.searchParams.set("after", place);
      source = new EventSource(url);
      source.onmessage = (message) => {
        place = message.lastEventId;
        show(parse(message.data));
        hasCome();
      };
      source.onerror = () => {
        isLate();
        // After an answer such as 401 or 503 the browser does not try again by itself.
        if (!source || source.readyState !== EventSource.CLOSED) return;
        source = null;
        timer = setTimeout(() => { timer = 0; begin(); }, 5000);
      };
    }
    if (body.dataset.every && !timer) timer = setTimeout(again, Number(body.dataset.every) * 1000);
  };
  const end = () => {
    if (source) source.close();
    source = null;
    clearTimeout(timer);
    timer = 0;
    isOnTime();
  };
  const again = async () => {
    timer = 0;
    try {
      const headers = { Accept: "text/html" };
      // The forms of the page keep their value, so that they do not differ from the forms before.
      if (body.dataset.once) headers["Seriatim-Once"] = body.dataset.once;
      const answer = await fetch(location.href, { headers, redirect: "error" });
      const page = parse(await answer.text());
      if (answer.ok) {
        const isWhole = show(page);
        if (isWhole && !page.body.dataset.every) delete body.dataset.every;
        hasCome();
      } else isLate();
    } catch {
      // The server is away for now: the next try is after the same time.
      isLate();
    }
    begin();
  };
  const toggle = () => {
    stopped = !stopped;
    updates.setAttribute("aria-pressed", String(stopped));
    updates.textContent = stopped ? "Updates are stopped" : "Stop updates";
    stopped ? end() : begin();
  };
  if (updates && (body.dataset.stream || body.dataset.every)) {
    updates.hidden = false;
    updates.addEventListener("click", toggle);
    document.addEventListener("visibilitychange", () => (document.hidden ? end() : begin()));
    addEventListener("pagehide", end);
    begin();
  }

  let afterG = false;
  const rows = () => [...document.querySelectorAll("main tbody tr")].filter((row) => row.querySelector("a.row-link, input"));
  const step = (by) => {
    const all = rows();
    const at = all.findIndex((row) => row.classList.contains("at"));
    const next = all[Math.min(Math.max(at + by, 0), all.length - 1)];
    if (!next) return;
    if (all[at]) all[at].classList.remove("at");
    next.classList.add("at");
    (next.querySelector("a.row-link") || next.querySelector("input")).focus();
  };
  document.addEventListener("keydown", (event) => {
    const writes = event.target.closest("input:not([type=checkbox]), select, textarea");
    if (event.ctrlKey || event.altKey || event.metaKey || writes || (help && help.open)) return;
    const { key } = event;
    if (afterG) {
      afterG = false;
      const link = document.querySelector(`nav a[data-key="${CSS.escape(key)}"]`);
      if (link) link.click();
      return;
    }
    if (key === "g") afterG = true;
    else if (key === "j") step(1);
    else if (key === "k") step(-1);
    else if (key === "u" && updates && !updates.hidden) toggle();
    else if (key === "x") document.querySelector("tr.at input[type=checkbox]")?.click();
    else if (key === "?" && help) help.showModal();
    else if (key === "/" && search) {
      event.preventDefault();
      search.focus();
    }
  });
})();
