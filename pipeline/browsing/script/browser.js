// The whole: filters above, the list on the left, the rollout on the right (below it on a phone).

let made = 0;

async function start(root) {
  const id = `rb-${made += 1}`;
  const data = root.querySelector(".rb-data");
  const source = root.dataset.rb === "served" ? new ServedSource() : new EmbeddedSource(JSON.parse(data.textContent));
  const app = root.querySelector(".rb-app");
  const state = { id, mode: "logprob" };
  const status = make("p", { class: "rb-status", role: "status" });
  const detail = make("div", { class: "rb-detail", role: "region", "aria-label": "Rollout", tabindex: "-1" },
    make("p", { class: "rb-muted" }, "Choose a rollout: arrow keys move in the list, Enter goes to the rollout, Escape comes back."));
  const pager = make("nav", { class: "rb-pager", "aria-label": "Pages of the list", hidden: true });
  let filters = {};
  let searching = new AbortController();
  let opening = new AbortController();
  let opened = Promise.resolve();

  const tell = (error) => {
    if (error.name !== "AbortError") status.textContent = `This did not work: ${error.message}`;
  };
  const back = () => list.element.focus();
  const open = (row) => {
    opening.abort();
    opening = new AbortController();
    const { signal } = opening;
    detail.setAttribute("aria-busy", "true");
    opened = source.record(row, signal).then((record) => {
      if (signal.aborted) return;
      detail.removeAttribute("aria-busy");
      showRecord(detail, record, state, back);
      detail.scrollTop = 0;
    }).catch((error) => {
      if (!signal.aborted) detail.removeAttribute("aria-busy");
      tell(error);
    });
  };
  const enter = async () => {
    await opened;
    const title = detail.querySelector("h3");
    if (!title) return;
    if (detail.getBoundingClientRect().top > window.innerHeight / 2) detail.scrollIntoView({ block: "start" });
    title.focus({ preventScroll: true });
  };
  const list = new RolloutList(id, open, enter);

  const turn = (page, pages) => {
    const button = (text, to) => {
      const element = make("button", { type: "button", disabled: to < 1 || to > pages || to === page }, text);
      element.addEventListener("click", () => search(to).then(() => list.element.focus()));
      return element;
    };
    pager.hidden = pages < 2;
    pager.replaceChildren(button("First", 1), button("Previous", page - 1), `page ${count(page)} of ${count(pages)}`,
      button("Next", page + 1), button("Last", pages));
  };
  const search = async (page) => {
    searching.abort();
    searching = new AbortController();
    root.setAttribute("aria-busy", "true");
    try {
      const found = await source.search(filters, page, searching.signal);
      list.fill(found.rows);
      turn(found.page, found.pages);
      status.textContent = found.total ? `${plural(found.total, "rollout")}` : "No rollout fits these filters.";
      root.removeAttribute("aria-busy");
    } catch (error) {
      tell(error);
    }
  };

  detail.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    event.preventDefault();
    back();
  });
  const form = filtersElement(id, await source.facets(), (chosen) => { filters = chosen; search(1); });
  app.replaceChildren(form, status, make("div", { class: "rb-panes" }, make("div", { class: "rb-side" }, list.element, pager), detail));
  await search(1);
  app.hidden = false;
  const simple = root.querySelector(".rb-plain");
  if (simple) simple.hidden = true;
}

// The token has become a cookie: the address must not keep it, where it could be copied or looked at.
if (document.body.classList.contains("rb-page")) history.replaceState(null, "", location.pathname);

for (const root of document.querySelectorAll(".rb[data-rb]")) {
  start(root).catch((error) => {
    const app = root.querySelector(".rb-app");
    app.replaceChildren(make("p", { class: "rb-status", role: "alert" }, `The browser of rollouts did not start: ${error.message}`));
    app.hidden = false;
  });
}
