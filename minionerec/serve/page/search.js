// Search by title: a field with a list of results and arrow key navigation.

import { make } from "./dom.js";
import { searchItems } from "./api.js";

const WAIT_MS = 90;
const SHOWN = 8;

/** Let a field find items; `choose(item)` gets the selected item, `fail(error)` an error. */
export function setUpSearch(field, list, choose, fail) {
  let found = [];
  let active = -1;
  let waiting;
  let asked = new AbortController();

  function close() {
    list.hidden = true;
    list.replaceChildren();
    found = [];
    active = -1;
    field.setAttribute("aria-expanded", "false");
    field.removeAttribute("aria-activedescendant");
  }

  function mark(place) {
    active = place;
    for (const [at, option] of [...list.children].entries()) {
      option.setAttribute("aria-selected", String(at === active));
      if (at === active) option.scrollIntoView({ block: "nearest" });
    }
    if (active < 0) field.removeAttribute("aria-activedescendant");
    else field.setAttribute("aria-activedescendant", `found-${active}`);
  }

  function take(item) {
    clearTimeout(waiting);
    asked.abort();
    field.value = "";
    close();
    field.focus();
    choose({ id: item.item_id, title: item.title });
  }

  function show(items, query) {
    found = items;
    list.replaceChildren(
      ...items.map((item, place) =>
        make(
          "li",
          {
            id: `found-${place}`,
            role: "option",
            "aria-selected": "false",
            onpointerdown: (event) => event.preventDefault(), // so that the field keeps the focus
            onclick: () => take(item),
            onpointermove: () => active !== place && mark(place),
          },
          ...marked(item.title || item.item_id, query),
        ),
      ),
    );
    if (!items.length) list.append(make("li", { class: "none" }, "No items found."));
    list.hidden = false;
    field.setAttribute("aria-expanded", "true");
    mark(items.length ? 0 : -1);
  }

  async function search() {
    const query = field.value.trim();
    asked.abort();
    if (!query) return close();
    const { signal } = (asked = new AbortController());
    try {
      const { items } = await searchItems(query, SHOWN, signal);
      if (!signal.aborted && field === document.activeElement) show(items, query);
    } catch (error) {
      if (!signal.aborted) fail(error, search);
    }
  }

  field.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(search, WAIT_MS);
  });
  field.addEventListener("focus", () => field.value.trim() && search());
  field.addEventListener("blur", close);
  field.addEventListener("keydown", (event) => {
    if (event.isComposing) return;
    if (event.key === "Escape") {
      if (list.hidden) field.value = "";
      close();
    } else if (list.hidden || !found.length) {
      if (event.key === "ArrowDown" || event.key === "Enter") search();
    } else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      mark((active + (event.key === "ArrowDown" ? 1 : found.length - 1)) % found.length);
    } else if (event.key === "Enter" && active >= 0) {
      event.preventDefault();
      take(found[active]);
    }
  });
}

// A word, or a character of a script without spaces between words, as the server's search has them.
const UNSPACED = "\\p{Script=Thai}\\p{Script=Lao}\\p{Script=Myanmar}\\p{Script=Khmer}\\p{Script=Hiragana}\\p{Script=Katakana}\\p{Script=Han}";
const WORD = new RegExp(`((?=\\p{L})[${UNSPACED}]\\p{M}*|(?:(?![${UNSPACED}])[\\p{L}\\p{N}]\\p{M}*)+)`, "u");

/** A title with the beginnings of its words that were searched for marked. */
function marked(title, query) {
  const words = query.toLowerCase().split(WORD).filter((piece) => WORD.test(piece));
  const pieces = [];
  for (const piece of title.split(WORD)) {
    const length = Math.max(0, ...words.filter((word) => piece.toLowerCase().startsWith(word)).map((word) => word.length));
    if (length) pieces.push(make("mark", {}, piece.slice(0, length)), piece.slice(length));
    else pieces.push(piece);
  }
  return pieces;
}
