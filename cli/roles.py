"""Starts the roles of a deployment, one per process: `tokenmill api | control | dispatch | worker | prepare`."""

from __future__ import annotations

import gc
import logging
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api import logs as api_logs
from cli.embedded.note import running_stack_of
from cli.loading import without_collections
from cli.sigterm import ends_by_sigterm
from engine.config import EngineConfig
from engine.errors import InvalidConfigError
from jobs.errors import InputError, ServiceError
from jobs.telemetry.collector import start_traces

if TYPE_CHECKING:
    from sqlalchemy.orm import Session, sessionmaker

    from jobs.settings import Settings

log = logging.getLogger(__name__)

DATABASE_SECONDS = 10.0  # how long a starting role waits for Postgres

DataDirOption = Annotated[
    Path | None, typer.Option(help="Work for the running `tokenmill up` of this folder, not for the URLs that are set.")
]
ReadyFile = Annotated[Path | None, typer.Option(hidden=True, help="Written when the role is ready.")]
StartFile = Annotated[
    Path | None, typer.Option(hidden=True, help="There once database and object store may be used: waited for.")
]
_LOOK_SECONDS = 0.1


def api(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535)] = 8000,
    data_dir: DataDirOption = None,
    ready_file: ReadyFile = None,
    start_file: StartFile = None,
) -> None:
    """Serve the HTTP API."""
    from cli.stack import require_free_port

    api_logs.configure(is_json=wants_json_log())
    require_free_port(host, port)
    with ends_by_sigterm():
        _load_and_wait("api.app", "api.server", start_file=start_file)
        settings = _checked_settings(data_dir, writes_objects=True)

        from api.app import create_app
        from api.server import serve

        traces = start_traces(settings.traces_url, role="api", share_of_lines=settings.traces_lines)
        app = create_app(settings, traces=traces)
        _touch_when_loaded(ready_file)
        serve(app, settings, host=host, port=port)


def control(data_dir: DataDirOption = None, ready_file: ReadyFile = None, start_file: StartFile = None) -> None:
    """Validate batches, write their files, advance runs, extractions and indexes, send webhooks (Celery, CPU only)."""
    from workers.logs import configure

    configure("control", is_json=wants_json_log())
    _load_and_wait("workers.control", start_file=start_file)
    settings = _checked_settings(data_dir, writes_objects=True)

    from workers.control import main

    _touch_when_celery_is_ready(ready_file)
    main(settings)


def dispatch(data_dir: DataDirOption = None, ready_file: ReadyFile = None, start_file: StartFile = None) -> None:
    """Pick the next work by fair share and send hints to the workers. Any number may run; one leads."""
    from workers.logs import configure

    configure("dispatch", is_json=wants_json_log())
    _load_and_wait("workers.dispatcher", start_file=start_file)
    settings = _checked_settings(data_dir)

    from workers.dispatcher import main

    _touch_when_loaded(ready_file)
    main(settings)


def worker(
    *,
    model: Annotated[str, typer.Option(help="Served name of the model.")],
    path: Annotated[
        str | None,
        typer.Option(help="Folder, FILE.gguf or Hugging Face id[@revision] [default: what `models add` noted]"),
    ] = None,
    chat_template: Annotated[
        Path | None, typer.Option(help="Jinja file with a chat template [default: the model's own]")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N")] = "auto",
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16")] = "auto",
    model_impl: Annotated[str, typer.Option(help="Whose code runs the model: auto, tokenmill, transformers")] = "auto",
    max_num_seqs: Annotated[
        int | None, typer.Option(min=1, help="Sequences in one step [default: by the device]")
    ] = None,
    max_num_batched_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens in one step [default: by the device]")
    ] = None,
    max_model_len: Annotated[int | None, typer.Option(help="Prompt and answer [default: the model's own]")] = None,
    num_kv_blocks: Annotated[int | None, typer.Option(help="KV cache blocks [default: from memory]")] = None,
    swap_space_gib: Annotated[float | None, typer.Option(help="Host memory for preempted sequences.")] = None,
    policy: Annotated[
        str | None, typer.Option(help="Who is next: priority, fcfs, deadline, shortest, fair or prefix")
    ] = None,
    overlap: Annotated[bool | None, typer.Option(help="Plan a step while the last one runs [default: on CUDA]")] = None,
    enforce_eager: Annotated[
        bool, typer.Option("--enforce-eager", help="On CUDA, launch kernels one by one, without graphs.")
    ] = False,
    speculation: Annotated[str | None, typer.Option(help="Guess tokens ahead: off or ngram")] = None,
    num_speculative_tokens: Annotated[int | None, typer.Option(help="Most guesses per sequence and step.")] = None,
    log_decisions: Annotated[
        bool, typer.Option("--log-decisions", help="Log why a request waits, starts or gives way.")
    ] = False,
    data_dir: DataDirOption = None,
    ready_file: ReadyFile = None,
    start_file: StartFile = None,
) -> None:
    """Run the engine of one model and process its chunks."""
    from workers.logs import configure

    configure(f"worker[{model}]", is_json=wants_json_log())
    chosen = {
        "device": device,
        "dtype": dtype,
        "model_impl": model_impl,
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_batched_tokens,
        "max_model_len": max_model_len,
        "num_kv_blocks": num_kv_blocks,
        "swap_space_gib": swap_space_gib,
        "policy": policy,
        "overlap": overlap,
        "enforce_eager": enforce_eager,
        "speculation": speculation,
        "num_speculative_tokens": num_speculative_tokens,
        "report_decisions": log_decisions,
    }
    given: dict[str, Any] = {name: value for name, value in chosen.items() if value is not None}
    try:
        EngineConfig(model="", **given)
    except InvalidConfigError as error:
        raise InputError(str(error)) from None
    settings = _settings(data_dir)
    if start_file is None:
        _check(settings)  # before seconds of loading a model

    with without_collections():
        from workers.gpu_main import main

        gc.freeze()
    _touch_when_celery_is_ready(ready_file)
    main(
        settings,
        model=model,
        path=path,
        engine=lambda folder: EngineConfig(model=folder, **given),
        chat_template=chat_template,
        before_database=lambda: None if start_file is None else _check_once_there(start_file, settings),
    )


def prepare(data_dir: DataDirOption = None, ready_file: ReadyFile = None, start_file: StartFile = None) -> None:
    """Parse and split documents, find passages and ground answers (Celery, CPU only). Any number may run."""
    from workers.logs import configure

    configure("prepare", is_json=wants_json_log())
    _load_and_wait("workers.preparing.main", start_file=start_file)

    from jobs.storage import prepared

    settings = _settings(data_dir).of_prepare()
    _check(settings, writes_objects=True, writes_below=prepared.PREFIX)

    from workers.preparing.main import main

    _touch_when_celery_is_ready(ready_file)
    main(settings)


def wants_json_log() -> bool:
    """Tell whether TOKENMILL_LOG_FORMAT asks for JSON lines: known before the settings, whose faults are logged too."""
    return os.environ.get("TOKENMILL_LOG_FORMAT") == "json"


def _load_and_wait(*modules: str, start_file: Path | None) -> None:
    """Where a stack that starts makes its database meanwhile, load what the role needs, and wait for that."""
    if start_file is not None:
        with without_collections():
            for module in modules:
                import_module(module)
            gc.freeze()  # what is loaded stays: what is made from it until the role is ready needs no walk through it
        _wait_for(start_file)


def _wait_for(start_file: Path) -> None:
    while not start_file.exists():  # for ever: whoever writes it takes us along when it ends
        time.sleep(_LOOK_SECONDS)


def _check_once_there(start_file: Path, settings: Settings) -> None:
    _wait_for(start_file)
    _check(settings)


def _checked_settings(data_dir: Path | None, *, writes_objects: bool = False) -> Settings:
    """Read the settings and see that database and object store are there for us. Raises TokenmillError."""
    settings = _settings(data_dir)
    _check(settings, writes_objects=writes_objects)
    return settings


def _settings(data_dir: Path | None) -> Settings:
    from jobs.settings import load_settings

    if data_dir is not None:
        os.environ.pop("TOKENMILL_DATABASE_PREPARE_URL", None)  # of another database, where the stack has none
        os.environ.update(_urls_of_stack(data_dir))
    return load_settings()


def _check(settings: Settings, *, writes_objects: bool = False, writes_below: str = "") -> None:
    from jobs.database import connect, is_ready, sessions, wait_until_ready
    from jobs.storage import Storage, store_marker

    engine = connect(settings.database_url)
    try:
        with _said_where_not_set("TOKENMILL_DATABASE_URL", settings.database_url):
            wait_until_ready(engine, DATABASE_SECONDS)
        if not is_ready(engine):
            raise ServiceError(
                "this version does not run on the database's schema. Run `tokenmill db upgrade` first, or upgrade this "
                "installation where the schema is newer: `tokenmill doctor` says which."
            )
        _warn_of_login(sessions(engine))
        storage = Storage.of(settings)
        with _said_where_not_set("TOKENMILL_STORAGE_URL", settings.storage_url):
            store_marker.bind(sessions(engine), storage)
            if writes_objects:
                storage.check(below=writes_below)
    finally:
        engine.dispose()


def _warn_of_login(maker: sessionmaker[Session]) -> None:
    """Say where a service could do more than its work."""
    from jobs.access import standing_of
    from jobs.database import transaction

    with transaction(maker) as session:
        standing = standing_of(session)
    if standing.is_superuser or (standing.is_owner and standing.are_roles_there):
        log.warning(
            "the database's login may do more than a service needs login=%s: give services tokenmill_service and "
            "prepare workers tokenmill_prepare; docs/database_roles.md",
            standing.login,
        )


def _urls_of_stack(data_dir: Path) -> Mapping[str, str]:
    note = running_stack_of(data_dir)
    if note is None:
        raise InputError(
            f"no `tokenmill up` runs on {data_dir}. Start it, or name the folder of another with --data-dir."
        )
    return note.environment


@contextmanager
def _said_where_not_set(variable: str, value: str) -> Iterator[None]:
    """Nobody has named what does not work, where the variable is missing and its default was tried."""
    try:
        yield
    except ServiceError as error:
        if os.environ.get(variable):
            raise
        raise ServiceError(
            f"{variable} is not set, and its default {value} does not work: {error.message}. Set it, or name the "
            "folder of a running `tokenmill up` with --data-dir."
        ) from None


def _touch_when_loaded(ready_file: Path | None) -> None:
    """Say that the role is ready; what is loaded by now lives as long as the process, and no collection walks it again.

    A GPU worker with short lines collects often, and torch and transformers are a million objects to walk.
    """
    gc.collect()
    gc.freeze()
    if ready_file is not None:
        ready_file.touch()


def _touch_when_celery_is_ready(ready_file: Path | None) -> None:
    """Celery says `worker_ready` once its pool has started: for a GPU worker, once the engine is warm."""
    from celery.signals import worker_ready

    def on_ready(**_: Any) -> None:
        _touch_when_loaded(ready_file)

    worker_ready.connect(on_ready, weak=False)
