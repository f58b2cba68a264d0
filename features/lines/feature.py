"""The parts of the feature lines."""

from __future__ import annotations

from features.feature import Feature

FEATURE = Feature(name="lines")
