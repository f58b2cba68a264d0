"""A quick `tokenmill` and a quick `python` for tests that are not about the start of our processes.

Each command, role or engine is a fork of a process that has loaded it. A call of a server takes 0.2 s of CPU instead of
1.0 s, on a busy machine. Its arguments, environment, folder and open files are the caller's.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from cli.embedded.child import Child, ChildSpec

ROOT = Path(__file__).resolve().parents[2]
_CALLER = Path(__file__).with_name("caller.py")
_SERVER = Path(__file__).with_name("server.py")
_READY_SECONDS = 240.0  # it takes 2 s of CPU, on a machine that may be busy

_TOKENMILL = '#!/bin/sh\nexec {caller} {commands} "$0" "$@"\n'
_PYTHON = """\
#!/bin/sh
case "$1 $2 $3" in
"-P -m engine.process.child" | "-m cli.main bench") exec {caller} {engines} "$@" ;;
"-m cli.main "* | "-m tests."* | "-P "*"/tokenmill/processes.py cli.m"*) exec {caller} {commands} "$@" ;;
esac
exec {python} "$@"
"""


@contextmanager
def forked_commands(folder: Path) -> Iterator[Path]:
    """Serve the commands `tokenmill` and `python`; yield the new folder below `folder` that has them, for the PATH.

    What this `python` starts is started by it, too: it is `sys.executable` there. Everything but commands, roles,
    engines and modules of tests, which call a command, it leaves to the real one.
    """
    sockets = {name: folder / f"{name}.socket" for name in ("commands", "engines")}
    # without `site`, which takes half of an interpreter's start
    caller = f"{sys.executable} -IS {_CALLER}"
    (folder / "commands").mkdir()
    for name, script in (("tokenmill", _TOKENMILL), ("python", _PYTHON)):
        command = folder / "commands" / name
        command.write_text(script.format(caller=caller, python=sys.executable, **sockets))
        command.chmod(0o755)
    with ExitStack() as stack:
        for name, socket in sockets.items():
            stack.enter_context(_serving(name, socket, quick_python=folder / "commands" / "python"))
        yield folder / "commands"


def program_of(process: int) -> int:
    """Return the process that runs what a quick command was called for, or a process itself if it is no such call."""
    place = Path(f"/proc/{process}")
    if str(_CALLER).encode() in (place / "cmdline").read_bytes().split(b"\0"):
        for entry in (place / "fdinfo").iterdir():
            if (found := re.search(r"^Pid:\t(\d+)$", entry.read_text(), re.MULTILINE)) is not None:
                return int(found[1])
    return process


@contextmanager
def _serving(name: str, socket: Path, *, quick_python: Path) -> Iterator[None]:
    server = Child(
        ChildSpec(
            name=f"forked {name}",
            command=[sys.executable, "-P", str(_SERVER), name, str(socket), str(quick_python)],
            environment={**os.environ, "PYTHONPATH": str(ROOT)},
            log_path=socket.with_suffix(".log"),
            is_ready=socket.exists,
            ready_seconds=_READY_SECONDS,
        )
    )
    server.start()
    try:
        server.wait_until_ready()
        yield
    finally:
        server.stop()
