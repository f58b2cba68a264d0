"""Batches that the workers of the house will not finish in time."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy.orm import Session

from jobs.engines.engine import OWN_ENGINE
from jobs.tables import Batch, Tenant
from tests.jobs.engines.outside import OUTSIDE, MakeLate, Run, allow, forecast, start


@pytest.fixture
def late(session: Session, run: Run, tenant: Tenant) -> MakeLate:
    """Make a batch of 8 lines that the house will not finish in time, of a tenant whose lines may leave."""

    def make(**columns: Any) -> Batch:
        start(session, OUTSIDE)
        start(session, OWN_ENGINE, "own")
        allow(session, tenant)
        batch = run(8, **columns)
        forecast(session)
        return batch

    return make
