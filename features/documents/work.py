"""The recipe of extractions, with the resources of a control worker."""

from __future__ import annotations

from features.documents.recipe import ExtractionRecipe
from features.retrieval.questions import embedder_of
from workers.control_work import ControlParts


def make_recipe(parts: ControlParts) -> ExtractionRecipe:
    """Return the recipe, for `Feature.recipes`."""
    return ExtractionRecipe(parts.storage, parts.settings, embedder_of=embedder_of)
