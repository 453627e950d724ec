// Wires the page: a change of history, length or filters requests a new list; only the newest answer is shown.

import * as api from "./api.js";
import { byId, make, plural } from "./dom.js";
import { setUpFilters, words } from "./filters.js";
import { setUpHistory } from "./history.js";
import { setUpList } from "./list.js";
import { setUpSearch } from "./search.js";
import { setUpTree } from "./tree.js";
import { emptyView, fragmentOf, readView, requestOf } from "./view.js";

const WAIT_MS = 60; // changes within it make one request
const QUIET_MS = 150; // slower answers show a line above the list

const LONGEST = 50;
const UNKNOWN = "unknown"; // the value of a request feature that is not given
const GAP = "gap";

let view = readView(location.hash);
let model = null;
let reasons = {};
let lookedAt = null;
let waiting;
let retrying;
let asked = new AbortController();

const showFilters = setUpFilters(byId("columns"), (where) => change({ where }));
const history = setUpHistory(byId("history"), (items, said) => change({ history: items }, said));
const list = setUpList(byId("list"), add, look);
const tree = setUpTree(byId("tree"), look);
setUpSearch(byId("query"), byId("found"), add, failed);

function add(item) {
  change({ history: [...view.history, item] }, `${item.title || item.id} added to the history.`);
}

function change(part, said) {
  view = { ...view, ...part };
  window.history.replaceState(null, "", `#${fragmentOf(view)}`);
  showView();
  if (said) byId("status").textContent = said;
  clearTimeout(waiting);
  waiting = setTimeout(update, WAIT_MS);
}

function showView() {
  history.show(view.history);
  history.bear(reasons[lookedAt] ?? []);
  const empty = !view.history.length;
  byId("clear").hidden = empty;
  byId("about-history").textContent = empty
    ? "Empty: recommendations for a new user. Search, or add an item from the list."
    : "Oldest first. Next to each item: its effect on the marked recommendation.";
  showContext();
  byId("k").value = String(view.k);
  byId("k-value").textContent = String(view.k);
  byId("exclude").checked = view.exclude;
  byId("reset").hidden = !Object.keys(view.where).length;
}

/** Request features: offered with a model that was conditioned on them in training; the gap with a history alone. */
function showContext() {
  const features = (model?.context ?? []).filter(({ name }) => name !== GAP || view.history.length);
  byId("context").hidden = !features.length;
  const fields = features.map(({ name, values }) => {
    const options = [UNKNOWN, ...values].map((value) =>
      make("option", { value, selected: value === (view.context[name] ?? UNKNOWN) }, value === UNKNOWN ? "any" : value),
    );
    return make("label", { class: "field" }, make("span", {}, words(name)), make("select", { name }, ...options));
  });
  byId("features").replaceChildren(...fields);
  byId("clock").hidden = !view.history.length || !features.some((feature) => feature.from_times);
  if (byId("chosen").value !== view.chosen) byId("chosen").value = view.chosen;
}

function look(id) {
  if (id === lookedAt) return;
  lookedAt = id;
  list.mark(id);
  tree.mark(id);
  history.bear(reasons[id] ?? []);
}

/** Ask for the list, then for what explains it. */
async function update() {
  asked.abort();
  clearTimeout(retrying);
  const { signal } = (asked = new AbortController());
  const request = requestOf(view);
  const sign = setTimeout(() => (byId("busy").hidden = false), QUIET_MS);
  list.fade();
  byId("list").setAttribute("aria-busy", "true");
  try {
    const start = performance.now();
    const answer = await api.recommend(request, signal);
    if (signal.aborted) return;
    showAnswer(answer, performance.now() - start);
    const explanation = await api.explain(request, signal);
    if (signal.aborted) return;
    showExplanation(explanation, answer.items);
    if (answer.model.version !== model.version) await showModel();
  } catch (error) {
    if (!signal.aborted) failed(error, update);
  } finally {
    clearTimeout(sign);
    if (!signal.aborted) {
      byId("busy").hidden = true;
      byId("list").removeAttribute("aria-busy");
    }
  }
}

function showAnswer({ items, unknown, context }, milliseconds) {
  clearNotice();
  list.show(items, view.history.length > 0);
  byId("took").textContent = `${items.length} of ${plural(model.items, "item")} in ${Math.max(1, Math.round(milliseconds))} ms`;
  const notes = [];
  if (unknown.length) notes.push(`Not in the catalogue, ignored: ${unknown.join(", ")}.`);
  const derived = Object.entries(context).filter(([name, value]) => value !== UNKNOWN && value !== view.context[name]);
  if (derived.length) notes.push(`By the times: ${derived.map(([name, value]) => `${words(name)} ${value}`).join(", ")}.`);
  if (!items.length) notes.push("No items match. Relax the filters.");
  else if (items.length < view.k) notes.push(`Only ${plural(items.length, "item")} match${items.length === 1 ? "es" : ""} the filters.`);
  byId("about-list").textContent = notes.join(" ");
  byId("about-list").hidden = !notes.length;
  const first = items.length ? ` First: ${items[0].title || items[0].item_id}.` : "";
  byId("status").textContent = `${plural(items.length, "recommendation")}.${first}`;
  if (!items.some((item) => item.item_id === lookedAt)) lookedAt = items[0]?.item_id ?? null;
  list.mark(lookedAt);
}

function showExplanation(explanation, items) {
  reasons = explanation.reasons;
  list.explain(reasons);
  byId("branches").hidden = !explanation.tree.length;
  tree.show(explanation.tree, new Map(items.map((item) => [item.item_id, item.title || item.item_id])));
  tree.mark(lookedAt);
  history.bear(reasons[lookedAt] ?? []);
}

/** Say what went wrong and how to go on; what stands on the page stays. A busy server is asked again by itself. */
function failed(error, again) {
  clearTimeout(retrying);
  if (error.retryAfter) retrying = setTimeout(again, 1000 * error.retryAfter);
  const retry = make("button", { type: "button", onclick: () => again() }, "Try again");
  const answering = byId("notice").contains(document.activeElement);
  if (error.status === 401) {
    const field = make("input", { type: "password", autocomplete: "off", "aria-label": "API key of this server", required: true });
    const use = (event) => {
      event.preventDefault();
      api.useKey(field.value);
      again();
    };
    byId("notice").replaceChildren(make("form", { onsubmit: use }, make("span", {}, error.message), field, make("button", {}, "Send")));
  } else {
    const words = error instanceof api.Failed ? error.message : `Error in this page: ${error.message}`;
    const stays = byId("list").children.length ? " The last answer is shown." : "";
    byId("notice").replaceChildren(make("span", {}, words + stays), retry);
  }
  byId("notice").hidden = false;
  if (answering) byId("notice").querySelector("input, button").focus();
}

function clearNotice() {
  clearTimeout(retrying);
  byId("notice").hidden = true;
  byId("notice").replaceChildren();
}

async function showModel() {
  const fresh = await api.model();
  const changed = model !== null && model.version !== fresh.version;
  model = fresh;
  byId("model").textContent = `${model.name} · ${model.version} · ${plural(model.items, "item")}`;
  const longest = Math.min(LONGEST, model.items, model.limits.max_k);
  byId("k").max = String(longest);
  view.k = Math.min(view.k, longest);
  const known = new Set(model.filters.map((filter) => filter.column));
  view.where = Object.fromEntries(Object.entries(view.where).filter(([column]) => known.has(column)));
  showFilters(model.filters, view.where);
  const valuesOf = new Map(model.context.map(({ name, values }) => [name, values]));
  view.context = Object.fromEntries(Object.entries(view.context).filter(([name, value]) => valuesOf.get(name)?.includes(value)));
  if (!model.context.some((feature) => feature.from_times)) view.chosen = "";
  showContext();
  if (changed) byId("status").textContent = "The server has loaded another model.";
}

async function nameHistory() {
  const nameless = view.history.filter((item) => item.title === null).map((item) => item.id);
  if (!nameless.length) return;
  const titles = await api.titlesOf([...new Set(nameless)]);
  view.history = view.history.map((item) => ({ ...item, title: item.title ?? titles.get(item.id) ?? null }));
}

async function start() {
  try {
    await showModel();
    await nameHistory();
    showView();
    await update();
  } catch (error) {
    failed(error, start);
  }
}

byId("clear").addEventListener("click", () => {
  change({ history: [] }, "The history is empty.");
  byId("query").focus();
});
byId("reset").addEventListener("click", () => {
  showFilters(model.filters, {});
  change({ where: {} }, "No filters are set.");
  byId("k").focus();
});
byId("k").addEventListener("input", () => change({ k: Number(byId("k").value) }));
byId("context").addEventListener("change", ({ target }) => {
  if (target.id === "chosen") return change({ chosen: target.value });
  const { [target.name]: _, ...others } = view.context;
  change({ context: target.value === UNKNOWN ? others : { ...others, [target.name]: target.value } });
});
byId("exclude").addEventListener("change", () => change({ exclude: byId("exclude").checked }));
byId("filters").addEventListener("submit", (event) => event.preventDefault());
byId("skip").addEventListener("click", () => byId("list-title").focus());
addEventListener("hashchange", () => {
  view = { ...emptyView(), ...readView(location.hash) };
  start();
});

byId("filters-box").open = matchMedia("(min-width: 46rem)").matches;

showView();
start();
