"""Draw the simulated week as a PNG file. Only this file needs matplotlib, which is not a dependency of the product."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter

from lab.plots import STYLE

_DAY_SECONDS = 86_400.0
_NOTE = "Simulated: ServeGen's request rates, our deadlines, start-up 130 s, a worker lives 8 h (mean)."
_COLORS = {"deadlines": "#059669", "queue": "#d97706", "always": "#6b7280", "clairvoyant": "#2563eb"}
_DRAWN = ("deadlines", "12 workers always")
Rows = Sequence[Mapping[str, Any]]


def draw(results: Sequence[Path], path: Path) -> None:
    """Draw the results of `week --json`, the first one's week over time."""
    rows = [row for result in results for row in json.loads(result.read_text())]
    mpl.rcParams.update(STYLE)
    figure = Figure(figsize=(10.5, 4.2), layout=ConstrainedLayoutEngine(rect=(0.0, 0.035, 1.0, 0.965)))
    figure.text(0.99, 0.005, _NOTE, ha="right", va="bottom", fontsize=7.5, color="#6b7280")
    week, cost = figure.subplots(1, 2, width_ratios=(3, 2))
    _week(week, [row for row in rows if row["service"] == rows[0]["service"] and row["seed"] == rows[0]["seed"]])
    _cost(cost, rows)
    figure.savefig(path, dpi=130)


def _week(axes: Axes, rows: Rows) -> None:
    for row in rows:
        if row["policy"] in _DRAWN:
            times, numbers = np.array(row["workers"]).T
            axes.step(
                times / _DAY_SECONDS, numbers, where="post", linewidth=0.9, color=_color(row), label=row["policy"]
            )
    axes.set(title=f"Workers over a week, {rows[0]['service']}", xlabel="days", ylabel="workers", xlim=(0, 8))
    axes.legend(loc="upper right")


def _cost(axes: Axes, rows: Rows) -> None:
    for row in rows:
        axes.scatter(row["times_clairvoyant"], row["of_clairvoyant"], s=40, color=_color(row), zorder=2)
    for name, color in _COLORS.items():
        axes.scatter([], [], s=40, color=color, label=name)
    axes.set(title="Deadlines met, and what they cost", xlabel="GPU-hours ÷ a clairvoyant's")
    axes.set(ylabel="deadlines met, of a clairvoyant's")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
    axes.legend(loc="lower right")


def _color(row: Mapping[str, Any]) -> str:
    return next(color for name, color in _COLORS.items() if name in row["policy"])
