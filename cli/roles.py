"""`tokenmill api | control | dispatch | worker | prepare`: the roles of a deployment, one per process."""

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
from cli.models.model_server import EngineKind, EngineOption
from cli.sigterm import ends_by_sigterm
from engine.config import EngineConfig
from engine.errors import InvalidConfigError
from jobs.errors import InputError, ServiceError
from jobs.telemetry import logs
from jobs.telemetry.collector import start_traces

if TYPE_CHECKING:
    from sqlalchemy.orm import Session, sessionmaker

    from jobs.settings import Settings

log = logging.getLogger(__name__)


DATABASE_SECONDS = 10.0  # how long a starting role waits for Postgres

DataDirOption = Annotated[
    Path | None, typer.Option(help="Serve the running `tokenmill up` of this folder, not the URLs that are set.")
]
ReadyFile = Annotated[Path | None, typer.Option(hidden=True, help="Created when the role is ready.")]
StartFile = Annotated[
    Path | None, typer.Option(hidden=True, help="Waited for: exists once database and object store may be used.")
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

    api_logs.configure(is_json=logs.wants_json())
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

    configure("control", is_json=logs.wants_json())
    _load_and_wait("workers.control", start_file=start_file)
    settings = _checked_settings(data_dir, writes_objects=True)

    from workers.control import main

    _touch_when_celery_is_ready(ready_file)
    main(settings)


def dispatch(data_dir: DataDirOption = None, ready_file: ReadyFile = None, start_file: StartFile = None) -> None:
    """Pick the next work by fair share and send hints to the workers. Any number may run; one leads."""
    from workers.logs import configure

    configure("dispatch", is_json=logs.wants_json())
    _load_and_wait("workers.dispatcher", start_file=start_file)
    settings = _checked_settings(data_dir)

    from workers.dispatcher import main

    _touch_when_loaded(ready_file)
    main(settings)


def worker(
    *,
    model: Annotated[
        str | None, typer.Option(help="Served name of the model [default with --engine openai: the server's]")
    ] = None,
    engine: EngineOption = EngineKind.OWN,
    url: Annotated[str | None, typer.Option(help="URL of the server, as http://host:8000/v1.")] = None,
    key_file: Annotated[Path | None, typer.Option(help="File with the server's API key.")] = None,
    server_model: Annotated[
        str | None, typer.Option(help="Name of the model at the server [default: as --model, or its only one]")
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="Folder, FILE.gguf or hub id with the tokenizer of the server's model.")
    ] = None,
    max_concurrency: Annotated[
        int | None, typer.Option(min=1, help="Most requests to the server at once [default: by its kind]")
    ] = None,
    answer_seconds: Annotated[
        float | None, typer.Option(min=1, help="Most seconds for an answer of the server [default: 600]")
    ] = None,
    path: Annotated[
        str | None,
        typer.Option(help="Folder, FILE.gguf or Hugging Face id[@revision] [default: the path of `models add`]"),
    ] = None,
    chat_template: Annotated[
        Path | None, typer.Option(help="Jinja file with a chat template [default: the model's own]")
    ] = None,
    suggested_sampling: Annotated[
        bool,
        typer.Option(
            "--suggested-sampling", help="Sample as the model's generation_config.json says where a line does not."
        ),
    ] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N")] = "auto",
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16")] = "auto",
    model_impl: Annotated[str, typer.Option(help="Implementation: auto, tokenmill or transformers")] = "auto",
    max_num_seqs: Annotated[
        int | None, typer.Option(min=1, help="Most sequences in a step [default: by device]")
    ] = None,
    max_num_batched_tokens: Annotated[
        int | None, typer.Option(min=1, help="Most tokens in a step [default: by device]")
    ] = None,
    max_model_len: Annotated[
        int | None, typer.Option(help="Most tokens of prompt and answer [default: the model's own]")
    ] = None,
    num_kv_blocks: Annotated[int | None, typer.Option(help="KV cache blocks [default: from memory]")] = None,
    swap_space_gib: Annotated[float | None, typer.Option(help="Host memory for preempted sequences, in GiB.")] = None,
    policy: Annotated[
        str | None, typer.Option(help="Scheduling policy: priority, fcfs, deadline, shortest, fair or prefix")
    ] = None,
    overlap: Annotated[
        bool | None, typer.Option(help="Plan a step while the previous one runs [default: on CUDA]")
    ] = None,
    enforce_eager: Annotated[bool, typer.Option("--enforce-eager", help="On CUDA, run without CUDA graphs.")] = False,
    speculation: Annotated[str | None, typer.Option(help="Speculative decoding: off or ngram")] = None,
    num_speculative_tokens: Annotated[
        int | None, typer.Option(help="Most speculative tokens per sequence and step.")
    ] = None,
    log_decisions: Annotated[
        bool, typer.Option("--log-decisions", help="Log why a request waits, starts or is preempted.")
    ] = False,
    data_dir: DataDirOption = None,
    ready_file: ReadyFile = None,
    start_file: StartFile = None,
) -> None:
    """Run the engine of one model, or ask a server of it, and process its chunks."""
    from workers.logs import configure

    configure(f"worker[{model or url}]", is_json=logs.wants_json())
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
    options: dict[str, Any] = {name: value for name, value in chosen.items() if value is not None}
    remote = {
        "key_file": key_file,
        "server_model": server_model,
        "tokenizer": tokenizer,
        "max_seats": max_concurrency,
        "answer_seconds": answer_seconds,
    }
    remote = {name: value for name, value in remote.items() if value is not None}
    is_remote = engine is EngineKind.OPENAI
    has_files = bool(path or chat_template or suggested_sampling)
    _require_fitting(engine, url=url, own=options, has_files=has_files, remote=remote, model=model)
    settings = _settings(data_dir)
    if start_file is None:
        _check(settings)  # before the model is loaded, which takes seconds

    with without_collections():
        module = import_module("workers.remote.main" if is_remote else "workers.gpu_main")
        gc.freeze()
    _touch_when_celery_is_ready(ready_file)
    if is_remote:
        module.main(
            settings,
            model=model,
            options=module.RemoteOptions(url=url, max_model_len=max_model_len, **remote),
            before_database=lambda: None if start_file is None else _check_once_there(start_file, settings),
        )
        return
    module.main(
        settings,
        model=model,
        path=path,
        engine=lambda folder: EngineConfig(model=folder, **options),
        chat_template=chat_template,
        has_suggested_sampling=suggested_sampling,
        before_database=lambda: None if start_file is None else _check_once_there(start_file, settings),
    )


def _require_fitting(
    engine: EngineKind,
    *,
    url: str | None,
    own: Mapping[str, Any],
    has_files: bool,
    remote: Mapping[str, Any],
    model: str | None,
) -> None:
    """Raise InputError for options of the other kind of engine, and for those that are missing or out of range."""
    try:
        config = EngineConfig(model="", **own)
    except InvalidConfigError as error:
        raise InputError(str(error)) from None
    if engine is EngineKind.OWN:
        if url is not None or remote:
            raise InputError("--url and the options of a server need --engine openai.")
        if model is None:
            raise InputError("no model was named. Give its served name with --model.")
        return
    if url is None:
        raise InputError("--engine openai needs the server's address: --url http://host:8000/v1.")
    if has_files or config != EngineConfig(model="", max_model_len=config.max_model_len):
        raise InputError(
            "--engine openai has its model and settings at the server. Leave out --path, --chat-template, "
            "--suggested-sampling and the options of our engine, except --max-model-len."
        )


def prepare(data_dir: DataDirOption = None, ready_file: ReadyFile = None, start_file: StartFile = None) -> None:
    """Parse and split documents, find passages and ground answers (Celery, CPU only). Any number may run."""
    from workers.logs import configure

    configure("prepare", is_json=logs.wants_json())
    _load_and_wait("workers.preparing.main", start_file=start_file)

    from jobs.storage import prepared

    settings = _settings(data_dir).of_prepare()
    _check(settings, writes_objects=True, writes_below=prepared.PREFIX)

    from workers.preparing.main import main

    _touch_when_celery_is_ready(ready_file)
    main(settings)


def _load_and_wait(*modules: str, start_file: Path | None) -> None:
    """With a start file, load the role's modules while the stack prepares its database, and wait for that."""
    if start_file is not None:
        with without_collections():
            for module in modules:
                import_module(module)
            gc.freeze()  # loaded modules stay: later collections need not walk them
        _wait_for(start_file)


def _wait_for(start_file: Path) -> None:
    while not start_file.exists():  # forever: the process that writes it ends us with it
        time.sleep(_LOOK_SECONDS)


def _check_once_there(start_file: Path, settings: Settings) -> None:
    _wait_for(start_file)
    _check(settings)


def _checked_settings(data_dir: Path | None, *, writes_objects: bool = False) -> Settings:
    """Return the settings once database and object store are usable. Raises TokenmillError."""
    settings = _settings(data_dir)
    _check(settings, writes_objects=writes_objects)
    return settings


def _settings(data_dir: Path | None) -> Settings:
    from jobs.settings import load_settings

    if data_dir is not None:
        os.environ.pop("TOKENMILL_DATABASE_PREPARE_URL", None)  # would name another database
        os.environ.update(_urls_of_stack(data_dir))
    return load_settings()


def _check(settings: Settings, *, writes_objects: bool = False, writes_below: str = "") -> None:
    from jobs.database import connect, is_ready, sessions, wait_until_ready
    from jobs.storage import Storage, store_marker

    engine = connect(settings.database_url)
    try:
        with _naming_defaults("TOKENMILL_DATABASE_URL", settings.database_url):
            wait_until_ready(engine, DATABASE_SECONDS)
        if not is_ready(engine):
            raise ServiceError(
                "this version does not run on the database's schema. Run `tokenmill db upgrade`, or upgrade this "
                "installation if the schema is newer: `tokenmill doctor` shows both revisions."
            )
        _warn_of_login(sessions(engine))
        storage = Storage.of(settings)
        with _naming_defaults("TOKENMILL_STORAGE_URL", settings.storage_url):
            store_marker.bind(sessions(engine), storage)
            if writes_objects:
                storage.check(below=writes_below)
    finally:
        engine.dispose()


def _warn_of_login(maker: sessionmaker[Session]) -> None:
    """Log a warning if the database login has more rights than a service needs."""
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
def _naming_defaults(variable: str, value: str) -> Iterator[None]:
    """Name the variable and its default in a ServiceError if the variable is not set."""
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
    """Create the ready file, and exclude all objects so far from garbage collection: they live as long as the process.

    A GPU worker with short lines collects often, and its modules have 200,000 objects. No collection comes before: it
    would take 0.15 s, and find 600 of them.
    """
    gc.freeze()
    if ready_file is not None:
        ready_file.touch()


def _touch_when_celery_is_ready(ready_file: Path | None) -> None:
    """Create the ready file at Celery's `worker_ready`: the pool has started, and a GPU worker's engine is warm."""
    from celery.signals import worker_ready

    def on_ready(**_: Any) -> None:
        _touch_when_loaded(ready_file)

    worker_ready.connect(on_ready, weak=False)
