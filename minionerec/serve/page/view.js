// The state of the page: history, request features or time, length, filters. It is kept in the fragment of the address, so that it survives a
// reload and can be shared.

const K = 10;

export const emptyView = () => ({ history: [], context: {}, chosen: "", k: K, exclude: true, where: {} });

/** An object that an address has as JSON; an empty one if it cannot be read. */
function objectOf(text) {
  try {
    const value = JSON.parse(text ?? "{}");
    return value !== null && typeof value === "object" && !Array.isArray(value) ? value : {};
  } catch {
    return {};
  }
}

/** The view that an address names; what cannot be read is left out. */
export function readView(fragment) {
  const view = emptyView();
  const given = new URLSearchParams(fragment.replace(/^#/, ""));
  view.history = given.getAll("h").map((id) => ({ id, title: null }));
  view.context = objectOf(given.get("context"));
  const chosen = given.get("chosen") ?? "";
  if (!Number.isNaN(Date.parse(chosen))) view.chosen = chosen;
  const k = Number(given.get("k"));
  if (Number.isInteger(k) && k > 0) view.k = k;
  view.exclude = given.get("seen") !== "1";
  view.where = objectOf(given.get("where"));
  return view;
}

export function fragmentOf(view) {
  const parts = new URLSearchParams(view.history.map((item) => ["h", item.id]));
  if (Object.keys(view.context).length) parts.set("context", JSON.stringify(view.context));
  if (view.chosen) parts.set("chosen", view.chosen);
  if (view.k !== K) parts.set("k", String(view.k));
  if (!view.exclude) parts.set("seen", "1");
  if (Object.keys(view.where).length) parts.set("where", JSON.stringify(view.where));
  return parts.toString();
}

/** The times of a view whose newest item has one: those of the others are not known. */
function timesOf({ history, chosen }) {
  if (!chosen || !history.length) return {};
  const newest = new Date(chosen).toISOString();
  return { times: history.map((_, index) => (index === history.length - 1 ? newest : null)), now: new Date().toISOString() };
}

/** What the server is asked for a view. */
export const requestOf = (view) => ({
  ...timesOf(view),
  history: view.history.map((item) => item.id),
  context: view.context,
  k: view.k,
  exclude_seen: view.exclude,
  where: view.where,
});
