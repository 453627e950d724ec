// The state of the page: history, session context or time, length, filters. It is kept in the fragment of the address, so that it survives a
// reload and can be shared.

const K = 10;
const ANY_TIME = "unknown";
const SESSION_CONTEXTS = [ANY_TIME, "same", "later"];

export const emptyView = () => ({ history: [], sessionContext: ANY_TIME, chosen: "", k: K, exclude: true, where: {} });

/** The view that an address names; what cannot be read is left out. */
export function readView(fragment) {
  const view = emptyView();
  const given = new URLSearchParams(fragment.replace(/^#/, ""));
  view.history = given.getAll("h").map((id) => ({ id, title: null }));
  const sessionContext = given.get("session_context");
  if (SESSION_CONTEXTS.includes(sessionContext)) view.sessionContext = sessionContext;
  const chosen = given.get("chosen") ?? "";
  if (!Number.isNaN(Date.parse(chosen))) view.chosen = chosen;
  const k = Number(given.get("k"));
  if (Number.isInteger(k) && k > 0) view.k = k;
  view.exclude = given.get("seen") !== "1";
  try {
    const where = JSON.parse(given.get("where") ?? "{}");
    if (where !== null && typeof where === "object" && !Array.isArray(where)) view.where = where;
  } catch {
    view.where = {};
  }
  return view;
}

export function fragmentOf(view) {
  const parts = new URLSearchParams(view.history.map((item) => ["h", item.id]));
  if (view.sessionContext !== ANY_TIME) parts.set("session_context", view.sessionContext);
  if (view.chosen) parts.set("chosen", view.chosen);
  if (view.k !== K) parts.set("k", String(view.k));
  if (!view.exclude) parts.set("seen", "1");
  if (Object.keys(view.where).length) parts.set("where", JSON.stringify(view.where));
  return parts.toString();
}

/** The times of a view whose newest item has one: those of the others are not known. */
function timesOf({ history, sessionContext, chosen }) {
  if (!chosen || !history.length || sessionContext !== ANY_TIME) return {};
  const newest = new Date(chosen).toISOString();
  return { times: history.map((_, index) => (index === history.length - 1 ? newest : null)), now: new Date().toISOString() };
}

/** What the server is asked for a view. */
export const requestOf = (view) => ({
  ...timesOf(view),
  history: view.history.map((item) => item.id),
  session_context: view.sessionContext,
  k: view.k,
  exclude_seen: view.exclude,
  where: view.where,
});
