"""Postgres that counts its statements, Valkey, a dispatcher and control workers, as `tokenmill up` starts them.

Nothing else runs: no API, and no worker that would answer the lines.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Engine

from jobs import served_models
from jobs.database import connect, sessions, transaction, upgrade
from lab.chaos.stack import MODEL, MODEL_FOLDER, Launcher, Process
from lab.dashboard.stack import start_counting

_CONNECTIONS = 2
"""Our own: one to look at the runs' progress, and one for Postgres' counters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulesStack:
    """The running processes, and access to their rows."""

    processes: Mapping[str, Process]
    """By role."""
    engine: Engine
    folder: Path
    """A place for the tenants' stores."""


@contextmanager
def running_stack(make_launcher: Callable[[Path], Launcher], *, num_control: int) -> Iterator[SchedulesStack]:
    """Start everything in a temporary folder, on an empty database; stop it at the end."""
    folder = Path(tempfile.mkdtemp(prefix="tm-schedules-"))
    folder.chmod(0o755)  # as root, Postgres runs as another user
    launcher = make_launcher(folder)
    postgres, valkey = launcher.postgres(), launcher.valkey()
    database_url = f"postgresql://tokenmill@/tokenmill?host={postgres.socket.parent}"
    environment = {
        "TOKENMILL_DATABASE_URL": database_url,
        "TOKENMILL_STORAGE_URL": f"file://{folder}/objects",
        "TOKENMILL_REDIS_URL": f"redis+socket://{valkey.socket}",
    }
    roles = {
        "dispatch": launcher.role("dispatch", log="dispatch", environment=environment),
        **{
            f"control-{number}": launcher.role("control", log=f"control-{number}", environment=environment)
            for number in range(num_control)
        },
    }
    with ExitStack() as closing:
        closing.callback(shutil.rmtree, folder, ignore_errors=True)
        closing.callback(postgres.process.stop)
        start_counting(postgres)
        closing.callback(valkey.process.stop)
        valkey.process.start()
        valkey.process.wait_until_ready()
        upgrade(database_url)
        engine = connect(database_url, connections=_CONNECTIONS)
        closing.callback(engine.dispose)
        with transaction(sessions(engine)) as session:
            served_models.put_model(session, MODEL, str(MODEL_FOLDER), is_checked=True)
        for role in roles.values():
            closing.callback(role.stop)
            role.start()
        for role in roles.values():
            role.wait_until_ready()
        processes = {"postgres": postgres.process, "valkey": valkey.process, **roles}
        yield SchedulesStack(processes=processes, engine=engine, folder=folder)
