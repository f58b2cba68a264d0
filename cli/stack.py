"""The embedded stack: all roles and both servers on this machine, under one supervisor."""

from __future__ import annotations

import errno
import os
import signal
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cli.data_dir import DataDir, locked, write_secret
from cli.embedded.child import ChildSpec
from cli.embedded.demand import documents_wait
from cli.embedded.note import StackNote, forget_note, write_note
from cli.embedded.servers import URLS, Servers, chosen_environment, plan_servers
from cli.models.model_server import ModelServer
from cli.served_model import ServedModel
from cli.supervisor import Supervisor
from jobs.access import arrange
from jobs.database import connect, sessions, transaction, upgrade
from jobs.errors import AuthenticationError, InputError, NotFoundError
from jobs.states import AskedPriority
from tokenmill.processes import command_of

FIRST_TENANT = "default"
_MODEL_READY_SECONDS = 3600.0  # a large model is loaded, or fetched from the hub first
_WORKER_STOP_MARGIN_SECONDS = 10.0
_PROBE_SECONDS = 2.0
_FIRST_WORKER_PORT = 2
"""Offset of the first worker's metrics port, after those of control and dispatch."""
_HIGHEST_PORT = 65_535
_HOSTS = "Give 127.0.0.1 for this machine alone, 0.0.0.0 for all its networks, or the address of one."


@dataclass(frozen=True, slots=True, kw_only=True)
class StackOptions:
    data_dir: Path
    model: ServedModel
    host: str = "127.0.0.1"
    port: int
    num_workers: int = 1
    chat_template: Path | None = None  # a file with a template instead of the model's own
    dtype: str = "auto"  # of the worker's engine
    server: ModelServer | None = None  # what answers instead of our engine
    suggested_sampling: bool = False  # whether lines sample as generation_config.json says where they do not
    max_deaths: int | None = None  # of one child in a row; None: restart it forever
    environment: Mapping[str, str] = field(default_factory=dict)  # TOKENMILL_* defaults; the user's own variables win
    external_servers: bool = False  # use the servers that the environment names, and start only the others
    is_of_command: bool = False  # it ends with a command, which must not change the model that others wait for


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningStack:
    """`environment` has the URLs that other roles on this machine need."""

    base_url: str
    api_key: str
    is_key_new: bool
    """Whether this start created the key."""
    environment: Mapping[str, str]
    supervisor: Supervisor


@contextmanager
def running_stack(
    options: StackOptions, *, say: Callable[[str], None], say_step: Callable[[str], None] | None = None
) -> Iterator[RunningStack]:
    """Start everything, yield when all is ready, stop everything.

    `say` gets problems, and the steps of a normal start unless `say_step` is given. The supervisor handles signals from
    here on. Raises TokenmillError if something is missing or does not start, StopRequestedError if a signal ends the
    start.
    """
    from jobs.settings import load_settings

    require_free_port(options.host, options.port)
    settings = load_settings()  # a wrong variable fails here once, not in every role
    _require_metrics_ports(settings.metrics_port, num_workers=options.num_workers)
    say_step = say_step or say
    supervisor = Supervisor(say=say, max_deaths=options.max_deaths)
    with locked(options.data_dir) as data_dir, supervisor.handles_signals():
        try:
            chosen = chosen_environment(data_dir, options.environment, is_external=options.external_servers, say=say)
            servers = plan_servers(data_dir, chosen)
            environment = servers.environment
            # Roles load their modules, and the engine its model, while the database is prepared: each takes seconds.
            data_dir.database_ready.unlink(missing_ok=True)
            supervisor.begin(_role_specs(options, data_dir, environment))
            if servers.postgres is not None:
                say_step("starting Postgres")
            servers.start(supervisor)
            _make_schema(servers, say=say)
            write_secret(data_dir.database_url, environment["TOKENMILL_DATABASE_URL"])
            write_secret(data_dir.owner_url, servers.owner_url)
            known_key = _known_key(data_dir)
            api_key = _prepare_database(
                environment["TOKENMILL_DATABASE_URL"],
                data_dir,
                options.model,
                is_ours=servers.postgres is not None,
                may_move=not options.is_of_command,
            )
            what = "the API and the worker" if options.num_workers else "the API"
            say_step(f"starting {what} for {options.model.path}")
            data_dir.database_ready.touch()
            supervisor.finish()
            stack = RunningStack(
                base_url=f"http://{_shown_host(options.host)}:{options.port}/v1",
                api_key=api_key,
                is_key_new=api_key != known_key,
                environment={name: environment[name] for name in URLS if name in environment},
                supervisor=supervisor,
            )
            write_note(data_dir, _note_of(stack, options))
            with documents_wait(environment["TOKENMILL_DATABASE_URL"]) as is_needed:
                supervisor.start_once(_prepare_spec(options, data_dir, environment), is_needed)
                yield stack
        finally:
            forget_note(data_dir)
            for file in (data_dir.database_url, data_dir.owner_url):
                file.unlink(missing_ok=True)
            supervisor.stop()


def _note_of(stack: RunningStack, options: StackOptions) -> StackNote:
    return StackNote(
        pid=os.getpid(),
        started_at=time.time(),
        base_url=stack.base_url,
        environment=stack.environment,
        roles=[child.spec.name for child in stack.supervisor.children],
        is_of_command=options.is_of_command,
    )


def require_free_port(host: str, port: int) -> None:
    """Raise InputError if `host`:`port` cannot be bound."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.create_server((host, port), family=family):
            pass
    except OSError as error:
        if error.errno is not None and (error.errno < 0 or error.errno == errno.EADDRNOTAVAIL):
            raise InputError(f"--host is {host!r}, which is no address of this machine. {_HOSTS}") from None
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise InputError(
            f"cannot listen on {host}:{port} ({reason}). "
            "Stop the process that uses it, or choose another port with --port."
        ) from None


def _make_schema(servers: Servers, *, say: Callable[[str], None]) -> None:
    """Upgrade the schema and the database's roles; report why roles cannot be created."""
    upgrade(servers.owner_url)
    logins = [url for name, url in servers.environment.items() if name in URLS and url.startswith("postgres")]
    refusal = arrange(servers.owner_url, logins=logins)
    if refusal is not None:
        say(refusal)


def _prepare_database(
    database_url: str, data_dir: DataDir, model: ServedModel, *, is_ours: bool, may_move: bool = True
) -> str:
    """Register the model, and return a working key of the first tenant.

    In our own database, leases of workers that died with the last stack are returned at once. Unless it `may_move`,
    raises ConflictError where batches wait for a model of this name with another path.
    """
    from features.administration import keys, tenants
    from jobs import served_models
    from jobs.accounts.keys import authenticate
    from jobs.accounts.tenants import find_tenant
    from jobs.admin_log import Actor, Admin
    from jobs.batches import lost_leases

    engine = connect(database_url)
    try:
        with transaction(sessions(engine)) as session:
            if is_ours:
                lost_leases.return_leases(session)
            if not may_move:
                served_models.require_path(session, model.name, model.path)
            served_models.put_model(session, model.name, model.path)
            admin = Admin(session=session, actor=Actor.of_process())
            try:
                tenant = find_tenant(session, FIRST_TENANT)
            except NotFoundError:
                tenant = tenants.create(admin, FIRST_TENANT, best_priority=AskedPriority.URGENT)
            secret = _known_key(data_dir)
            if secret is None or not _opens(secret, lambda key: authenticate(session, key).owner().id == tenant.id):
                _, secret = keys.create(admin, tenant.id)
                write_secret(data_dir.key_file, secret)
        return secret
    finally:
        engine.dispose()


def _known_key(data_dir: DataDir) -> str | None:
    return data_dir.key_file.read_text().strip() if data_dir.key_file.exists() else None


def _opens(secret: str, check: Callable[[str], bool]) -> bool:

    try:
        return check(secret)
    except AuthenticationError:
        return False


def _role_specs(options: StackOptions, data_dir: DataDir, environment: Mapping[str, str]) -> list[ChildSpec]:
    api_address = ("--host", options.host, "--port", str(options.port))
    specs = [
        _role("api", data_dir, environment, arguments=api_address, is_ready=lambda: _answers(options)),
        _role("control", data_dir, environment),
        _role("dispatch", data_dir, _with_metrics_port(environment, 1)),
    ]
    for number in range(options.num_workers):
        suffix = "" if options.num_workers == 1 else f"-{number}"
        specs.append(
            _role(
                "worker",
                data_dir,
                _with_gpu(_with_metrics_port(environment, _FIRST_WORKER_PORT + number), number, of=options.num_workers),
                arguments=_worker_arguments(options),
                name=f"worker{suffix}",
                ready_seconds=_MODEL_READY_SECONDS,
                stop_seconds=_drain_seconds(environment) + _WORKER_STOP_MARGIN_SECONDS,
            )
        )
    return specs


def _prepare_spec(options: StackOptions, data_dir: DataDir, environment: Mapping[str, str]) -> ChildSpec:
    """Describe the prepare worker, which starts with the first document: it and its processes need 230 MB."""
    return _role(
        "prepare",
        data_dir,
        _with_metrics_port(environment, 2 + options.num_workers),
        stop_seconds=_drain_seconds(environment) + _WORKER_STOP_MARGIN_SECONDS,
    )


def _drain_seconds(environment: Mapping[str, str]) -> float:
    from jobs.settings import Settings

    return float(environment.get("TOKENMILL_DRAIN_SECONDS", Settings.model_fields["drain_seconds"].default))


def _worker_arguments(options: StackOptions) -> tuple[str, ...]:
    if options.server is not None:
        return ("--model", options.model.name, *options.server.arguments(options.model.name_at_server))
    return ("--model", options.model.name, "--path", options.model.path, *_model_options(options))


def _model_options(options: StackOptions) -> Iterator[str]:
    """Yield the arguments of a worker for how lines are rendered, sampled and computed."""
    if options.chat_template is not None:
        yield from ("--chat-template", str(options.chat_template.absolute()))
    if options.suggested_sampling:
        yield "--suggested-sampling"
    if options.dtype != "auto":
        yield from ("--dtype", options.dtype)


def _role(
    role: str,
    data_dir: DataDir,
    environment: Mapping[str, str],
    *,
    arguments: tuple[str, ...] = (),
    name: str | None = None,
    is_ready: Callable[[], bool] | None = None,
    ready_seconds: float = 60.0,
    stop_seconds: float = 15.0,
) -> ChildSpec:
    """Describe a role; without `is_ready`, it is ready once its ready file exists."""
    name = name or role
    ready_file = data_dir.run / f"{name}.ready"
    return ChildSpec(
        name=name,
        command=[
            *command_of("cli.main", role, "--ready-file", str(ready_file)),
            *("--start-file", str(data_dir.database_ready), *arguments),
        ],
        environment=environment,
        log_path=data_dir.logs / f"{name}.log",
        is_ready=is_ready or ready_file.exists,
        before_start=lambda: ready_file.unlink(missing_ok=True),
        ready_seconds=ready_seconds,
        stop_seconds=stop_seconds,
        # Without us Postgres ends too, so a role has nothing left to save.
        death_signal=signal.SIGKILL,
    )


def _with_gpu(environment: Mapping[str, str], number: int, *, of: int) -> Mapping[str, str]:
    """Give each of several workers its own GPU; a single worker sees all GPUs that we see."""
    if of == 1:
        return environment
    visible = [gpu for gpu in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu]
    gpu = visible[number] if number < len(visible) else str(number)
    return {**environment, "CUDA_VISIBLE_DEVICES": gpu}


def _require_metrics_ports(first: int, *, num_workers: int) -> None:
    """Raise InputError if the ports from `first` on are too few for the roles with metrics."""
    num_ports = _FIRST_WORKER_PORT + num_workers
    highest = _HIGHEST_PORT + 1 - num_ports
    if first > highest:
        raise InputError(
            f"TOKENMILL_METRICS_PORT is {first}, and {num_ports} ports from there on are needed, for control, dispatch "
            f"and each worker. Choose {highest} or lower, or 0 for none."
        )


def _with_metrics_port(environment: Mapping[str, str], offset: int) -> Mapping[str, str]:
    """Give each role on this machine its own metrics port, if metrics are on."""
    port = int(environment.get("TOKENMILL_METRICS_PORT", "0"))
    return environment if port == 0 else {**environment, "TOKENMILL_METRICS_PORT": str(port + offset)}


def _answers(options: StackOptions) -> bool:
    if not _is_listened_on(options):  # cheaper than HTTP: polled fifty times a second while the others start
        return False
    url = f"http://{_shown_host(options.host)}:{options.port}/readyz"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # never through a proxy to ourselves
    try:
        with opener.open(url, timeout=_PROBE_SECONDS):
            return True
    except (urllib.error.URLError, OSError):
        return False


def _is_listened_on(options: StackOptions) -> bool:
    try:
        with socket.create_connection((_shown_host(options.host).strip("[]"), options.port), timeout=_PROBE_SECONDS):
            return True
    except OSError:
        return False


def _shown_host(host: str) -> str:
    """Return the address at which a client on this machine reaches a server that listens on `host`."""
    local = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, host)
    return f"[{local}]" if ":" in local and not local.startswith("[") else local
