"""The rights: database role × table × right, and the functions that each role may call. No SQL.

A test fails for a table without a line here, and for a right in the schema that differs. docs/database_roles.md is
generated from this.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

OWNER = "tokenmill_owner"
"""Owns the schema and everything in it; migrations, backups and restores run as it."""
SERVICE = "tokenmill_service"
"""The API, control and GPU workers, dispatchers, and commands of operators."""
PREPARE = "tokenmill_prepare"
"""Prepare workers, which read untrusted documents."""
SCALER = "tokenmill_scaler"
"""What starts and stops workers: KEDA, or `tokenmill autoscale`. It may call one function and read no table."""
ROLES = (OWNER, SERVICE, PREPARE, SCALER)


class Right(StrEnum):
    """A right of a role on a table. Locking a row needs UPDATE."""

    SELECT = "SELECT"
    INSERT = "INSERT"
    UPDATE = "UPDATE"
    DELETE = "DELETE"


@dataclass(frozen=True, slots=True)
class Rights:
    """Rights of the non-owner roles on one table."""

    service: frozenset[Right]
    prepare: frozenset[Right] = frozenset()

    def of(self, role: str) -> frozenset[Right]:
        return {SERVICE: self.service, PREPARE: self.prepare}.get(role, frozenset())


_READ = frozenset({Right.SELECT})
_ADD = _READ | {Right.INSERT}
_CHANGE = _READ | {Right.UPDATE}
_KEEP = _ADD | {Right.UPDATE}
_ADD_AND_DROP = _ADD | {Right.DELETE}
_ALL = _KEEP | {Right.DELETE}

TABLES: Mapping[str, Rights] = {
    "admin_log": Rights(_ADD),
    "alembic_version": Rights(_READ, _READ),
    "api_key": Rights(_KEEP),
    "batch": Rights(_KEEP, _CHANGE),
    "browser_session": Rights(_ALL),
    "budget": Rights(_KEEP, _CHANGE),
    "checkpoint": Rights(_ALL),
    "chore": Rights(_ALL),
    "chunk": Rights(_ALL, _CHANGE),
    "collection": Rights(_KEEP),
    "collection_document": Rights(_ALL, _READ),
    "dataset_file": Rights(_ALL),
    "decision": Rights(_ALL, _KEEP),
    "deletion": Rights(_ADD),
    "due_report": Rights(_ALL),
    "due_work": Rights(_ALL),
    "extraction": Rights(_ALL),
    "extraction_document": Rights(_ALL),
    "fair_share": Rights(_KEEP, _KEEP),
    "file": Rights(_KEEP, _READ),
    "flow": Rights(_ALL, _READ),
    "flow_node": Rights(_ALL),
    "forecast": Rights(_ALL),
    "index_segment": Rights(_ALL, _READ),
    "input_count": Rights(_ALL),
    "input_digest": Rights(_ALL),
    "input_segment": Rights(_ALL),
    "item_change": Rights(_ALL),
    "ledger": Rights(_ALL, _ADD),
    "model": Rights(_ALL, _READ),
    "passage_fill": Rights(_ALL),
    "passage_index": Rights(_ALL, _READ),
    "pipeline": Rights(_KEEP),
    "plot_mark": Rights(_KEEP),
    "plot_point": Rights(_ALL),
    "queue_count": Rights(_KEEP),
    "record_ranges": Rights(_KEEP),
    "report_subscription": Rights(_ALL),
    "result": Rights(_ADD_AND_DROP, _ADD),
    "review": Rights(_ALL),
    "run": Rights(_ALL),
    "run_step": Rights(_ALL),
    "scaling": Rights(_ALL),
    "schedule": Rights(_KEEP),
    "schedule_watch": Rights(_KEEP),
    "schema_floor": Rights(_READ, _READ),
    "served_engine": Rights(_ALL, _READ),
    "serving_rate": Rights(_KEEP),
    "spill_day": Rights(_ALL),
    "spill_lack": Rights(_ALL),
    "store": Rights(_KEEP, _READ),
    "store_marker": Rights(_KEEP, _KEEP),
    "tenant": Rights(_KEEP, _READ),
    "upload": Rights(_ALL),
    "upload_part": Rights(_ALL),
    "uptime": Rights(_KEEP),
    "webhook_attempt": Rights(_ADD_AND_DROP),
    "webhook_delivery": Rights(_ALL),
    "webhook_endpoint": Rights(_ALL),
    "window_budget": Rights(_ALL, _CHANGE),
    "worker": Rights(_ALL, _KEEP),
}

FUNCTIONS: Mapping[str, frozenset[str]] = {
    "drop_result_partition(date)": frozenset({SERVICE}),
    "make_result_partition(date)": frozenset({SERVICE}),
    "notify_changed_keys()": frozenset(),
    "refuse_change_of_admin_log()": frozenset(),
    "tokenmill_wanted_workers(text)": frozenset({SERVICE, SCALER}),
}
"""Callers of each of our functions; a trigger function is called by its table only."""
