"""The recipe of indexes, with the resources of a control worker."""

from __future__ import annotations

from features.retrieval.recipe import IndexRecipe
from workers.control_work import ControlParts


def make_recipe(parts: ControlParts) -> IndexRecipe:
    """Return the recipe, for `Feature.recipes`."""
    return IndexRecipe(parts.storage, parts.settings)
