"""The features of the service: the one list that its surfaces iterate, in the order in which they are shown."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from features.accounts.feature import FEATURE as ACCOUNTS
from features.administration.feature import FEATURE as ADMINISTRATION
from features.batches.feature import FEATURE as BATCHES
from features.dashboard.feature import FEATURE as DASHBOARD
from features.documents.feature import FEATURE as DOCUMENTS
from features.feature import Feature, resolve
from features.files.feature import FEATURE as FILES
from features.lines.feature import FEATURE as LINES
from features.models.feature import FEATURE as MODELS
from features.operation.feature import FEATURE as OPERATION
from features.pipelines.feature import FEATURE as PIPELINES
from features.reports.feature import FEATURE as REPORTS
from features.retrieval.feature import FEATURE as RETRIEVAL
from features.webhooks.feature import FEATURE as WEBHOOKS

FEATURES: tuple[Feature, ...] = (
    OPERATION,
    DASHBOARD,
    BATCHES,
    LINES,
    FILES,
    MODELS,
    PIPELINES,
    REPORTS,
    DOCUMENTS,
    RETRIEVAL,
    WEBHOOKS,
    ACCOUNTS,
    ADMINISTRATION,
)


def parts(kind: str) -> list[Any]:
    """Return the parts of one kind, a field of `Feature`, of all features in their order."""
    return [resolve(part) for feature in FEATURES for part in getattr(feature, kind)]


def settings_classes() -> list[Any]:
    """Return the classes of features' settings."""
    return [resolve(feature.settings) for feature in FEATURES if feature.settings is not None]


def meters_of(role: str) -> list[Any]:
    """Return the meters that features keep in a process of this role."""
    names = [feature.meters[role] for feature in FEATURES if role in feature.meters]
    return [meter for name in names for meter in resolve(name)]


def load_tables() -> None:
    """Import the tables of all features, which adds them to the metadata of `jobs.tables.Base`."""
    for feature in FEATURES:
        for module in feature.tables:
            import_module(module)
