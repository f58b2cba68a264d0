"""The responses of the health checks."""

from __future__ import annotations

from typing import Literal

from api.schemas.wire import WireModel


class Liveness(WireModel):
    status: Literal["ok"] = "ok"


class Readiness(WireModel):
    status: Literal["ready"] = "ready"
    storage: Literal["ok", "full"] = "ok"
    """When `full`, objects can be read and deleted, and writes get 503 `storage_full`."""
