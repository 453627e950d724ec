// The semantic IDs as a tree with probabilities and arrow key navigation.

import { bar, chip, make, percent, plural } from "./dom.js";

/** Show a tree in a list with the role of one. */
export function setUpTree(list, look) {
  const opened = new Map(); // path → whether the user opened it; by default, branches with listed items are open
  let rows = [];
  let current = null; // path of the row with tab focus

  function show(tree, titles) {
    const listed = new Set(titles.keys());
    const most = Math.max(1e-9, ...tree.map((node) => node.probability));
    rows = [];
    list.replaceChildren(...level(tree, 0, "", { listed, most, titles }));
    if (!rows.some((row) => row.path === current)) current = rows[0]?.path ?? null;
    settle();
  }

  /** Rows of siblings: those above listed items one by one, the others behind one row of their own. */
  function level(nodes, depth, above, given) {
    const named = nodes.filter((node) => node.code !== null);
    const marked = named.map((node) => ({ node, ids: idsBelow(node).filter((id) => given.listed.has(id)) }));
    const shown = marked.filter(({ ids }) => ids.length).map((one) => branch(one, depth, above, given));
    const others = marked.filter(({ ids }) => !ids.length);
    const nameless = nodes.find((node) => node.code === null);
    if (others.length || nameless) shown.push(rest(others, nameless, depth, above, given));
    return shown;
  }

  function branch({ node, ids }, depth, above, given) {
    const path = `${above}${node.code}`;
    const names = (node.items ?? []).map((id, at) => given.titles.get(id) ?? node.titles?.[at] ?? id);
    const label = [chip(node.code, depth)];
    if (names.length) label.push(make("span", { class: "leaf", title: names.join("\n") }, names.join(", ")));
    if (node.allowed === false) label.push(make("span", { class: "gone" }, "filtered out"));
    return item(path, depth, label, node.probability / given.most, node.probability, ids, node.allowed === false, () =>
      node.children?.length ? level(node.children, depth + 1, path, given) : null,
    );
  }

  /** One row for the siblings without listed items; the largest of them are inside. */
  function rest(others, nameless, depth, above, given) {
    const smaller = nameless?.branches ?? 0;
    const sum = others.reduce((total, { node }) => total + node.probability, nameless?.probability ?? 0);
    const row = (count, what, probability, inside) => {
      const label = [make("span", { class: "others" }, plural(count, what[0], what[1]))];
      const path = `${above}${inside ? "…" : "……"}`;
      return item(path, depth, label, probability / given.most, probability, [], false, inside ?? (() => null));
    };
    if (!others.length) return row(smaller, ["other", "others"], sum);
    return row(others.length + smaller, ["other", "others"], sum, () => [
      ...others.map((one) => branch(one, depth, `${above}…`, given)),
      ...(nameless ? [row(smaller, ["smaller one", "smaller ones"], nameless.probability)] : []),
    ]);
  }

  function item(path, depth, label, share, probability, ids, gone, inside) {
    const row = { path, ids: new Set(ids) };
    rows.push(row);
    const at = rows.length;
    const below = inside();
    row.open = below ? opened.get(path) ?? ids.length > 0 : null;
    row.group = below && make("ul", { role: "group" }, ...below);
    row.count = rows.length - at;
    const name = `${label.map((part) => part.textContent).join(" ")}, ${percent(probability)}`;
    row.element = make(
      "li",
      { role: "treeitem", "aria-level": depth + 1, "aria-label": name, class: gone ? "out" : null },
      make(
        "div",
        { class: "branch", onclick: () => click(row), onpointerover: () => ids.length && look(ids[0]) },
        make("span", { class: "twist", "aria-hidden": "true" }),
        make("span", { class: "label" }, ...label),
        make("span", { class: "share" }, percent(probability)),
        bar(share, ids.length ? `level-${depth % 4}` : "other"),
      ),
      row.group,
    );
    row.element.addEventListener("focus", () => ids.length && look(ids[0]));
    fold(row);
    return row.element;
  }

  function fold(row) {
    if (row.open === null) return;
    row.element.setAttribute("aria-expanded", String(row.open));
    row.group.hidden = !row.open;
  }

  function turn(row, open) {
    if (row.open === null || row.open === open) return;
    row.open = open;
    opened.set(row.path, open);
    fold(row);
  }

  function click(row) {
    turn(row, !row.open);
    go(row);
  }

  /** One row alone is reached by the tab key. */
  function settle() {
    for (const row of rows) row.element.tabIndex = row.path === current ? 0 : -1;
  }

  function go(row) {
    if (!row) return;
    current = row.path;
    settle();
    row.element.focus();
  }

  const visible = () => rows.filter((row) => row.element.offsetParent !== null);

  list.addEventListener("keydown", (event) => {
    const seen = visible();
    const place = seen.findIndex((row) => row.element === document.activeElement);
    const row = seen[place];
    if (!row || event.altKey || event.ctrlKey || event.metaKey) return;
    const act = {
      ArrowDown: () => go(seen[place + 1]),
      ArrowUp: () => go(seen[place - 1]),
      Home: () => go(seen[0]),
      End: () => go(seen.at(-1)),
      ArrowRight: () => (row.open ? go(seen[place + 1]) : turn(row, true)),
      ArrowLeft: () => (row.open ? turn(row, false) : go(rows.find((one) => one.group === row.element.parentElement))),
      Enter: () => turn(row, !row.open),
      " ": () => turn(row, !row.open),
    }[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });

  return {
    show,

    mark(id) {
      for (const row of rows) row.element.classList.toggle("on", row.ids.has(id));
    },
  };
}

/** The items that a tree shows below a node. */
function idsBelow(node) {
  return [...(node.items ?? []), ...(node.children ?? []).flatMap(idsBelow)];
}
