"""What a run costs: processor time of each process, transactions of Postgres."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import psutil
from sqlalchemy import text

from lab.schedules.stack import SchedulesStack

_TRANSACTIONS = text("SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Totals so far, or between two moments."""

    seconds: Mapping[str, float]
    """Processor time by role; that of a control worker's children stands apart, as `control-0 children`."""
    transactions: int

    @classmethod
    def of(cls, stack: SchedulesStack) -> Spent:
        """Return the totals of a stack so far."""
        with stack.engine.connect() as connection:
            transactions = connection.execute(_TRANSACTIONS).scalar_one()
        seconds: dict[str, float] = {}
        for role, process in stack.processes.items():
            assert process.pid is not None, f"{role} runs"
            seconds |= _seconds(role, psutil.Process(process.pid))
        return cls(seconds=seconds, transactions=transactions)

    def since(self, before: Spent) -> Spent:
        """Return what was spent since `before`."""
        seconds = {role: total - before.seconds.get(role, 0.0) for role, total in self.seconds.items()}
        return Spent(seconds=seconds, transactions=self.transactions - before.transactions)


def _seconds(role: str, process: psutil.Process) -> dict[str, float]:
    """Return the time of a process and, apart, of its children, ended ones too; a server's are all its own."""
    times = process.cpu_times()
    own, children = times.user + times.system, times.children_user + times.children_system
    for child in process.children(recursive=True):
        try:
            each = child.cpu_times()
        except psutil.NoSuchProcess:
            continue
        children += each.user + each.system + each.children_user + each.children_system
    if role.startswith("control"):
        return {role: own, f"{role} children": children}
    return {role: own + children}
