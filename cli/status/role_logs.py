"""`tokenmill logs`: the logs of the stack on this machine."""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path
from typing import Annotated

import typer

from cli.data_dir import DataDir, default_data_dir
from cli.status.options import DataDirOption
from jobs.errors import InputError

_FOLLOW_SECONDS = 0.3


def logs(
    role: Annotated[str | None, typer.Argument(help="api, worker, postgres … [default: all]")] = None,
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow the logs until Ctrl-C.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="Number of last lines of each role.")] = 20,
    data_dir: DataDirOption = None,
) -> None:
    """Show the logs of the roles of `tokenmill up`."""
    folder = DataDir(root=(data_dir or default_data_dir()).expanduser().absolute()).logs
    files = {path.stem: path for path in sorted(folder.glob("*.log"))}
    if not files:
        raise InputError(f"there are no logs in {folder}. Start `tokenmill up`, or name its folder with --data-dir.")
    if role is not None and role not in files:
        raise InputError(f"there is no log of {role!r} in {folder}; there are logs of {', '.join(files)}")
    chosen = files if role is None else {role: files[role]}
    prefixes = {name: "" if len(chosen) == 1 else f"{name:<{max(map(len, chosen))}} | " for name in chosen}
    ends = {name: _print_last(path, lines, prefix=prefixes[name], is_whole=follow) for name, path in chosen.items()}
    while follow:
        time.sleep(_FOLLOW_SECONDS)
        for name, path in chosen.items():
            ends[name] = _print_new(path, ends[name], prefix=prefixes[name])


def _print_last(path: Path, count: int, *, prefix: str, is_whole: bool) -> int:
    """Print the last lines, with `is_whole` without an unfinished one; return the offset of the next line."""
    end = 0
    last: deque[bytes] = deque(maxlen=count)
    with path.open("rb") as file:
        for line in file:
            if is_whole and not line.endswith(b"\n"):
                break
            end += len(line)
            last.append(line)
    for line in last:
        _print_line(line, prefix)
    return end


def _print_new(path: Path, start: int, *, prefix: str) -> int:
    """Print the complete lines from `start` on; return the next offset. A log that became shorter is read anew."""
    with path.open("rb") as file:
        start = start if path.stat().st_size >= start else 0
        file.seek(start)
        for line in file:
            if not line.endswith(b"\n"):
                break
            _print_line(line, prefix)
            start += len(line)
    return start


def _print_line(line: bytes, prefix: str) -> None:
    print(prefix + line.decode(errors="replace").rstrip("\n"), flush=True)
