"""Work of control workers on due indexes, with fair share between tenants."""

from __future__ import annotations

from features.retrieval import claims
from features.retrieval.advancing import Indexes
from workers.control_work import ControlParts, ControlWork
from workers.turns.tenant_turns import CONNECTIONS, TenantTurns


def _turns(parts: ControlParts) -> TenantTurns:
    indexes = Indexes(
        parts.sessions,
        parts.storage,
        parts.settings,
        hold_sessions=parts.hold_sessions,
        is_stopping=parts.is_stopping,
    )
    return TenantTurns.of("index", parts, find=claims.due_indexes, advance=indexes.advance)


WORK = ControlWork(connections=CONNECTIONS, make=_turns)
