// Elements and text. Nothing of a record ever becomes markup: it is only put into text nodes and attributes' values.

const HIDDEN = /(?![\n\t\u200c\u200d])[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Zl}\p{Zp}\p{Noncharacter_Code_Point}]/gu;
const ABSENT = "\u2013";

/** An element. Attributes that are null or false are left out, true ones are empty; children may be lists. */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

/** What stands for a character that cannot be seen: a picture of it, or its code point. */
function pictured(character) {
  const code = character.codePointAt(0);
  if (code < 0x20) return String.fromCodePoint(0x2400 + code);
  if (code === 0x7f) return "\u2421";
  return `[U+${code.toString(16).toUpperCase().padStart(4, "0")}]`;
}

/** Text as nodes, in which characters that cannot be seen are marked. */
function visible(text) {
  const nodes = [];
  let last = 0;
  for (const found of text.matchAll(HIDDEN)) {
    nodes.push(text.slice(last, found.index), make("span", { class: "rb-ctl" }, pictured(found[0])));
    last = found.index + found[0].length;
  }
  nodes.push(text.slice(last));
  return nodes;
}

/** `visible` without nodes: for attributes and options. */
function plain(text) {
  return text.replace(HIDDEN, pictured);
}

/** A text, or {head, left_out, tail}, as nodes. */
function shown(text) {
  if (text === null) return [make("span", { class: "rb-muted" }, "none")];
  if (typeof text === "string") return visible(text);
  return [visible(text.head), leftOut(text.left_out, "character"), visible(text.tail)];
}

function leftOut(number, noun) {
  return make("span", { class: "rb-cut" }, ` … ${plural(number, noun)} left out … `);
}

/** A box of text. Whoever uses keys can go into it where it scrolls: see `reachable`. */
function box(label, ...nodes) {
  return make("pre", { role: "group", "aria-label": label }, nodes);
}

/** Give boxes that scroll a stop of their own for Tab; others need none. */
function reachable(root) {
  for (const pre of root.querySelectorAll("pre")) {
    if (pre.scrollHeight > pre.clientHeight + 1) pre.tabIndex = 0;
  }
}

/** The beginning of a text, on one line. */
function beginning(text, length) {
  const start = (text === null ? "" : typeof text === "string" ? text : text.head).replace(/\s+/g, " ").trim();
  return start.length > length ? `${start.slice(0, length).replace(/[\ud800-\udbff]$/, "")}…` : start;
}

function number(value, digits = 3) {
  if (value === null || value === undefined) return ABSENT;
  const rounded = (Math.round(value * 10 ** digits) / 10 ** digits + 0).toFixed(digits);
  return rounded.replace(/^-(?=0\.?0*$)/, "").replace("-", "\u2212");
}

function signed(value, digits = 3) {
  const text = number(value, digits);
  return value > 0 && /[1-9]/.test(text) ? `+${text}` : text;
}

function count(value) {
  return value.toLocaleString("en-US");
}

function plural(value, noun) {
  return `${count(value)} ${noun}${value === 1 ? "" : "s"}`;
}

function words(name) {
  return plain(name).replaceAll("_", " ");
}

function share(value) {
  const percent = 100 * value;
  const text = percent >= 10 ? percent.toFixed(0) : percent >= 0.1 ? percent.toFixed(1) : "< 0.1";
  return `${text}\u00a0%`;
}

function when(iteration) {
  return iteration === null ? "logged" : `iteration ${iteration}`;
}
