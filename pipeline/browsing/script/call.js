// One LM call: what was asked, what came back, and what became of it.

/** What an iteration made of a call, in words. */
function fateText(fate) {
  if (fate.reason !== null) {
    return `iteration ${fate.iteration}: in no group, ${words(fate.reason)}${fate.meaning ? ` (${fate.meaning})` : ""}`;
  }
  const copied = fate.copies === fate.members ? `as a copy at position ${fate.position}` : `at position ${fate.position}`;
  const copies = fate.copies && fate.copies < fate.members ? ` and ${plural(fate.copies, "copy").replace("copys", "copies")}` : "";
  const reward = `reward ${number(fate.reward)}, advantage ${signed(fate.advantage)}`;
  let trained = "not trained on";
  if (fate.trained === null) trained = "not trained yet";
  else if (fate.trained === fate.members) trained = "trained on";
  else if (fate.trained > 0) trained = `${fate.trained} of ${fate.members} trained on`;
  const weight = fate.weight === 1 ? "" : `, weight ${number(fate.weight)}`;
  return `iteration ${fate.iteration}: group ${fate.group_id.slice(0, 8)} ${copied}${copies}: ${reward}${weight}, ${trained}`;
}

function callTitle(call) {
  const attempt = call.attempt ? `, attempt ${call.attempt}` : "";
  return `${plain(call.module)} ${call.invocation_index}${attempt}`;
}

function badges(call) {
  const found = [];
  if (call.lm !== "student") found.push(`by ${plain(call.lm)}`);
  if (call.parse_status === "failed") found.push("not parsed");
  if (call.finish_reason && call.finish_reason !== "stop") found.push(`ended by ${words(call.finish_reason)}`);
  if (call.fidelity !== "exact") found.push(words(call.fidelity));
  if (call.concurrent) found.push("concurrent");
  return found.map((text) => make("span", { class: "rb-badge" }, text));
}

function messageElements(messages, made) {
  const rows = [];
  messages.forEach((message, place) => {
    if (made > messages.length && place === Math.floor(messages.length / 2)) {
      rows.push(make("p", {}, leftOut(made - messages.length, "message")));
    }
    rows.push(make("p", { class: "rb-role" }, visible(message.role)), box(plain(message.role), shown(message.text)));
  });
  return rows;
}

/** A prompt, unfolded when it is asked for: those of a long rollout are many times what is new in them. */
function promptElement(name, messages, made) {
  const place = make("div");
  const folded = make("details", {}, make("summary", {}, `${name}, ${plural(made, "message")}`), place);
  folded.addEventListener("toggle", () => {
    place.replaceChildren(...(folded.open ? messageElements(messages, made) : []));
    reachable(place);
  });
  return folded;
}

/** A call as an item of the timeline. */
function callElement(call, id) {
  const advantage = advantageOf(call);
  const facts = [call.token_count === null ? null : plural(call.token_count, "token"),
    call.logprob_mean === null ? null : `mean log-probability ${number(call.logprob_mean, 2)}`, leastLikely(call)];
  return make("li", { class: "rb-call", id, tabindex: "-1" },
    make("p", { class: "rb-head" },
      make("b", {}, visible(call.module)), ` call ${call.invocation_index}`,
      call.attempt ? `, attempt ${call.attempt}` : "", badges(call),
      make("span", { class: "rb-right" }, advantage === null ? "in no group" : ["advantage ", make("b", {}, signed(advantage))])),
    promptElement("Prompt", call.messages, call.messages_made),
    call.student_messages ? promptElement("Prompt that the student would be sent", call.student_messages,
      call.student_messages_made) : null,
    make("p", { class: "rb-role" }, "completion"),
    completionElement(call),
    make("p", { class: "rb-muted" }, visible(facts.filter(Boolean).join(" · "))),
    make("ul", { class: "rb-fates" }, call.fates.map((fate) => make("li", {}, visible(fateText(fate))))));
}
