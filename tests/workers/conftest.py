"""What tests of workers may ask for."""

from __future__ import annotations

from tests.workers.fixtures import (
    house,
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
