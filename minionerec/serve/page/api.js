// Calls to the server, and error messages.

const LONGEST_MS = 30_000;
let key = null;

/** Use a key for all that is asked from now on; it lives as long as this page does. */
export function useKey(given) {
  key = given;
}

/** An error message; `retryAfter` is in seconds, if the server sends it. */
export class Failed extends Error {
  constructor(message, status = 0, retryAfter = null) {
    super(message);
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

async function ask(path, { body, signal } = {}) {
  const headers = { accept: "application/json" };
  if (key !== null) headers.authorization = `Bearer ${key}`;
  if (body !== undefined) headers["content-type"] = "application/json";
  const limit = AbortSignal.timeout(LONGEST_MS);
  let response;
  let answer;
  try {
    response = await fetch(path, {
      method: body === undefined ? "GET" : "POST",
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: signal ? AbortSignal.any([signal, limit]) : limit,
      cache: "no-store",
      credentials: "omit",
    });
    answer = await response.json().catch((error) => {
      if (error.name !== "SyntaxError") throw error;
      return null;
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    if (error.name === "TimeoutError") throw new Failed("The server did not answer in time.");
    throw new Failed("The server cannot be reached.");
  }
  if (response.ok && answer !== null) return answer;
  const wait = Number.parseInt(response.headers.get("retry-after"), 10);
  throw new Failed(wordsOf(response.status, answer?.error), response.status, Number.isNaN(wait) ? null : wait);
}

function wordsOf(status, error) {
  if (status === 401) return "This server requires an API key.";
  const message = error?.message ? `${error.field ? `${error.field}: ` : ""}${error.message}` : null;
  if (status === 503) return message ? `The server is busy: ${message}` : "The server is busy.";
  return message ?? `The server answered with status ${status}.`;
}

export const model = () => ask("v1/model");
export const recommend = (request, signal) => ask("v1/recommend", { body: request, signal });
export const explain = (request, signal) => ask("v1/explain", { body: request, signal });

export const searchItems = (query, limit, signal) =>
  ask(`v1/items?${new URLSearchParams({ query, limit: String(limit) })}`, { signal });

/** Titles of items by their ids, in groups that fit into an address. */
export async function titlesOf(ids) {
  const titles = new Map();
  for (let start = 0; start < ids.length; start += 50) {
    const asked = new URLSearchParams(ids.slice(start, start + 50).map((id) => ["ids", id]));
    for (const item of (await ask(`v1/items?${asked}`)).items) titles.set(item.item_id, item.title);
  }
  return titles;
}
