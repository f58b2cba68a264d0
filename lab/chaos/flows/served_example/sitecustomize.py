"""Imported by Python at startup if this folder is on PYTHONPATH: serves the recipe of `examples.flows.translate`."""

from __future__ import annotations

import sys

if "cli.main" in sys.orig_argv:
    import features
    from features.feature import Feature

    example = Feature(
        name="translations",
        tables=("examples.flows.translate",),
        recipes=("lab.chaos.flows.translations:make_recipe",),
    )
    features.FEATURES = (*features.FEATURES, example)
