"""CPU time of the processes of a stack on this machine, by role.

A stack on another machine has no processes here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

import psutil

_SERVERS = ("postgres", "valkey")


def processor_seconds(base_url: str) -> dict[str, float]:
    """Return the CPU time so far of each role of the stack whose API listens at a URL; empty if it is elsewhere.

    The time of ended processes counts for their parents.
    """
    parent = _parent_of_listener(urlsplit(base_url).port)
    seconds: dict[str, float] = {}
    for process in [] if parent is None else parent.children(recursive=True):
        try:
            role, times = role_of(process.cmdline()), process.cpu_times()
        except psutil.Error:
            continue  # it has ended meanwhile
        if role is not None:
            own = times.user + times.system + times.children_user + times.children_system
            seconds[role] = seconds.get(role, 0.0) + own
    return seconds


def spent(before: Mapping[str, float], after: Mapping[str, float], *, num_lines: int) -> str:
    """Return the CPU time per line of each role between two measurements, as text."""
    each = {role: (seconds - before.get(role, 0.0)) / num_lines * 1e3 for role, seconds in after.items()}
    shown = ", ".join(f"{role} {each[role]:.2f}" for role in sorted(each))
    return f"{shown}; together {sum(each.values()):.2f}"


def role_of(command: Sequence[str]) -> str | None:
    """Return the role of a command line, or None if it is not part of a stack."""
    if "engine.process.child" in command:
        return "engine"
    if "cli.main" in command[:-1]:
        return command[command.index("cli.main") + 1]
    program = command[0].rsplit("/", 1)[-1] if command else ""
    return next((server for server in _SERVERS if program.startswith(server)), None)


def _parent_of_listener(port: int | None) -> psutil.Process | None:
    for connection in psutil.net_connections(kind="tcp"):
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid is not None:
            return psutil.Process(connection.pid).parent()
    return None
