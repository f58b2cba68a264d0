"""The parts of the feature models."""

from __future__ import annotations

from features.feature import Command, Feature, MenuEntry, Scopes, Section

FEATURE = Feature(
    name="models",
    routers=("api.models:router",),
    scopes=Scopes(read=("listModels", "retrieveModel")),
    commands=(Command("models", "cli.models.commands:app", Section.ADMINISTRATION, "Models that batches may use."),),
    pages=("api.dashboard.pages.models:router",),
    menu=(MenuEntry("/models", "Models & workers", for_operators=True),),
)
