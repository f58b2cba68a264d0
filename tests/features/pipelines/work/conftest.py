"""What tests of runs may ask for; the worker's surroundings take the place of the queue's."""

from __future__ import annotations

from tests.features.pipelines.work.fixtures import house
from tests.workers.fixtures import maker, settings, storage, submit, tenant
