"""Fixtures of tests of workers."""

from __future__ import annotations

from tests.features.pipelines.work.fixtures import house
from tests.workers.fixtures import (
    line,
    maker,
    read_batch,
    settings,
    storage,
    submit,
    submit_valid,
    tenant,
    tokenizer,
)
