"""Operators' actions on workers: drain and resume."""

from __future__ import annotations

from jobs.admin_log import Admin
from jobs.chunks import fleet
from jobs.tables import Worker


def drain(admin: Admin, worker_id: str) -> Worker:
    """Stop a worker from claiming: `jobs.chunks.fleet.set_draining`. Raise NotFoundError."""
    return _set_draining(admin, worker_id, is_draining=True)


def resume(admin: Admin, worker_id: str) -> Worker:
    """Let a worker claim again. Raise NotFoundError."""
    return _set_draining(admin, worker_id, is_draining=False)


def _set_draining(admin: Admin, worker_id: str, *, is_draining: bool) -> Worker:
    worker = fleet.find_worker(admin.session, worker_id)
    action = "worker.drain" if is_draining else "worker.resume"
    with admin.noting(action, worker_id, tenant_id=None, look=lambda: {"draining_at": worker.draining_at}):
        fleet.set_draining(admin.session, worker, is_draining=is_draining)
    return worker
