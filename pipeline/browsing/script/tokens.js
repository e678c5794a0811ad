// A completion token by token. The shade says how likely a token was, or which way its call is moved; the line under it
// says the same, and its title says it in numbers.

const LIKELY = [0.9, 0.5, 0.1, 0.01];
const STRONG = [0.25, 1];
const LEGENDS = {
  logprob: [["rb-l0", "90 % and more"], ["rb-l1", "50 to 90 %"], ["rb-l2", "10 to 50 %"], ["rb-l3", "1 to 10 %"],
    ["rb-l4", "below 1 %"]],
  advantage: [["rb-p3", "above +1"], ["rb-p2", "+0.25 to +1"], ["rb-p1", "up to +0.25"], ["rb-z", "0, or in no group"],
    ["rb-n1", "down to \u22120.25"], ["rb-n2", "\u22120.25 to \u22121"], ["rb-n3", "below \u22121"]],
  nothing: [],
};
const LEGEND_WORDS = {
  logprob: "Probability with which each token was drawn",
  advantage: "Advantage of the call: solid lines are made likelier, wavy ones less likely",
  nothing: "",
};

function likelihoodClass(logprob) {
  const found = LIKELY.findIndex((least) => Math.exp(logprob) >= least);
  return `rb-l${found < 0 ? LIKELY.length : found}`;
}

function advantageClass(advantage) {
  if (!advantage) return "rb-z";
  const size = STRONG.filter((least) => Math.abs(advantage) >= least).length + 1;
  return `${advantage > 0 ? "rb-p" : "rb-n"}${size}`;
}

/** The advantage that a call was given where it stands in its own group; null when it is in none. */
function advantageOf(call) {
  const own = call.fates.find((fate) => fate.reason === null);
  return own ? own.advantage : null;
}

function chance(logprob) {
  return `log-probability ${number(logprob, 2)}, ${share(Math.exp(logprob))}`;
}

function tokenElement(piece, logprob, advantage) {
  const known = logprob !== null && logprob !== undefined;
  const style = `${known ? ` ${likelihoodClass(logprob)}` : ""} ${advantageClass(advantage)}`;
  const title = [piece === "" ? "part of the character that ends after it" : null, known ? chance(logprob) : null,
    advantage === null ? null : `advantage ${signed(advantage)}`];
  const attributes = { class: `rb-tok${style}`, title: title.filter(Boolean).join("; ") || null };
  return make("span", attributes, piece === "" ? "\u00b7" : visible(piece));
}

/** The completion of a call, token by token where they are known. What shades it stands in `data-mode` further up. */
function completionElement(call) {
  const place = box("completion");
  place.className = "rb-completion";
  const advantage = advantageOf(call);
  if (!call.tokens) {
    place.append(make("span", { class: `rb-tok ${advantageClass(advantage)}` }, shown(call.completion)));
    return place;
  }
  const { pieces, logprobs, left_out: missing, cut_at: cutAt } = call.tokens;
  pieces.forEach((piece, index) => {
    if (missing && index === cutAt) place.append(leftOut(missing, "token"));
    place.append(tokenElement(piece, logprobs ? logprobs[index] : null, advantage));
  });
  return place;
}

/** The least likely tokens in words, for those who see no shades. */
function leastLikely(call) {
  if (!call.tokens || !call.tokens.logprobs) return null;
  const { pieces, logprobs } = call.tokens;
  const order = logprobs.map((value, place) => [value, place]).sort((a, b) => a[0] - b[0] || a[1] - b[1]).slice(0, 3);
  const named = order.map(([value, place]) => `\u201c${plain(pieces[place])}\u201d ${share(Math.exp(value))}`);
  return named.length ? `least likely: ${named.join(", ")}` : null;
}

function legendElement(mode) {
  const items = LEGENDS[mode].map(([style, text]) => make("li", {}, make("span", { class: `rb-tok ${style}` }, "token"),
    ` ${text}`));
  return make("div", { class: "rb-legend" }, LEGEND_WORDS[mode], make("ul", {}, items));
}
