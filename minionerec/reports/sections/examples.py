"""Some users: what they had, what they were shown, what they took."""

import numpy as np

from minionerec.metrics.ranking import item_ranks
from minionerec.reports.document import Block, Example, Paragraph, Section
from minionerec.reports.material import Material

_SHOWN, _HISTORY = 5, 20


def examples(material: Material) -> Section | None:
    """Seeded rows: half of them hits of the first recommender in its first five items, half misses.

    Returns:
        None where no recommender has lists of these rows.
    """
    listed = {name: shown.lists for name, shown in material.recommended.items() if shown.lists is not None}
    if not listed:
        return None
    first = next(iter(listed))
    ranks = item_ranks(listed[first])
    hits, misses = np.flatnonzero((ranks >= 1) & (ranks <= _SHOWN)), np.flatnonzero((ranks == 0) | (ranks > _SHOWN))
    rng = np.random.default_rng(material.config.seed)
    wanted = min(material.config.examples, len(ranks))
    n_hits = min(max(wanted // 2, wanted - len(misses)), len(hits))
    chosen = [*rng.choice(hits, n_hits, replace=False), *rng.choice(misses, wanted - n_hits, replace=False)]
    titles = material.ground.titles()
    text = (
        f"Rows drawn at random: {n_hits} in which {first} has the target among its first five items, and "
        f"{wanted - n_hits} in which it has not (over all rows that is {len(hits):,} against {len(misses):,}). "
        "✓ marks the target."
    )
    blocks: list[Block] = [Paragraph(text)]
    for row in (int(row) for row in chosen):
        target = int(material.ground.rows.targets[row])
        lists = [
            (name, [(titles[item] if item >= 0 else "(no item)", item == target) for item in made.items[row][:_SHOWN]])
            for name, made in listed.items()
        ]
        history = _newest([titles[item] for item in material.ground.rows.histories[row]])
        blocks.append(Example(f"Row {row}", history, titles[target], lists))
    return Section("Examples", blocks)


def _newest(history: list[str]) -> list[str]:
    """A history cut to what a reader may want to see."""
    left = len(history) - _HISTORY
    return [f"({left:,} earlier items)", *history[left:]] if left > 0 else history
