"""Numbers on the benchmarks' command lines: what argparse takes as `type`, with errors that say what is allowed."""

from __future__ import annotations

import argparse
import math


def natural(text: str) -> int:
    """Return a whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is given; it must be a whole number of at least 1.")
    return int(text)


def positive(text: str) -> float:
    """Return a finite number above 0."""
    number = _number(text)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is given; it must be a number above 0.")
    return number


def fraction(text: str) -> float:
    """Return a number above 0 and at most 1."""
    if not 0 < _number(text) <= 1:
        raise argparse.ArgumentTypeError(f"{text} is given; it must be above 0 and at most 1.")
    return float(text)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
