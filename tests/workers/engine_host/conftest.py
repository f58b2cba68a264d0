from __future__ import annotations

from collections.abc import Iterable

import pytest

from tests.workers.engine_host.builders import FakeEngine, HostRig


@pytest.fixture
def stage() -> Iterable[HostRig]:
    stage = HostRig(FakeEngine())
    yield stage
    stage.host.close()
