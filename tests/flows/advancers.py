"""Control workers that advance the flows of one recipe."""

from __future__ import annotations

from typing import Any

from sqlalchemy.orm import Session, sessionmaker

from features.documents.recipe import ExtractionRecipe
from features.documents.standing import Standing as ExtractionStanding
from features.documents.tables import Extraction
from features.pipelines.recipe import RunRecipe
from features.pipelines.recipe import Standing as RunStanding
from features.pipelines.tables import Run
from features.retrieval.fills.recipe import FillRecipe
from features.retrieval.fills.standing import Standing as FillStanding
from features.retrieval.recipe import IndexRecipe
from features.retrieval.standing import Standing as IndexStanding
from features.retrieval.tables import PassageFill, PassageIndex
from flows.advancing import FlowAdvancer
from jobs.settings import Settings
from jobs.storage import Storage
from jobs.telemetry.meters import Meters
from jobs.telemetry.traces import NO_TRACES
from workers.control_work import ControlParts

Maker = sessionmaker[Session]
Extractions = FlowAdvancer[Extraction, ExtractionStanding]
Fills = FlowAdvancer[PassageFill, FillStanding]
Indexes = FlowAdvancer[PassageIndex, IndexStanding]
Runs = FlowAdvancer[Run, RunStanding]


def extractions_of(
    maker: Maker, storage: Storage, settings: Settings, *, recipe: Any = ExtractionRecipe, **options: Any
) -> Extractions:
    """Return a control worker's extractions; `options` are those of the recipe and of the advancer."""
    return _advancer(recipe, maker, storage, settings, options)


def indexes_of(maker: Maker, storage: Storage, settings: Settings, **options: Any) -> Indexes:
    return _advancer(IndexRecipe, maker, storage, settings, options)


def fills_of(maker: Maker, storage: Storage, settings: Settings, **options: Any) -> Fills:
    return _advancer(FillRecipe, maker, storage, settings, options)


def runs_of(maker: Maker, storage: Storage, settings: Settings, **options: Any) -> Runs:
    return _advancer(RunRecipe, maker, storage, settings, options)


def _advancer(
    recipe: Any, maker: Maker, storage: Storage, settings: Settings, options: dict[str, Any]
) -> FlowAdvancer[Any, Any]:
    own = {name: options.pop(name) for name in ("hold_sessions", "is_stopping") if name in options}
    return FlowAdvancer(recipe(storage, settings, **options), maker, settings, **own)


def control_parts(maker: Maker, storage: Storage, settings: Settings) -> ControlParts:
    """Return the resources of a control worker that polls often."""
    return ControlParts(
        sessions=maker,
        hold_sessions=maker,
        storage=storage,
        settings=settings.model_copy(update={"claim_alone_seconds": 0.05}),
        meters=Meters(()),
        traces=NO_TRACES,
        is_stopping=lambda: False,
    )
