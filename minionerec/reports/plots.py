"""Plots as SVG text with the colours of the surrounding page; the only module that imports matplotlib."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from io import StringIO
from typing import Any

import numpy as np

COLOURS = ("#3b82c4", "#e08214", "#2a9d5c", "#a263c7", "#c94f4f", "#8a8f98", "#b8860b", "#d36fa0")
_INK = "#010203"  # replaced with the page's text colour when the SVG is written
STYLE: Any = {
    "svg.hashsalt": "minionerec",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 10,
    "text.parse_math": False,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": "#888888",
    "grid.alpha": 0.3,
    "legend.frameon": False,
}


def available() -> bool:
    """Whether matplotlib is installed (the extra `plots`)."""
    return find_spec("matplotlib") is not None


def svg(figure: Any, name: str) -> str:
    """Render a figure as an inline SVG element without prolog and name spaces, with ids that begin with `name`."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    FigureCanvasSVG(figure)
    buffer = StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", text, flags=re.DOTALL)
    text = re.sub(r'\s+xmlns(:\w+)?="[^"]*"', "", text)
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r'href="#', f'href="#{name}-', text)
    text = re.sub(r"url\(#", f"url(#{name}-", text)
    return text.replace(_INK, "currentColor").strip()


@contextmanager
def drawing(width: float, height: float, more: Mapping[str, Any] | None = None) -> Iterator[Any]:
    """Context manager of an empty figure, with its size in inches, in the style of pages and further settings."""
    import matplotlib
    from matplotlib.figure import Figure

    settings: Any = {**STYLE, **(more or {})}
    with matplotlib.rc_context(settings):
        yield Figure(figsize=(width, height), layout="constrained")


def trade_offs(curves: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """Plot value over hits: for each recommender its lists, and its curve of re-ranked ones.

    Args:
        curves: Display name → points (HR@10, value@10), of which the first is that of the lists as they are.

    Returns:
        An SVG element.
    """
    with drawing(7.2, 4.0) as figure:
        axes = figure.add_subplot()
        for number, (name, points) in enumerate(curves.items()):
            colour = COLOURS[number % len(COLOURS)]
            axes.plot(*np.array(points).T, color=colour, linewidth=1, label=name)
            axes.plot(*points[0], marker="o", color=colour)
        axes.set_xlabel("HR@10")
        axes.set_ylabel("value@10")
        axes.legend(loc="best")
        return svg(figure, "value")


def learning_curves(panels: Sequence[tuple[str, Mapping[str, Sequence[tuple[float, float]]]]]) -> str:
    """Plot losses and metrics over the epochs of trainings, in two columns of panels.

    Args:
        panels: Title, and series → points (epoch, value), of each panel.

    Returns:
        An SVG element.
    """
    lines = -(-len(panels) // 2)
    with drawing(7.2, 2.4 * lines) as figure:
        for index, (title, series) in enumerate(panels):
            axes = figure.add_subplot(lines, 2, index + 1)
            for number, (name, points) in enumerate(series.items()):
                axes.plot(*np.array(points).T, marker=".", color=COLOURS[number], label=name)
            axes.set_title(title, fontsize=10)
            axes.set_xlabel("epoch")
            axes.legend(loc="best", fontsize=9)
        return svg(figure, "training")


def use_curves(levels: Sequence[Mapping[str, Sequence[int]]]) -> str:
    """Plot items per code, sorted, of several tables of codes, one panel per level.

    Args:
        levels: Per level, display name → items per code.

    Returns:
        An SVG element.
    """
    with drawing(7.2, 3.0) as figure:
        names = list(dict.fromkeys(name for level in levels for name in level))
        for index, level in enumerate(levels):
            axes = figure.add_subplot(1, len(levels), index + 1)
            for name, counts in level.items():
                heights = np.sort(np.asarray(counts))[::-1]
                heights = heights[heights > 0]
                axes.plot(heights, drawstyle="steps-post", color=COLOURS[names.index(name) % len(COLOURS)], label=name)
            axes.set_yscale("log")
            top = max((max(counts) for counts in level.values()), default=1)
            ticks = [10**power for power in range(len(str(top)))]
            axes.set_yticks(ticks, [f"{tick:,}" for tick in ticks])
            axes.minorticks_off()
            axes.set_title(f"level {index + 1}", fontsize=10)
            axes.set_xlabel("codes, by use")
            if index == 0:
                axes.set_ylabel("items")
                figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8)
        return svg(figure, "use")


def alone(text: str) -> str:
    """Convert an SVG element to a standalone image, readable on light and dark backgrounds."""
    names = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    return text.replace("<svg", f'<svg {names} style="color: #777777"', 1) + "\n"
