// The recommendations: rows that move to their new positions, each with its reasons.

import { against, bar, chip, codesOf, make, percent, plural, times } from "./dom.js";

const MOVE_MS = 260;

/** Show recommendations in a list; `choose(item)` adds one to the history, `look(id)` gets the selected one. */
export function setUpList(list, choose, look) {
  let rows = new Map(); // item id → its row, in the order of the list
  const still = matchMedia("(prefers-reduced-motion: reduce)");

  for (const event of ["pointerover", "focusin"]) {
    list.addEventListener(event, ({ target }) => {
      const row = target.closest("li.row");
      if (row) look(row.dataset.id);
    });
  }

  function show(items, explained) {
    const before = new Map([...rows].map(([id, row], place) => [id, { place, top: row.element.offsetTop }]));
    const focused = [...rows.values()].findIndex((row) => row.element.contains(document.activeElement));
    const best = Math.max(...items.map((item) => item.probability ?? 0));
    rows = new Map(items.map((item, place) => {
      const row = rows.get(item.item_id) ?? makeRow(item, choose);
      row.fill(item, place, best, before.size ? before.get(item.item_id)?.place : place);
      if (explained) row.reserve();
      return [item.item_id, row];
    }));
    const wanted = [...rows.values()].map((row) => row.element);
    for (const element of [...list.children]) if (!wanted.includes(element)) element.remove();
    wanted.forEach((element, place) => {
      if (list.children[place] !== element) list.insertBefore(element, list.children[place] ?? null);
    });
    if (focused >= 0 && wanted.length && !list.contains(document.activeElement)) {
      wanted[Math.min(focused, wanted.length - 1)].querySelector("button").focus({ preventScroll: true });
    }
    if (!still.matches && before.size) glide(before);
  }

  function glide(before) {
    for (const [id, { element }] of rows) {
      const from = before.get(id)?.top;
      const way = from === undefined ? 0 : from - element.offsetTop;
      const start = from === undefined ? { opacity: 0 } : { transform: `translateY(${way}px)` };
      if (from === undefined || way) element.animate([start, {}], { duration: MOVE_MS, easing: "ease-out" });
    }
  }

  return {
    show,

    /** Say why each item stands there; the reasons of an older answer stand until then, faintly. */
    explain(reasons) {
      for (const [id, row] of rows) row.explain(reasons[id] ?? []);
    },

    fade() {
      for (const row of rows.values()) row.fade();
    },

    mark(id) {
      for (const [own, { element }] of rows) element.classList.toggle("looked-at", own === id);
    },
  };
}

function makeRow(item, choose) {
  const rank = make("span", { class: "rank" });
  const moved = make("span", { class: "moved" });
  const title = make("button", { type: "button", class: "title", onclick: () => choose({ id: item.item_id, title: item.title }) });
  const sid = make("span", { class: "sid" });
  const measure = make("span", { class: "measure" });
  const summary = make("summary");
  const table = make("div", { class: "reasons" });
  const why = make("details", { class: "why", hidden: true }, summary, table);
  const element = make(
    "li",
    { class: "row", "data-id": item.item_id },
    make("span", { class: "where" }, rank, moved),
    make("div", { class: "what" }, title, sid),
    measure,
    why,
  );

  function fill(now, place, best, before) {
    const name = now.title || now.item_id;
    rank.textContent = String(place + 1);
    moved.replaceChildren(...movement(place, before));
    title.replaceChildren(`${name}\u00a0`, make("span", { class: "add", "aria-hidden": "true" }, "+"));
    title.setAttribute("aria-label", `${name}: add to the history`);
    sid.replaceChildren(...(now.sid ? codesOf(now.sid).map(chip) : []));
    sid.hidden = !now.sid;
    if (now.probability === null) measure.replaceChildren(make("span", { class: "number" }, now.score.toFixed(2)), "score");
    else measure.replaceChildren(make("span", { class: "number" }, percent(now.probability)), bar(now.probability / best));
  }

  function explain(reasons) {
    const bySource = new Map();
    for (const reason of reasons) {
      bySource.set(reason.item_id, { title: reason.title || reason.item_id, ...bySource.get(reason.item_id), [reason.kind]: reason });
    }
    const sources = [...bySource.values()].sort((one, other) => strength(other) - strength(one));
    why.hidden = !sources.length;
    why.classList.remove("stale");
    summary.replaceChildren(...shortReason(sources[0]));
    table.replaceChildren(...sources.map(sourceRow));
  }

  /** Keep the place of reasons that are still asked for, so that rows do not jump when they come. */
  function reserve() {
    if (!why.hidden) return;
    why.hidden = false;
    why.classList.add("stale");
    summary.replaceChildren("…");
    table.replaceChildren();
  }

  return { element, fill, explain, reserve, fade: () => why.classList.add("stale") };
}

/** A sign of how a row moved since the last list, and words for those who do not see it. */
function movement(place, before) {
  if (before === place) return [];
  if (before === undefined) return [make("span", { class: "new" }, "new")];
  const steps = Math.abs(before - place);
  const [sign, words] = place < before ? ["↑", "up"] : ["↓", "down"];
  return [
    make("span", { class: words, "aria-hidden": "true" }, sign + steps),
    make("span", { class: "unseen" }, `${words} ${steps}`),
  ];
}

const strength = (source) => source.history?.change ?? -Infinity;

function shortReason(source) {
  if (!source) return [];
  const one = source.history;
  if (!one || one.change < 0.005) return ["No single item of the history raises its score"];
  const without = one.without === null ? `score ${one.change.toFixed(2)} lower without` : `${percent(one.without)} without it`;
  return [make("span", {}, "Because of "), make("b", {}, source.title), make("span", { class: "without" }, without)];
}

/** What one item of the history has to do with a recommendation. */
function sourceRow(source) {
  const { history, counts, vectors } = source;
  const facts = [];
  if (history && history.without !== null) {
    facts.push(`${percent(history.probability)} with it, ${percent(history.without)} without`);
  } else if (history) facts.push(`score ${history.change < 0 ? "−" : "+"}${Math.abs(history.change).toFixed(2)}`);
  if (counts) facts.push(counts.times ? `next after it ${plural(counts.times, "time")} in training` : "never next after it in training");
  if (vectors) facts.push(`similarity by vectors ${Math.round(100 * vectors.similarity)} %`);
  return make(
    "p",
    {},
    make("span", { class: history && against(history.change) ? "factor against" : "factor" }, factorOf(history)),
    make("span", {}, make("b", {}, source.title), make("span", { class: "facts" }, facts.join(" · "))),
  );
}

const factorOf = (history) => (history && history.without !== null ? times(history.change) : "");
