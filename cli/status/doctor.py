"""`tokenmill doctor`: looks at everything that a service needs, and says what is wrong and what to do.

Each check stands alone: what one of them finds never keeps the others from being made.
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
    WARNING = "warning"  # it works, and may stop to
    PROBLEM = "problem"  # something does not work now


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a check found; `advice` says what to do, and is empty where all is well."""

    check: str
    verdict: Verdict
    said: str
    advice: str = ""


def examine(settings: Settings) -> Iterator[Finding]:
    """Yield what is found, one check after the other."""
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
    "A crafted document may do more than it should: read them as a user, or in a container, that owns nothing else. "
    "With TOKENMILL_READER_ISOLATION=required no prepare worker starts so."
)


def _versions(_: Settings) -> Iterator[Finding]:
    found = {name: _version(name) for name in ("tokenmill", "torch", "transformers", "triton", "celery", "sqlalchemy")}
    listed = ", ".join(f"{name} {number}" for name, number in found.items() if number is not None)
    yield Finding(check="versions", verdict=Verdict.OK, said=f"Python {platform.python_version()}, {listed}")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:  # the light client has none of the engine's
        return None


def _database(settings: Settings) -> Iterator[Finding]:
    engine = connect(settings.database_url)
    try:
        found = look(engine)
    finally:
        engine.dispose()
    said = f"PostgreSQL {found.version}, {found.num_connections} of {found.max_connections} connections"
    if found.num_connections > _BUSY_CONNECTIONS * found.max_connections:
        advice = "Raise max_connections, or put PgBouncer before it: roles that get none answer 503."
        yield Finding(check="database", verdict=Verdict.WARNING, said=said, advice=advice)
    else:
        yield Finding(check="database", verdict=Verdict.OK, said=said)
    yield _login(found)
    yield _schema(found)
    yield _clock(found)
    if found.revision is not None:
        yield _workers(found)
        if found.do_documents_wait:
            yield _documents()


def _schema(found: DatabaseLook) -> Finding:
    own = head_revision()
    if found.revision == own:
        return Finding(check="schema", verdict=Verdict.OK, said=f"revision {own}")
    if found.runs_this_code:
        said = f"revision {found.revision}, newer than this version's {own}, which runs on it"
        return Finding(check="schema", verdict=Verdict.OK, said=said)
    said = f"revision {found.revision or 'none'}, and this version needs {own}"
    is_newer = found.revision is not None and found.revision > own
    advice = "Upgrade this installation." if is_newer else "Run `tokenmill db upgrade`."
    return Finding(check="schema", verdict=Verdict.PROBLEM, said=said, advice=advice)


def _login(found: DatabaseLook) -> Finding:
    standing = found.standing
    if standing.is_plain:
        return Finding(check="login", verdict=Verdict.OK, said=f"{standing.login} owns nothing")
    kind = "is a superuser: it may run programs on the server" if standing.is_superuser else "owns the tables"
    first = "" if standing.are_roles_there else "Run `tokenmill db upgrade` as who may make roles, then "
    advice = f"{first}give services tokenmill_service in TOKENMILL_DATABASE_URL: docs/database_roles.md."
    said = f"{standing.login} {kind}, and may change the admin log"
    return Finding(check="login", verdict=Verdict.WARNING, said=said, advice=advice[0].upper() + advice[1:])


def _clock(found: DatabaseLook) -> Finding:
    said = f"{abs(found.clock_seconds):.1f} s {'before' if found.clock_seconds > 0 else 'behind'} the database's"
    if abs(found.clock_seconds) < _CLOCK_SECONDS:
        return Finding(check="clock", verdict=Verdict.OK, said=said)
    advice = "Let NTP set both: leases follow the database's clock, but S3 refuses signatures of a wrong one."
    return Finding(check="clock", verdict=Verdict.WARNING, said=said, advice=advice)


def _workers(found: DatabaseLook) -> Finding:
    served = f"live workers serve {', '.join(found.served_models) or 'nothing'}"
    if not found.unserved_models:
        return Finding(check="workers", verdict=Verdict.OK, said=served)
    wanted = ", ".join(found.unserved_models)
    commands = ", ".join(f"`tokenmill worker --model {name}`" for name in found.unserved_models)
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
        advice = "Start it, or set TOKENMILL_REDIS_URL. Workers claim by themselves meanwhile, and no rate is limited."
        yield Finding(check="broker", verdict=Verdict.PROBLEM, said=f"{where} does not answer ({error})", advice=advice)
        return
    number = info.get("valkey_version") or info["redis_version"]
    kind = "Valkey" if "valkey_version" in info else "Redis"
    yield Finding(check="broker", verdict=Verdict.OK, said=f"{kind} {number} at {where}")


def _store(settings: Settings) -> Iterator[Finding]:
    folder, advice = _local_folder(settings), "Mount it, or set TOKENMILL_STORAGE_URL, if it is wrong."
    if folder is not None and not folder.exists():
        said = f"{folder} is not there: it is not mounted, or the first start is to make it"
        yield Finding(check="store", verdict=Verdict.WARNING, said=said, advice=advice)
        return
    storage = Storage.of(settings, is_marked=False)  # the database, which knows the marker, may be away
    storage.check(below=prepared.PREFIX if _is_of_prepare(settings) else "")
    if storage.access.read_marker() is None:
        said = f"{settings.storage_url} carries no marker: it is not mounted, or the first start is to write it"
        yield Finding(check="store", verdict=Verdict.WARNING, said=said, advice=advice)
    else:
        yield Finding(check="store", verdict=Verdict.OK, said=f"{settings.storage_url} takes an object and deletes it")


def _is_of_prepare(settings: Settings) -> bool:
    """Tell whether the settings are those of a prepare worker, who may write what it prepares alone."""
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
        advice = "Make room: on a full disk uploads are refused and Postgres stops."
        yield Finding(check="disk", verdict=Verdict.WARNING, said=said, advice=advice)


def _local_folder(settings: Settings) -> Path | None:
    url = urlsplit(settings.storage_url)
    return Path(unquote(url.path)) if url.scheme == "file" else None


def _readers(settings: Settings) -> Iterator[Finding]:

    try:
        found = Isolation.probe()
    except ExtractionError as error:
        yield Finding(check="readers", verdict=Verdict.PROBLEM, said=str(error), advice=_READERS_ADVICE)
        return
    said = f"confined by {found.present}"
    if not found.missing:
        yield Finding(check="readers", verdict=Verdict.OK, said=said)
    elif found.is_sufficient:
        yield Finding(check="readers", verdict=Verdict.OK, said=f"{said}; without {found.lacks}")
    else:
        is_required = settings.reader_isolation == "required"
        verdict = Verdict.PROBLEM if is_required else Verdict.WARNING
        yield Finding(check="readers", verdict=verdict, said=f"{said}; without {found.lacks}", advice=_READERS_ADVICE)


def _device(_: Settings) -> Iterator[Finding]:
    if _version("torch") is None:
        return
    import torch

    has_driver = shutil.which("nvidia-smi") is not None
    if torch.cuda.is_available():
        names = ", ".join(torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count()))
        yield Finding(check="device", verdict=Verdict.OK, said=f"{names}, CUDA {torch.version.cuda}")
    elif has_driver:
        advice = "Install the CUDA build: TOKENMILL_TORCH=cuda bash scripts/setup; or see what `nvidia-smi` says."
        said = f"there is nvidia-smi, but PyTorch {torch.__version__} sees no GPU"
        yield Finding(check="device", verdict=Verdict.PROBLEM, said=said, advice=advice)
    else:
        said = f"no GPU; {os.cpu_count()} CPU cores, {torch.get_num_threads()} threads"
        yield Finding(check="device", verdict=Verdict.OK, said=said)
