"use strict";
// Tables that sort by a button in each heading, rows that filter by kind, and links that unfold what they lead to.
// Without this script the page is whole: plain tables, all rows, the browser's own links.
(() => {
  const ABSENT = "\u2013";

  const keyOf = (row, column, isText) => {
    const cell = row.cells[column];
    const shown = cell.dataset.sort ?? cell.textContent.trim();
    if (shown === "" || shown === ABSENT) return null;
    if (isText) return shown.toLowerCase();
    const number = parseFloat(shown.replace(/[[,+]/g, "").replace(/\u2212/g, "-"));
    return Number.isNaN(number) ? shown.toLowerCase() : number;
  };

  const compare = (a, b) => {
    if (typeof a === typeof b) return typeof a === "number" ? a - b : a.localeCompare(b, "en", { numeric: true });
    return typeof a === "number" ? -1 : 1;
  };

  const sortable = (table) => {
    const body = table.tBodies[0];
    const rows = [...body.rows].filter((row) => !row.classList.contains("total"));
    const totals = [...body.rows].filter((row) => row.classList.contains("total"));
    const heads = [...table.tHead.rows[0].cells];
    if (rows.length < 2) return;

    const sort = (column, direction) => {
      const head = heads[column];
      const isText = head.classList.contains("text");
      let ordered = rows;
      if (direction !== "none") {
        const sign = direction === "ascending" ? 1 : -1;
        const keyed = rows.map((row, place) => ({ row, place, key: keyOf(row, column, isText) }));
        keyed.sort((a, b) => {
          if (a.key === null || b.key === null) return (a.key === null) - (b.key === null) || a.place - b.place;
          return sign * compare(a.key, b.key) || a.place - b.place;
        });
        ordered = keyed.map((item) => item.row);
      }
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      if (direction !== "none") head.setAttribute("aria-sort", direction);
      body.append(...ordered, ...totals);
    };

    heads.forEach((head, column) => {
      if (!head.textContent.trim()) return;
      const button = document.createElement("button");
      button.type = "button";
      button.className = "sort";
      button.append(...head.childNodes);
      button.addEventListener("click", () => {
        const next = { ascending: "descending", descending: "none" };
        sort(column, next[head.getAttribute("aria-sort")] ?? "ascending");
      });
      head.append(button);
    });
  };

  const filterable = (box) => {
    const rows = [...box.querySelectorAll("tbody tr[data-kind]")];
    const kinds = [...new Set(rows.map((row) => row.dataset.kind))].sort();
    const bar = document.createElement("div");
    bar.className = "filters";
    bar.setAttribute("role", "group");
    bar.setAttribute("aria-label", box.dataset.filter);
    const told = document.createElement("span");
    told.className = "muted";
    told.setAttribute("role", "status");
    const input = document.createElement("input");
    input.type = "search";
    input.placeholder = "text in the rows";
    input.setAttribute("aria-label", "Only rows with this text");
    let chosen = "";

    const show = () => {
      const wanted = input.value.trim().toLowerCase();
      let count = 0;
      rows.forEach((row) => {
        row.hidden = Boolean((chosen && row.dataset.kind !== chosen)
          || (wanted && !row.textContent.toLowerCase().includes(wanted)));
        count += !row.hidden;
      });
      told.textContent = `${count} of ${rows.length} rows`;
    };

    ["", ...kinds].forEach((kind) => {
      const button = document.createElement("button");
      const number = kind ? rows.filter((row) => row.dataset.kind === kind).length : rows.length;
      button.type = "button";
      button.textContent = `${kind || "all"} ${number}`;
      button.setAttribute("aria-pressed", String(kind === chosen));
      button.addEventListener("click", () => {
        chosen = kind;
        bar.querySelectorAll("button").forEach((other) => other.setAttribute("aria-pressed", String(other === button)));
        show();
      });
      bar.append(button);
    });
    input.addEventListener("input", show);
    bar.append(input, told);
    box.prepend(bar);
    show();
  };

  const unfold = () => {
    const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    for (let up = target; up; up = up.parentElement) if (up.tagName === "DETAILS") up.open = true;
    if (target) target.scrollIntoView();
  };

  document.querySelectorAll("table[data-sortable]").forEach(sortable);
  document.querySelectorAll("[data-filter]").forEach(filterable);
  addEventListener("hashchange", unfold);
  unfold();
})();
