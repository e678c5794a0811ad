// One rollout: its facts, its calls as a row of steps, and each call below.

function factsElement(record) {
  const rows = [];
  const fact = (name, ...value) => rows.push(make("dt", {}, name), make("dd", {}, value));
  const parts = Object.entries(record.reward_parts).map(([name, value]) => `${name} ${typeof value === "number" ?
    number(value) : JSON.stringify(value)}`);
  fact("Rollout", make("code", {}, visible(record.rollout_id)), `, number ${record.rollout_index} of example `,
    make("code", {}, visible(record.example_id)));
  fact("Made by", visible(record.source), record.policy ? [", policy ", make("code", { title: plain(record.policy) },
    visible(record.policy.slice(0, 12)))] : ", policy unknown");
  if (parts.length) fact("Reward parts", visible(parts.join(", ")));
  if (record.inputs !== null) fact("Inputs", box("inputs", shown(record.inputs)));
  if (record.error !== null) fact("Error", box("error", shown(record.error)));
  fact("Output", box("output", shown(record.output)));
  for (const fate of record.excluded) fact("Left out", visible(fateText(fate)));
  return make("dl", {}, rows);
}

/** The calls in their order, one button each; arrows move along them, Enter goes to the call. */
function stepsElement(record, jump) {
  const steps = record.calls.map((call, place) => {
    const advantage = advantageOf(call);
    const failed = call.parse_status === "failed" ? " not parsed" : "";
    const value = advantage === null ? "in no group" : signed(advantage, 2);
    const button = make("button", { type: "button", class: `rb-step ${advantageClass(advantage)}`,
      tabindex: place ? "-1" : "0", title: advantage === null ? null : `advantage ${signed(advantage)}` },
    make("span", {}, visible(callTitle(call))), make("small", {}, `${value}${failed}`));
    button.addEventListener("click", () => jump(place));
    return button;
  });
  if (record.calls_made > steps.length) {
    steps.splice(Math.floor(steps.length / 2), 0, leftOut(record.calls_made - steps.length, "call"));
  }
  const row = make("div", { class: "rb-steps", role: "toolbar", "aria-label": "Calls in order" }, steps);
  row.addEventListener("keydown", (event) => {
    const buttons = [...row.querySelectorAll("button")];
    const here = buttons.indexOf(document.activeElement);
    const there = { ArrowRight: here + 1, ArrowLeft: here - 1, Home: 0, End: buttons.length - 1 }[event.key];
    if (here < 0 || there === undefined || !buttons[there]) return;
    event.preventDefault();
    buttons[here].tabIndex = -1;
    buttons[there].tabIndex = 0;
    buttons[there].focus();
  });
  return row;
}

function modeElement(mode, name, change) {
  const options = [["logprob", "log-probability"], ["advantage", "advantage"], ["nothing", "nothing"]];
  const radios = options.map(([value, text]) => {
    const radio = make("input", { type: "radio", name, value, checked: value === mode });
    radio.addEventListener("change", () => change(value));
    return make("label", {}, radio, ` ${text}`);
  });
  return make("fieldset", { class: "rb-mode" }, make("legend", {}, "Colour tokens by"), radios);
}

/** Fill `place` with a record. `back` leads to the list. */
function showRecord(place, record, state, back) {
  const id = (index) => `${state.id}-call-${index}`;
  const jump = (index) => {
    const call = document.getElementById(id(index));
    call.scrollIntoView({ block: "start" });
    call.focus({ preventScroll: true });
  };
  const legend = make("div", {}, legendElement(state.mode));
  const shade = (mode) => {
    state.mode = mode;
    place.dataset.mode = mode;
    legend.replaceChildren(legendElement(mode));
  };
  const leave = make("button", { type: "button", class: "rb-back" }, "Back to the list");
  leave.addEventListener("click", back);
  const reward = record.reward === null ? "no reward" : `reward ${number(record.reward)}`;
  const title = `${when(record.iteration)}, ${reward}${record.status === "ok" ? "" : `, ${words(record.status)}`}`;
  const calls = record.calls.map((call, index) => callElement(call, id(index)));
  if (record.calls_made > calls.length) {
    calls.splice(Math.floor(calls.length / 2), 0, make("li", {}, leftOut(record.calls_made - calls.length, "call")));
  }
  const tools = [stepsElement(record, jump), modeElement(state.mode, `${state.id}-mode`, shade), legend];
  place.dataset.mode = state.mode;
  place.replaceChildren(leave, make("h3", { tabindex: "-1" }, `Rollout ${plain(record.rollout_id.slice(0, 8))}: ${title}`),
    factsElement(record), ...(calls.length ? tools : [make("p", {}, "It made no LM call.")]),
    make("ol", { class: "rb-timeline" }, calls));
  reachable(place);
}
