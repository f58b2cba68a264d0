"""Tables of the queue as SQLAlchemy declarative classes: columns and constraints. Features declare their own."""

from __future__ import annotations

from jobs.tables.accounts import ApiKey, BrowserSession, Budget, Tenant, WindowBudget
from jobs.tables.base import Base
from jobs.tables.batches import Batch, InputCount, InputDigest, InputSegment
from jobs.tables.chunks import Checkpoint, Chunk, Ledger, Result
from jobs.tables.files import File, Upload, UploadPart
from jobs.tables.serving import (
    Decision,
    DueWork,
    FairShare,
    Forecast,
    Model,
    PlotMark,
    PlotPoint,
    QueueCount,
    Scaling,
    ServedEngine,
    ServingRate,
    SpillDay,
    SpillLack,
    Worker,
)
from jobs.tables.upkeep import AdminEntry, Chore, Deletion, ScheduleWatch, SchemaFloor, StoreMarker, Uptime

__all__ = [
    "AdminEntry",
    "ApiKey",
    "Base",
    "Batch",
    "BrowserSession",
    "Budget",
    "Checkpoint",
    "Chore",
    "Chunk",
    "Decision",
    "Deletion",
    "DueWork",
    "FairShare",
    "File",
    "Forecast",
    "InputCount",
    "InputDigest",
    "InputSegment",
    "Ledger",
    "Model",
    "PlotMark",
    "PlotPoint",
    "QueueCount",
    "Result",
    "Scaling",
    "ScheduleWatch",
    "SchemaFloor",
    "ServedEngine",
    "ServingRate",
    "SpillDay",
    "SpillLack",
    "StoreMarker",
    "Tenant",
    "Upload",
    "UploadPart",
    "Uptime",
    "WindowBudget",
    "Worker",
]
