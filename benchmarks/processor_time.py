"""What the processes of a stack on this machine spend of the processors, by role.

Knows nothing of what they do; a stack on another machine has no processes here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

import psutil

_SERVERS = ("postgres", "valkey")


def processor_seconds(base_url: str) -> dict[str, float]:
    """Return the processor time so far of each role beside the API that listens at a URL; empty where none does here.

    What processes that have ended took counts with who started them.
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
    """Return what each role spent on a line between two looks, in words."""
    each = {role: (seconds - before.get(role, 0.0)) / num_lines * 1e3 for role, seconds in after.items()}
    shown = ", ".join(f"{role} {each[role]:.2f}" for role in sorted(each))
    return f"{shown}; together {sum(each.values()):.2f}"


def role_of(command: Sequence[str]) -> str | None:
    """Return the role that a command line runs, None where it is none of a stack's."""
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
