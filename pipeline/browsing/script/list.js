// The list of rollouts: one stop for Tab, arrows inside.

const PAGE_KEYS = 10;

function rowElement(row, id) {
  const tag = row.kind || (row.status === "ok" ? "ok" : "failed");
  const reward = row.reward === null ? "no reward" : `reward ${number(row.reward)}`;
  const source = row.source === "student" ? "" : ` · ${plain(row.source)}`;
  const status = row.status === "ok" ? "" : ` · ${words(row.status)}`;
  const style = row.status === "ok" ? row.kind || "ok" : "failed";
  return make("li", { role: "option", id, "aria-selected": "false", class: `rb-row rb-is-${style}` },
    make("span", { class: "rb-tag" }, tag), make("b", {}, reward),
    make("span", { class: "rb-muted" }, `${when(row.iteration)} · ${plural(row.calls_made, "call")}${status}${source}`),
    make("span", { class: "rb-about-row" }, plain(row.about)));
}

class RolloutList {
  /** `open(row)` is called for the row that the person moved to, `enter()` when they want to go into it. */
  constructor(id, open, enter) {
    this.rows = [];
    this.here = -1;
    this.id = id;
    this.open = open;
    this.element = make("ul", { class: "rb-list", role: "listbox", tabindex: "0", "aria-label": "Rollouts" });
    this.element.addEventListener("keydown", (event) => this.key(event, enter));
    this.element.addEventListener("click", (event) => {
      const item = event.target.closest("[role=option]");
      if (!item) return;
      this.move([...this.element.children].indexOf(item));
      enter();
    });
  }

  fill(rows) {
    this.rows = rows;
    this.here = -1;
    this.element.removeAttribute("aria-activedescendant");
    this.element.replaceChildren(...rows.map((row, place) => rowElement(row, `${this.id}-row-${place}`)));
    this.element.scrollTop = 0;
  }

  key(event, enter) {
    const last = this.rows.length - 1;
    const moves = { ArrowDown: this.here + 1, ArrowUp: this.here - 1, PageDown: this.here + PAGE_KEYS,
      PageUp: this.here - PAGE_KEYS, Home: 0, End: last };
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      if (this.here < 0 && last >= 0) this.move(0);
      if (this.here >= 0) enter();
    } else if (event.key in moves && last >= 0 && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      this.move(Math.max(0, Math.min(last, moves[event.key])));
    }
  }

  move(place) {
    if (place === this.here) return;
    const items = this.element.children;
    if (items[this.here]) items[this.here].setAttribute("aria-selected", "false");
    this.here = place;
    const item = items[place];
    item.setAttribute("aria-selected", "true");
    this.element.setAttribute("aria-activedescendant", item.id);
    // Only the list scrolls, never the page around it.
    const list = this.element.getBoundingClientRect();
    const box = item.getBoundingClientRect();
    if (box.top < list.top) this.element.scrollTop -= list.top - box.top;
    if (box.bottom > list.bottom) this.element.scrollTop += box.bottom - list.bottom;
    this.open(this.rows[place]);
  }
}
