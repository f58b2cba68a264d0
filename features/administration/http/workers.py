"""`/v1/admin/workers`: list, drain and resume workers."""

from __future__ import annotations

from fastapi import APIRouter

from api.openapi import failures
from features.administration import workers
from features.administration.http.access import AdminDep
from features.administration.schemas import WorkerList, WorkerObject
from jobs.accounts import spill_days
from jobs.admin_log import Admin
from jobs.chunks import fleet
from jobs.tables import Worker

router = APIRouter(prefix="/v1/admin/workers", tags=["admin"], responses=failures(401, 403, 503))


@router.get("", operation_id="listWorkers")
def list_all(admin: AdminDep) -> WorkerList:
    used = spill_days.used_today(admin.session)
    return WorkerList(data=[WorkerObject.of(worker, spill_used=used) for worker in fleet.live_workers(admin.session)])


@router.post("/{worker_id}/drain", operation_id="drainWorker", responses=failures(404))
def drain(worker_id: str, admin: AdminDep) -> WorkerObject:
    """Drain a worker: from its next heartbeat it claims nothing, finishes its work, and keeps running."""
    return _shown(admin, workers.drain(admin, worker_id))


@router.post("/{worker_id}/resume", operation_id="resumeWorker", responses=failures(404))
def resume(worker_id: str, admin: AdminDep) -> WorkerObject:
    """Let a worker claim again."""
    return _shown(admin, workers.resume(admin, worker_id))


def _shown(admin: Admin, worker: Worker) -> WorkerObject:
    return WorkerObject.of(worker, spill_used=spill_days.used_today(admin.session))
