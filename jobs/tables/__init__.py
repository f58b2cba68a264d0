"""Every table, as SQLAlchemy declarative classes, by subject. Columns and constraints only.

Knows no query: those live in the modules of what they concern.
"""

from __future__ import annotations

from jobs.tables.accounts import ApiKey, BrowserSession, Budget, CookieSecret, Tenant, WindowBudget
from jobs.tables.base import Base
from jobs.tables.batches import Batch, BatchStage, InputCount
from jobs.tables.chunks import Checkpoint, Chunk, Ledger, Result
from jobs.tables.extractions import (
    Collection,
    CollectionDocument,
    Extraction,
    ExtractionStage,
    ItemChangeRow,
    RecordRanges,
    Review,
)
from jobs.tables.files import File, Upload, UploadPart
from jobs.tables.indexes import IndexSegment, PassageIndex, PassageIndexStage
from jobs.tables.pipelines import DatasetFile, Pipeline, Run, RunStep, Schedule, Store
from jobs.tables.serving import (
    Decision,
    FairShare,
    Forecast,
    Model,
    PlotMark,
    PlotPoint,
    QueueCount,
    ServingRate,
    Worker,
)
from jobs.tables.upkeep import AdminEntry, Chore, Deletion, ScheduleWatch, SchemaFloor, StoreMarker, Uptime
from jobs.tables.webhooks import WebhookAttempt, WebhookDelivery, WebhookEndpoint

__all__ = [
    "AdminEntry",
    "ApiKey",
    "Base",
    "Batch",
    "BatchStage",
    "BrowserSession",
    "Budget",
    "Checkpoint",
    "Chore",
    "Chunk",
    "Collection",
    "CollectionDocument",
    "CookieSecret",
    "DatasetFile",
    "Decision",
    "Deletion",
    "Extraction",
    "ExtractionStage",
    "FairShare",
    "File",
    "Forecast",
    "IndexSegment",
    "InputCount",
    "ItemChangeRow",
    "Ledger",
    "Model",
    "PassageIndex",
    "PassageIndexStage",
    "Pipeline",
    "PlotMark",
    "PlotPoint",
    "QueueCount",
    "RecordRanges",
    "Result",
    "Review",
    "Run",
    "RunStep",
    "Schedule",
    "ScheduleWatch",
    "SchemaFloor",
    "ServingRate",
    "Store",
    "StoreMarker",
    "Tenant",
    "Upload",
    "UploadPart",
    "Uptime",
    "WebhookAttempt",
    "WebhookDelivery",
    "WebhookEndpoint",
    "WindowBudget",
    "Worker",
]
