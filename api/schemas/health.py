"""The two answers to supervisors."""

from __future__ import annotations

from typing import Literal

from api.schemas.wire import WireModel


class Liveness(WireModel):
    status: Literal["ok"] = "ok"


class Readiness(WireModel):
    status: Literal["ready"] = "ready"
