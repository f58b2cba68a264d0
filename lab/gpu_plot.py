"""Draw what `python -m lab.gpu --json FILE` measured: each figure as a share of its ideal.

python -m lab.gpu_plot gpu-1.json gpu-2.json -o docs/gpu.png
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

_COLOR = "#059669"
_ROW_INCHES = 0.42


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One figure as a share of its ideal."""

    name: str
    share: float


def bars_of(reports: Sequence[dict[str, Any]]) -> list[Bar]:
    """Return the figures that have an ideal, in the order measured. Raises ValueError if there are none."""
    rows = [row for report in reports for section in report["sections"] for row in section["rows"]]
    bars = [Bar(name=row["what"], share=row["share"]) for row in rows if row["share"] is not None]
    if not bars:
        raise ValueError("no section of these files has a figure with an ideal; measure `attention` or a load.")
    return bars


def draw(bars: Sequence[Bar], *, device: str) -> Figure:
    """Return one bar for each figure."""
    figure = Figure(figsize=(9, 1.2 + _ROW_INCHES * len(bars)), layout="constrained")
    axes = figure.add_subplot()
    positions = range(len(bars))
    axes.barh(positions, [bar.share for bar in bars], color=_COLOR, height=0.6)
    for index, bar in zip(positions, bars, strict=True):
        axes.annotate(
            f"{bar.share:.0%} ", (0, index), xytext=(6, 0), textcoords="offset points", va="center", color="white"
        )
    axes.set_yticks(list(positions), [bar.name for bar in bars])
    axes.invert_yaxis()
    axes.set_xlim(0, max(1.08, *(bar.share + 0.08 for bar in bars)))
    axes.set_xticks([share / 10 for share in range(0, 11, 2)], [f"{share * 10} %" for share in range(0, 11, 2)])
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(f"Share of the ideal, {device}", loc="left", fontweight="bold", fontsize=11)
    return figure


def main(argv: list[str] | None = None) -> int:
    """Read the files and write the picture; return 1 if there is nothing to draw."""
    parser = argparse.ArgumentParser(prog="python -m lab.gpu_plot", description=__doc__)
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE.json")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE.png")
    arguments = parser.parse_args(argv)
    try:
        reports = [json.loads(path.read_text()) for path in arguments.files]
        figure = draw(bars_of(reports), device=reports[0]["device"])
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    figure.savefig(arguments.output, dpi=130)
    print(arguments.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
