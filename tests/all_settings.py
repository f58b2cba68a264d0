"""The settings of the queue and of all features in one class, as `load_settings` makes it, but for the type checker."""

from __future__ import annotations

from features.documents.settings import DocumentSettings
from features.pipelines.settings import PipelineSettings
from features.reports.settings import ReportSettings
from features.retrieval.settings import RetrievalSettings
from features.webhooks.settings import WebhookSettings


class Settings(DocumentSettings, PipelineSettings, ReportSettings, RetrievalSettings, WebhookSettings):
    """Arguments are as for `jobs.settings.Settings`, which is one of its bases."""
