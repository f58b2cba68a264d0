"""The recipe of runs, with the resources of a control worker."""

from __future__ import annotations

from features.pipelines.recipe import RunRecipe
from workers.control_work import ControlParts


def make_recipe(parts: ControlParts) -> RunRecipe:
    """Return the recipe, for `Feature.recipes`."""
    return RunRecipe(parts.storage, parts.settings, traces=parts.traces)
