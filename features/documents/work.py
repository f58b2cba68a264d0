"""Work of control workers on due extractions, with fair share between tenants."""

from __future__ import annotations

from features.documents import claims
from features.documents.advancing import Extractions
from features.retrieval.questions import embedder_of
from workers.control_work import ControlParts, ControlWork
from workers.turns.tenant_turns import CONNECTIONS, TenantTurns


def _turns(parts: ControlParts) -> TenantTurns:
    extractions = Extractions(
        parts.sessions,
        parts.storage,
        parts.settings,
        hold_sessions=parts.hold_sessions,
        is_stopping=parts.is_stopping,
        embedder_of=embedder_of,
    )
    return TenantTurns.of("extraction", parts, find=claims.due_extractions, advance=extractions.advance)


WORK = ControlWork(connections=CONNECTIONS, make=_turns)
