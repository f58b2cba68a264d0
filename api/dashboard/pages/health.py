"""`/health`: the state of the service's dependencies, for operators: database, object store, clocks, models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fastapi import Request, Response

from api.dashboard import formats
from api.dashboard.rendering import render
from api.dashboard.routing import page_router
from api.dashboard.viewer import ViewerDep
from api.services import ServicesDep
from api.store import RequestStore
from jobs.overview import diagnosis
from jobs.overview.diagnosis import DatabaseLook
from jobs.states import Scope

router = page_router()

_CLOCKS_DIFFER_SECONDS = 2.0
_FULL = 0.8
"""Share of used connections from which they are reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """A dependency of the service."""

    name: str
    is_well: bool
    says: str


@router.get("/health", name="showHealth")
def show(request: Request, *, viewer: ViewerDep, services: ServicesDep) -> Response:
    viewer.caller.require(Scope.ADMIN)
    look = diagnosis.look(services.engine)
    parts = [*_of_database(look), _of_store(services.store), _of_models(look), _of_documents(look)]
    return render(request, viewer, "health.html", parts=parts)


def _of_database(look: DatabaseLook) -> Sequence[_Part]:
    used = look.num_connections / max(look.max_connections, 1)
    return [
        _Part(name="Database", is_well=True, says=f"Postgres {look.version} answers."),
        _Part(
            name="Schema",
            is_well=look.runs_this_code,
            says=f"Revision {look.revision or 'none'}"
            + (", which this release runs on." if look.runs_this_code else ": `tokenmill db upgrade` is due."),
        ),
        _Part(
            name="Connections",
            is_well=used < _FULL,
            says=f"{look.num_connections} of {look.max_connections} ({formats.share(used, 1)}).",
        ),
        _Part(
            name="Clock",
            is_well=abs(look.clock_seconds) < _CLOCKS_DIFFER_SECONDS,
            says=f"This API's and the database's differ by {abs(look.clock_seconds):.1f} s.",
        ),
    ]


def _of_store(store: RequestStore) -> _Part:
    says = "It answers."
    if not store.is_answering:
        says = (
            "It did not answer recently, or it is another database's store: uploads and downloads fail, batches wait."
        )
    elif store.is_full:
        says = "It is full: uploads are refused, and batches that have ended wait for their files."
    return _Part(name="Object store", is_well=store.is_answering and not store.is_full, says=says)


def _of_models(look: DatabaseLook) -> _Part:
    waiting = ", ".join(look.unserved_models)
    served = ", ".join(look.served_models) or "none"
    says = f"Open batches wait for {waiting}, which no worker serves." if waiting else f"Served: {served}."
    return _Part(name="Models", is_well=not waiting, says=says)


def _of_documents(look: DatabaseLook) -> _Part:
    if look.do_documents_wait:
        says = "Open batches wait for a worker that prepares documents (`tokenmill prepare`), and none is running."
    else:
        says = "A worker prepares them." if look.are_documents_served else "No batch waits for them."
    return _Part(name="Documents", is_well=not look.do_documents_wait, says=says)
