"""The system under test: embedded servers behind proxies, and every role as a process that is restarted."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import psutil
import psycopg

from jobs import served_models
from jobs.accounts import keys, tenants
from jobs.database import connect, sessions, transaction, upgrade
from jobs.errors import ServiceError
from jobs.states import AskedPriority
from lab import no_compute
from lab.chaos.proxy import Proxy
from lab.own_stack import free_port
from lab.s3_server import S3Server

MODEL, EMBEDDER = "echo", "embedder"
MODEL_FOLDER = Path(__file__).resolve().parents[2] / "examples" / "demo_model"
TENANTS = ("unlimited", "limited")
_EACH = 2
"""Control workers, dispatchers and prepare workers, as in a redundant deployment."""
_PAUSE_SECONDS = 0.3
_STEP_SECONDS, _TOKENS_A_STEP = 0.05, 4
"""Of an engine: a line takes about a fifth of a second, so that faults hit lines in progress."""
_SERVER, _SERVER_SECONDS = "server", 0.2
"""A server of somebody else: its name, and how long an answer takes."""
_ANSWER_SECONDS, _REAL_ANSWER_SECONDS = 6.0, 90.0
"""How long workers wait for an answer: less than the server hangs, or as long as a real one needs on a busy machine."""
_AMPLE_TOKENS = 10**12
"""A limit that no run reaches: lines of a tenant with a limit are covered by its budget before they run."""


class Process(Protocol):
    """A process that dies with this one, as `cli.embedded.child.Child`."""

    @property
    def pid(self) -> int | None: ...
    @property
    def is_running(self) -> bool: ...
    def start(self) -> None: ...
    def wait_until_ready(self) -> None: ...
    def send(self, signal_: signal.Signals) -> None: ...
    def stop(self) -> None: ...
    def kill(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server of the embedded stack that listens on a unix socket."""

    process: Process
    socket: Path
    folder: Path


class Launcher(Protocol):
    """Plans processes whose files lie in one folder; starts none."""

    def postgres(self) -> Server: ...
    def valkey(self) -> Server: ...
    def role(self, name: str, *arguments: str, log: str, environment: Mapping[str, str]) -> Process: ...
    def server(self, module: str, *arguments: str, log: str, environment: Mapping[str, str]) -> Server: ...


@dataclass(slots=True, eq=False)
class Kept:
    """A process that is restarted when it has died, unless it is held down."""

    name: str
    process: Process
    start_at: float | None = None
    is_down: bool = False

    def tend(self, now: float) -> None:
        """Restart the process if that is due."""
        if self.process.is_running or self.is_down:
            return
        if self.start_at is None:
            self.start_at = now + _PAUSE_SECONDS
        elif now >= self.start_at:
            self.start_at = None
            with suppress(ServiceError):  # an old server that has not ended yet: retried
                self.process.start()


@dataclass(slots=True, kw_only=True, eq=False)
class Stack:
    """The running system. The thread that started it must call `tend` continuously."""

    postgres: Kept
    valkey: Kept
    valkey_folder: Path
    roles: Mapping[str, Kept]
    workers: Sequence[Kept]
    proxies: Mapping[str, Proxy]
    s3: S3Server
    database_url: str
    """Bypasses the proxy."""
    base_url: str
    keys: Sequence[str] = ()
    """Of `TENANTS`; the second one has a limit."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Of its roles."""
    model_folder: Path = MODEL_FOLDER
    """With the tokenizer of its model."""
    server: Kept | None = None
    """Answers the lines, where workers have no engine of their own."""

    def tend(self) -> None:
        """Restart dead processes."""
        now = time.monotonic()
        servers = () if self.server is None else (self.server,)
        for kept in (self.postgres, self.valkey, *servers, *self.roles.values(), *self.workers):
            kept.tend(now)

    def query(self, sql: str, *values: object) -> list[Any]:
        """Return rows. Raises psycopg.Error while Postgres is down."""
        with psycopg.connect(self.database_url, autocommit=True, connect_timeout=2) as connection:
            cursor = connection.execute(sql, values)
            return [] if cursor.description is None else cursor.fetchall()

    def engine_of(self, worker: Kept) -> psutil.Process | None:
        """Return a worker's engine process, or None if it has none now."""
        with suppress(psutil.Error):
            for child in children_of(worker.process.pid):
                if "engine.process.child" in child.cmdline():
                    return child
        return None


def children_of(pid: int | None) -> list[psutil.Process]:
    """Return the children of all of a process's threads; psutil would scan every process of the machine."""
    processes = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError, psutil.Error):  # it has ended meanwhile
            processes += [psutil.Process(int(child)) for child in children.read_text().split()]
    return processes


@dataclass(frozen=True, slots=True, kw_only=True)
class StackPlan:
    """Which processes a stack has."""

    num_workers: int
    num_seats: int
    computes: bool
    """Whether workers have their own engine, with the demo model."""
    has_server: bool = False
    """Whether workers ask one server in place of an engine of their own."""
    server_command: tuple[str, ...] = ()
    """Of a real server; else it is one that computes nothing."""
    model_folder: Path = MODEL_FOLDER
    embedder: Path | None = None
    """Folder of an embedding model; with it there are also prepare workers, and prompts may state their answers."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Further variables of the roles, apart from workers."""


@contextmanager
def running_stack(launcher: Launcher, s3: S3Server, plan: StackPlan) -> Iterator[Stack]:
    """Start everything, wait until it is ready, and finally stop it."""
    with ExitStack() as closing:
        postgres, valkey = launcher.postgres(), launcher.valkey()
        servers = {"postgres": postgres, "valkey": valkey}
        if plan.has_server:
            servers[_SERVER] = _server(launcher, plan)
        for server in servers.values():
            server.process.start()
            closing.callback(server.process.stop)
            server.process.wait_until_ready()
        proxies = {name: Proxy(server.socket) for name, server in servers.items()}
        for proxy in proxies.values():
            closing.callback(proxy.close)
        database_url = f"postgresql://tokenmill@/tokenmill?host={postgres.socket.parent}"
        port = free_port()
        environment = {
            **s3.environment,
            "TOKENMILL_STORAGE_URL": s3.url,
            "TOKENMILL_DATABASE_URL": f"postgresql://tokenmill@127.0.0.1:{proxies['postgres'].port}/tokenmill",
            "TOKENMILL_REDIS_URL": f"redis://127.0.0.1:{proxies['valkey'].port}/0",
            "TOKENMILL_WEBHOOK_NETWORKS": "127.0.0.1/32",
        }
        secrets = _prepare_database(database_url, plan)
        roles = {
            log: launcher.role(name, *arguments, log=log, environment={**environment, **plan.variables})
            for log, name, arguments in _roles(plan, port)
        }
        engine = {} if plan.computes or plan.has_server else _no_compute(plan)
        remote = _server_options(proxies[_SERVER].port, plan) if plan.has_server else ()
        workers = [
            launcher.role(
                *("worker", "--model", MODEL, *remote),
                log=f"worker-{number}",
                environment={**environment, **engine},
            )
            for number in range(plan.num_workers)
        ]
        for process in (*roles.values(), *workers):
            process.start()
            closing.callback(process.kill)
        for process in (*roles.values(), *workers):
            process.wait_until_ready()
        yield Stack(
            postgres=Kept("postgres", postgres.process),
            valkey=Kept("valkey", valkey.process),
            valkey_folder=valkey.folder,
            roles={name: Kept(name, process) for name, process in roles.items()},
            workers=[Kept(f"worker-{number}", process) for number, process in enumerate(workers)],
            proxies=proxies,
            s3=s3,
            database_url=database_url,
            base_url=f"http://127.0.0.1:{port}",
            keys=secrets,
            environment=environment,
            model_folder=plan.model_folder,
            server=Kept(_SERVER, servers[_SERVER].process) if plan.has_server else None,
        )


def _server(launcher: Launcher, plan: StackPlan) -> Server:
    """Plan the server: a real one, or one that computes nothing."""
    if plan.server_command:
        return launcher.server("lab.chaos.real_server", *plan.server_command, log=_SERVER, environment={})
    seconds = {no_compute.SERVER_SECONDS: str(_SERVER_SECONDS)}
    return launcher.server("lab.no_compute.server", str(MODEL_FOLDER), log=_SERVER, environment=seconds)


def _server_options(port: int, plan: StackPlan) -> Sequence[str]:
    """Return the options of workers that ask the server, through its proxy."""
    url, folder = f"http://127.0.0.1:{port}/v1", str(plan.model_folder)
    seconds = _REAL_ANSWER_SECONDS if plan.server_command else _ANSWER_SECONDS
    patience = ("--answer-seconds", f"{seconds:g}", "--max-concurrency", str(plan.num_seats))
    return ("--engine", "openai", "--url", url, "--tokenizer", folder, *patience)


def _roles(plan: StackPlan, port: int) -> Iterator[tuple[str, str, Sequence[str]]]:
    """Yield the log, the command and its arguments of each process that is no worker of the model."""
    yield "api", "api", ("--port", str(port))
    names = ("control", "dispatch") if plan.embedder is None else ("control", "dispatch", "prepare")
    for number in range(_EACH):
        for name in names:
            yield f"{name}-{number}", name, ()
    if plan.embedder is not None:
        yield EMBEDDER, "worker", ("--model", EMBEDDER)


def _no_compute(plan: StackPlan) -> Mapping[str, str]:
    return no_compute.environment(
        step_seconds=_STEP_SECONDS,
        tokens_a_step=_TOKENS_A_STEP,
        num_seats=plan.num_seats,
        is_stated=plan.embedder is not None,
    )


def _prepare_database(database_url: str, plan: StackPlan) -> list[str]:
    """Create the schema, the models and two tenants; return their keys."""
    with psycopg.connect(database_url.replace("/tokenmill?", "/postgres?"), autocommit=True) as connection:
        connection.execute("CREATE DATABASE tokenmill")
    upgrade(database_url)
    engine = connect(database_url)
    try:
        with transaction(sessions(engine)) as session:
            served_models.put_model(session, MODEL, str(plan.model_folder))
            if plan.embedder is not None:
                served_models.put_model(session, EMBEDDER, str(plan.embedder))
            secrets = []
            for name, limit_tokens in zip(TENANTS, (None, _AMPLE_TOKENS), strict=True):
                tenant = tenants.create_tenant(
                    session, name, limit_tokens=limit_tokens, best_priority=AskedPriority.URGENT
                )
                secrets.append(keys.create_key(session, tenant.id)[1])
        return secrets
    finally:
        engine.dispose()
