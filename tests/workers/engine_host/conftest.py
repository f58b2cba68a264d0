from __future__ import annotations

from collections.abc import Iterable

import pytest

from tests.workers.engine_host.builders import FakeEngine, Stage


@pytest.fixture
def stage() -> Iterable[Stage]:
    stage = Stage(FakeEngine())
    yield stage
    stage.host.close()
