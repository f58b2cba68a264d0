"""Scores on answers that are wrong as models err: simulated papers, answers about them, and the study."""

from __future__ import annotations

from lab.extraction.simulated_answers.study import main

__all__ = ["main"]
