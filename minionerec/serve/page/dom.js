// Elements and text. Text from the server only becomes text nodes.

/** An element with attributes, listeners (`on…`) and children; strings are text. */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

export const byId = (id) => document.getElementById(id);

/** A probability in words: "31 %", "3.1 %", "0.31 %". */
export function percent(probability) {
  const value = 100 * probability;
  if (value >= 99.95) return "100 %";
  if (value >= 9.95) return `${value.toFixed(0)} %`;
  if (value >= 0.995) return `${value.toFixed(1)} %`;
  if (value >= 0.01) return `${value.toFixed(2)} %`;
  return "< 0.01 %";
}

/** Whether a change of score speaks against an item by more than rounding. */
export const against = (change) => change < -0.05;

/** How many times as probable, from a difference of log-probabilities: "×5.2", "÷1.4". */
export function times(change) {
  const factor = Math.exp(Math.abs(change));
  const digits = factor < 9.95 ? factor.toFixed(1) : factor < 1000 ? factor.toFixed(0) : "1000+";
  return (against(change) ? "÷" : "×") + digits;
}

export const plural = (count, one, many = `${one}s`) => `${count.toLocaleString("en")} ${count === 1 ? one : many}`;

/** A bar of a share from 0 to 1, for the eye alone: the number stands beside it. */
export function bar(share, kind = "") {
  const fill = make("span", {});
  fill.style.width = `${Math.max(0, Math.min(1, share || 0)) * 100}%`;
  return make("span", { class: `bar ${kind}`, "aria-hidden": "true" }, fill);
}

/** One code of a semantic ID, coloured by its level from 0: "<a_12>" is shown as "a_12". */
export const chip = (code, level) => make("code", { class: `chip level-${level % 4}` }, code.replace(/[<>]/g, ""));

/** The codes of a semantic ID. */
export const codesOf = (sid) => sid.match(/<[^<>]*>/g) ?? [sid];
