// The filters: a form of plain fields, each with a label.

const SORTS = [["order", "in order"], ["best", "best first"], ["worst", "worst first"]];

function choiceElement(id, label, name, options, all) {
  const select = make("select", { id, name }, all ? make("option", { value: "" }, all) : null,
    options.map(([value, text]) => make("option", { value }, plain(text))));
  return make("div", { class: "rb-field" }, make("label", { for: id }, label), select);
}

function inputElement(id, label, name, attributes) {
  return make("div", { class: "rb-field" }, make("label", { for: id }, label), make("input", { id, name, ...attributes }));
}

/** The form. `change(filters)` is called whenever one of them was changed. */
function filtersElement(id, facets, change) {
  const whens = facets.iterations.map((iteration) => [iteration === null ? "logged" : String(iteration), when(iteration)]);
  const pairs = (values) => values.map((value) => [value, words(value)]);
  const hint = (value) => (value === null ? null : number(value, 2));
  const form = make("form", { class: "rb-filters", role: "search", "aria-label": "Filter rollouts" },
    choiceElement(`${id}-iteration`, "Iteration", "iteration", whens, "all"),
    choiceElement(`${id}-module`, "Module", "module", facets.modules.map((name) => [name, name]), "all"),
    choiceElement(`${id}-status`, "Status", "status", pairs(facets.statuses), "all"),
    facets.sources.length > 1 ? choiceElement(`${id}-source`, "Made by", "source", facets.sources.map((name) => [name, name]),
      "all") : null,
    inputElement(`${id}-low`, "Reward from", "reward_min", { type: "number", step: "any", placeholder: hint(facets.low) }),
    inputElement(`${id}-high`, "Reward to", "reward_max", { type: "number", step: "any", placeholder: hint(facets.high) }),
    inputElement(`${id}-q`, "Text", "q", { type: "search", maxlength: "200", autocomplete: "off", spellcheck: "false" }),
    choiceElement(`${id}-sort`, "Sort", "sort", SORTS, null),
    make("button", { type: "reset" }, "Clear"));
  const read = () => change(Object.fromEntries([...new FormData(form)].filter(([, value]) => value !== "")));
  let waiting;
  form.addEventListener("input", (event) => {
    clearTimeout(waiting);
    waiting = setTimeout(read, event.target.tagName === "SELECT" ? 0 : 200);
  });
  form.addEventListener("submit", (event) => { event.preventDefault(); clearTimeout(waiting); read(); });
  form.addEventListener("reset", () => setTimeout(read, 0));
  return form;
}
