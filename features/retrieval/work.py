"""The recipes of indexes and of fills, with the resources of a control worker."""

from __future__ import annotations

from features.retrieval.fills.recipe import FillRecipe
from features.retrieval.recipe import IndexRecipe
from workers.control_work import ControlParts


def make_recipe(parts: ControlParts) -> IndexRecipe:
    """Return the recipe, for `Feature.recipes`."""
    return IndexRecipe(parts.storage, parts.settings)


def make_fill_recipe(parts: ControlParts) -> FillRecipe:
    """Return the recipe, for `Feature.recipes`."""
    return FillRecipe(parts.storage, parts.settings)
