"""`tokenmill doctor`: checks all that a service needs, and says what is wrong and how to fix it.

The checks are independent: a failed one does not stop the others.
"""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from urllib.parse import unquote, urlsplit

from redis import Redis
from redis.exceptions import RedisError

from features.documents.extraction.documents.process.isolation import Isolation
from features.documents.extraction.errors import ExtractionError
from features.documents.settings import DocumentSettings
from jobs.access import PREPARE
from jobs.database import connect, head_revision
from jobs.errors import TokenmillError
from jobs.overview.diagnosis import DatabaseLook, look
from jobs.settings import Settings
from jobs.storage import Storage, prepared

_CLOCK_SECONDS = 5.0
"""S3 refuses requests of clocks that differ by 15 minutes; logs of several machines are hard to read long before."""
_FREE_BYTES = 5 * 1024**3
_FREE_PART = 0.05
_BUSY_CONNECTIONS = 0.9
_WAIT = 3.0


class Verdict(StrEnum):
    """How a check ended."""

    OK = "ok"
    WARNING = "warning"  # it works, but may stop working
    PROBLEM = "problem"  # something does not work now


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of a check; `advice` says what to do, and is empty if all is well."""

    check: str
    verdict: Verdict
    said: str
    advice: str = ""


def examine(settings: Settings) -> Iterator[Finding]:
    """Yield the findings of all checks, in order."""
    checks: tuple[tuple[str, Callable[[Settings], Iterator[Finding]]], ...] = (
        ("versions", _versions),
        ("database", _database),
        ("broker", _broker),
        ("store", _store),
        ("disk", _disk),
        ("readers", _readers),
        ("device", _device),
    )
    for name, check in checks:
        try:
            yield from check(settings)
        except TokenmillError as error:
            yield Finding(check=name, verdict=Verdict.PROBLEM, said=error.message, advice=_ADVICE[name])


_ADVICE = {
    "database": "Nothing works without it: the API answers 503, and workers wait.",
    "store": "Uploads are refused and batches wait until it answers; no line is lost.",
}


_READERS_ADVICE = (
    "A crafted document may do more than it should: run prepare workers as a user, or in a container, that owns "
    "nothing else."
)


def _versions(_: Settings) -> Iterator[Finding]:
    versions = {
        name: _version(name) for name in ("tokenmill", "torch", "transformers", "triton", "celery", "sqlalchemy")
    }
    listed = ", ".join(f"{name} {number}" for name, number in versions.items() if number is not None)
    yield Finding(check="versions", verdict=Verdict.OK, said=f"Python {platform.python_version()}, {listed}")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:  # the light client has no engine
        return None


def _database(settings: Settings) -> Iterator[Finding]:
    engine = connect(settings.database_url)
    try:
        database = look(engine)
    finally:
        engine.dispose()
    said = f"PostgreSQL {database.version}, {database.num_connections} of {database.max_connections} connections"
    if database.num_connections > _BUSY_CONNECTIONS * database.max_connections:
        advice = "Raise max_connections, or put PgBouncer in front: roles without a connection answer 503."
        yield Finding(check="database", verdict=Verdict.WARNING, said=said, advice=advice)
    else:
        yield Finding(check="database", verdict=Verdict.OK, said=said)
    yield _login(database)
    yield _schema(database)
    yield _clock(database)
    if database.revision is not None:
        yield _workers(database)
        if database.do_documents_wait:
            yield _documents()


def _schema(database: DatabaseLook) -> Finding:
    own = head_revision()
    if database.revision == own:
        return Finding(check="schema", verdict=Verdict.OK, said=f"revision {own}")
    if database.runs_this_code:
        said = f"revision {database.revision}, newer than {own} of this version, which can run on it"
        return Finding(check="schema", verdict=Verdict.OK, said=said)
    said = f"revision {database.revision or 'none'}, and this version needs {own}"
    is_newer = database.revision is not None and database.revision > own
    advice = "Upgrade this installation." if is_newer else "Run `tokenmill db upgrade`."
    return Finding(check="schema", verdict=Verdict.PROBLEM, said=said, advice=advice)


def _login(database: DatabaseLook) -> Finding:
    standing = database.standing
    if standing.is_plain:
        return Finding(check="login", verdict=Verdict.OK, said=f"{standing.login} owns nothing")
    kind = "is a superuser: it may run programs on the server" if standing.is_superuser else "owns the tables"
    first = "" if standing.are_roles_there else "Run `tokenmill db upgrade` as a role that may create roles, then "
    advice = f"{first}give services tokenmill_service in TOKENMILL_DATABASE_URL: docs/database_roles.md."
    said = f"{standing.login} {kind}, and may change the admin log"
    return Finding(check="login", verdict=Verdict.WARNING, said=said, advice=advice[0].upper() + advice[1:])


def _clock(database: DatabaseLook) -> Finding:
    said = f"{abs(database.clock_seconds):.1f} s {'before' if database.clock_seconds > 0 else 'behind'} the database's"
    if abs(database.clock_seconds) < _CLOCK_SECONDS:
        return Finding(check="clock", verdict=Verdict.OK, said=said)
    advice = "Set both by NTP: leases use the database's clock, but S3 refuses requests signed with a wrong one."
    return Finding(check="clock", verdict=Verdict.WARNING, said=said, advice=advice)


def _workers(database: DatabaseLook) -> Finding:
    served = f"live workers serve {', '.join(database.served_models) or 'nothing'}"
    if not database.unserved_models:
        return Finding(check="workers", verdict=Verdict.OK, said=served)
    wanted = ", ".join(database.unserved_models)
    commands = ", ".join(f"`tokenmill worker --model {name}`" for name in database.unserved_models)
    advice = f"Start one for each: {commands}."
    return Finding(
        check="workers", verdict=Verdict.WARNING, said=f"open batches wait for {wanted}; {served}", advice=advice
    )


def _documents() -> Finding:
    said = "open batches wait for documents, and no live worker prepares them"
    return Finding(check="documents", verdict=Verdict.WARNING, said=said, advice="Start one: `tokenmill prepare`.")


def _broker(settings: Settings) -> Iterator[Finding]:
    where = settings.redis_url.rpartition("@")[2]  # without a password
    try:
        with Redis.from_url(settings.redis_client_url, socket_timeout=_WAIT, socket_connect_timeout=_WAIT) as client:
            info = client.info("server")
    except (RedisError, ValueError) as error:
        advice = "Start it, or set TOKENMILL_REDIS_URL. Until then workers claim without hints, and no rate is limited."
        yield Finding(check="broker", verdict=Verdict.PROBLEM, said=f"{where} does not answer ({error})", advice=advice)
        return
    number = info.get("valkey_version") or info["redis_version"]
    kind = "Valkey" if "valkey_version" in info else "Redis"
    yield Finding(check="broker", verdict=Verdict.OK, said=f"{kind} {number} at {where}")


def _store(settings: Settings) -> Iterator[Finding]:
    folder, advice = _local_folder(settings), "Mount it, or correct TOKENMILL_STORAGE_URL."
    if folder is not None and not folder.exists():
        said = f"{folder} does not exist: it is not mounted, or the first start will create it"
        yield Finding(check="store", verdict=Verdict.WARNING, said=said, advice=advice)
        return
    storage = Storage.of(settings, is_marked=False)  # the marker's id is in the database, which may be away
    storage.check(below=prepared.PREFIX if _is_of_prepare(settings) else "")
    if storage.access.read_marker() is None:
        said = f"{settings.storage_url} has no marker: it is not mounted, or the first start will write it"
        yield Finding(check="store", verdict=Verdict.WARNING, said=said, advice=advice)
    else:
        yield Finding(check="store", verdict=Verdict.OK, said=f"{settings.storage_url} stores and deletes an object")


def _is_of_prepare(settings: Settings) -> bool:
    """Return whether the settings are those of a prepare worker, which may write only below its own prefix."""
    return urlsplit(settings.database_url).username == PREPARE


def _disk(settings: Settings) -> Iterator[Finding]:
    folder = _local_folder(settings)
    if folder is None or not folder.exists():
        return
    usage = shutil.disk_usage(folder)
    said = f"{usage.free / 1024**3:,.1f} GiB free of {usage.total / 1024**3:,.1f} at {folder}"
    if usage.free > max(_FREE_BYTES, _FREE_PART * usage.total):
        yield Finding(check="disk", verdict=Verdict.OK, said=said)
    else:
        advice = "Free space: on a full disk uploads are refused and Postgres stops."
        yield Finding(check="disk", verdict=Verdict.WARNING, said=said, advice=advice)


def _local_folder(settings: Settings) -> Path | None:
    url = urlsplit(settings.storage_url)
    return Path(unquote(url.path)) if url.scheme == "file" else None


def _readers(settings: Settings) -> Iterator[Finding]:
    try:
        isolation = Isolation.probe()
    except ExtractionError as error:
        yield Finding(check="readers", verdict=Verdict.PROBLEM, said=str(error), advice=_READERS_ADVICE)
        return
    said = f"confined by {isolation.present}"
    if not isolation.missing:
        yield Finding(check="readers", verdict=Verdict.OK, said=said)
        return
    said = f"{said}; without {isolation.lacks}"
    if settings.of(DocumentSettings).reader_isolation == "required":
        advice = f"No prepare worker starts like this, as TOKENMILL_READER_ISOLATION is required. {isolation.remedy}"
        yield Finding(check="readers", verdict=Verdict.PROBLEM, said=said, advice=advice)
    elif isolation.has_gap:
        yield Finding(
            check="readers", verdict=Verdict.WARNING, said=said, advice=f"{_READERS_ADVICE} {isolation.remedy}"
        )
    else:
        yield Finding(check="readers", verdict=Verdict.OK, said=said)


def _device(_: Settings) -> Iterator[Finding]:
    if _version("torch") is None:
        return
    import torch

    has_driver = shutil.which("nvidia-smi") is not None
    if torch.cuda.is_available():
        names = ", ".join(torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count()))
        yield Finding(check="device", verdict=Verdict.OK, said=f"{names}, CUDA {torch.version.cuda}")
    elif has_driver:
        advice = "Install the CUDA build: TOKENMILL_TORCH=cuda bash scripts/setup; or check `nvidia-smi`."
        said = f"nvidia-smi is installed, but PyTorch {torch.__version__} sees no GPU"
        yield Finding(check="device", verdict=Verdict.PROBLEM, said=said, advice=advice)
    else:
        said = f"no GPU; {os.cpu_count()} CPU cores, {torch.get_num_threads()} threads"
        yield Finding(check="device", verdict=Verdict.OK, said=said)
