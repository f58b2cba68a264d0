"""The processes of a running embedded stack by role: state, start time and memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from cli.embedded.note import StackNote

_SERVERS = {"postgres": "postgres", "valkey": "valkey", "redis": "valkey"}  # by the beginning of a process's name


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleProcess:
    name: str
    pid: int | None
    """None if it does not run: it died and will be restarted."""
    started_at: float = 0.0
    """Unix seconds."""
    memory_bytes: int = 0
    """Resident memory, including child processes."""


def role_processes(note: StackNote) -> list[RoleProcess]:
    """Return every role of the stack in start order; one that was started later comes last."""
    running = dict(_running(note.pid))
    return [_described(name, running.get(name)) for name in dict.fromkeys([*note.roles, *running])]


def _running(pid: int) -> Iterator[tuple[str, psutil.Process]]:
    try:
        children = psutil.Process(pid).children()
    except psutil.NoSuchProcess:
        return
    for child in children:
        try:
            name = _name_of(child)
        except psutil.Error:
            continue
        if name is not None:
            yield name, child


def _name_of(process: psutil.Process) -> str | None:
    command = process.cmdline()
    if "--ready-file" in command:
        return Path(command[command.index("--ready-file") + 1]).stem
    name = process.name()
    return next((role for server, role in _SERVERS.items() if name.startswith(server)), None)


def _described(name: str, process: psutil.Process | None) -> RoleProcess:
    if process is None:
        return RoleProcess(name=name, pid=None)
    try:
        family = [process, *process.children(recursive=True)]
        memory = sum(member.memory_info().rss for member in family)
        return RoleProcess(name=name, pid=process.pid, started_at=process.create_time(), memory_bytes=memory)
    except psutil.Error:  # it ended meanwhile
        return RoleProcess(name=name, pid=None)
