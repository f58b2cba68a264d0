"""The two answers to supervisors."""

from __future__ import annotations

from typing import Literal

from api.schemas.wire import WireModel


class Liveness(WireModel):
    status: Literal["ok"] = "ok"


class Readiness(WireModel):
    status: Literal["ready"] = "ready"
    storage: Literal["ok", "full"] = "ok"
    """Of a full object store, what it has can be read and deleted; what writes is 503 `storage_full`."""
