// Filters: a set of controls for each column of the items that the server can filter by.

import { make } from "./dom.js";

const FEW = 12;

/** Columns' conditions as controls in `place`; `change(where)` gets the conditions as the API reads them. */
export function setUpFilters(place, change) {
  let shown = [];

  function collect() {
    const where = {};
    for (const { column, read } of shown) {
      const condition = read();
      if (condition !== null) where[column] = condition;
    }
    change(where);
  }

  return (filters, where) => {
    shown = filters.map((filter) => ({ column: filter.column, ...CONTROLS[filter.kind](filter, where[filter.column], collect) }));
    place.replaceChildren(...shown.map(({ element }) => element));
  };
}

const CONTROLS = { choice, number, switch: either };

function choice(filter, condition, changed) {
  const chosen = new Set(condition === undefined ? [] : [condition].flat().map(String));
  if (filter.values.length > FEW) return manyChoices(filter, chosen, changed);
  const boxes = filter.values.map((value) =>
    make("input", { type: "checkbox", value, checked: chosen.has(String(value)), onchange: changed }),
  );
  return {
    element: group(filter.column, "chips", ...boxes.map((box, at) => make("label", {}, box, make("span", {}, String(filter.values[at]))))),
    read: () => {
      const values = filter.values.filter((_, at) => boxes[at].checked);
      return values.length ? values : null;
    },
  };
}

function manyChoices(filter, chosen, changed) {
  const any = make("option", { value: "" }, "any");
  const options = filter.values.map((value, at) =>
    make("option", { value: String(at), selected: chosen.has(String(value)) }, String(value)),
  );
  const select = make("select", { onchange: changed }, any, ...options);
  return {
    element: make("label", { class: "field" }, make("span", {}, words(filter.column)), select),
    read: () => (select.value === "" ? null : filter.values[Number(select.value)]),
  };
}

function number(filter, condition, changed) {
  const ends = { at_least: ["from", filter.least], at_most: ["to", filter.most] };
  const fields = Object.entries(ends).map(([end, [label, limit]]) => [
    end,
    make("input", {
      type: "number",
      step: "any",
      inputmode: "decimal",
      placeholder: limit,
      "aria-label": `${words(filter.column)} ${label}`,
      value: condition?.[end],
      oninput: changed,
    }),
  ]);
  return {
    element: group(filter.column, "range", fields[0][1], make("span", { "aria-hidden": "true" }, "to"), fields[1][1]),
    read: () => {
      const given = fields.filter(([, field]) => field.value !== "" && field.validity.valid);
      return given.length ? Object.fromEntries(given.map(([end, field]) => [end, field.valueAsNumber])) : null;
    },
  };
}

function either(filter, condition, changed) {
  const states = [["any", null], ["yes", true], ["no", false]];
  const name = `either ${filter.column}`;
  const radios = states.map(([, value]) =>
    make("input", { type: "radio", name, checked: (condition ?? null) === value, onchange: changed }),
  );
  return {
    element: group(filter.column, "chips", ...radios.map((radio, at) => make("label", {}, radio, make("span", {}, states[at][0])))),
    read: () => states[radios.findIndex((radio) => radio.checked)]?.[1] ?? null,
  };
}

const group = (column, kind, ...controls) =>
  make("fieldset", {}, make("legend", {}, words(column)), make("div", { class: kind }, ...controls));

/** A column's name in words: "in_stock" is "In stock". */
export function words(column) {
  const spaced = column.replaceAll("_", " ").trim();
  return spaced.charAt(0).toUpperCase() + spaced.slice(1);
}
