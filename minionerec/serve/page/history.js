// The history: an ordered list whose items are moved and removed by buttons, keys or dragging, with the effect of each
// item on the selected recommendation.

import { against, bar, make, times } from "./dom.js";

/** Show a history in a list; `change(items, said)` gets the new one. */
export function setUpHistory(list, change) {
  let items = [];
  let dragged = -1;

  function move(from, to, focus) {
    if (to < 0 || to >= items.length || from === to) return;
    const moved = [...items];
    moved.splice(to, 0, ...moved.splice(from, 1));
    change(moved, `${nameOf(moved[to])} is now number ${to + 1} of the history.`);
    focusOn(to, focus);
  }

  function remove(place) {
    const gone = items[place];
    change(items.toSpliced(place, 1), `${nameOf(gone)} removed from the history.`);
    if (items.length) focusOn(Math.min(place, items.length - 1), "remove");
    else document.getElementById("query").focus();
  }

  function focusOn(place, what) {
    const row = list.children[place];
    const wanted = row?.querySelector(`[data-do="${what}"]`);
    (wanted && !wanted.disabled ? wanted : row?.querySelector("button:not(:disabled)"))?.focus();
  }

  function row(item, place) {
    const name = nameOf(item);
    const button = (what, sign, words, act, off) =>
      make(
        "button",
        { type: "button", class: "icon", "data-do": what, "aria-label": words, title: words, disabled: off, onclick: act },
        sign,
      );
    return make(
      "li",
      {
        draggable: "true",
        class: item.title === null ? "unknown" : null,
        onkeydown: (event) => keys(event, place),
        ondragstart: (event) => {
          dragged = place;
          event.dataTransfer.effectAllowed = "move";
          event.dataTransfer.setData("text/plain", name);
        },
        ondragend: () => (dragged = -1),
        ondragover: (event) => dragged >= 0 && event.preventDefault(),
        ondrop: (event) => {
          event.preventDefault();
          if (dragged >= 0) move(dragged, place, "remove");
        },
      },
      make("span", { class: "place", "aria-hidden": "true" }, String(place + 1)),
      make("span", { class: "name" }, name),
      button("remove", "×", `Remove ${name}`, () => remove(place), false),
      make("span", { class: "bears" }),
      make(
        "span",
        { class: "moves" },
        button("up", "↑", `Move ${name} earlier`, () => move(place, place - 1, "up"), place === 0),
        button("down", "↓", `Move ${name} later`, () => move(place, place + 1, "down"), place === items.length - 1),
      ),
    );
  }

  function keys(event, place) {
    const step = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (step && event.altKey) {
      event.preventDefault();
      move(place, place + step, event.target.dataset.do);
    } else if (step) {
      event.preventDefault();
      focusOn(place + step, event.target.dataset.do);
    } else if (event.key === "Delete") {
      event.preventDefault();
      remove(place);
    }
  }

  return {
    show(given) {
      items = given;
      list.replaceChildren(...items.map(row));
    },

    /** Say how each item bears on a recommendation, by its reasons; nothing without reasons. */
    bear(reasons) {
      const change = new Map(reasons.filter((one) => one.kind === "history").map((one) => [one.item_id, one]));
      const most = Math.max(0.1, ...[...change.values()].map((one) => Math.abs(one.change)));
      for (const [place, row] of [...list.children].entries()) {
        const one = change.get(items[place].id);
        const cell = row.querySelector(".bears");
        if (!one) cell.replaceChildren();
        else {
          const words = one.without === null ? signed(one.change) : times(one.change);
          cell.replaceChildren(bar(Math.abs(one.change) / most, against(one.change) ? "against" : ""), words);
        }
      }
    },
  };
}

const nameOf = (item) => item.title || item.id;
const signed = (change) => (change < 0 ? "−" : "+") + Math.abs(change).toFixed(2);
