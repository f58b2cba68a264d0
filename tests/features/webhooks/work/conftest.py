"""What tests of the sender may ask for; the worker's surroundings take the place of the queue's."""

from __future__ import annotations

from tests.workers.fixtures import maker, tenant
