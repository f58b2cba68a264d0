"""`tokenmill api | control | dispatch | worker | prepare`: the roles of a deployment, one per process."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from api import logs as api_logs
from cli.loading import without_collections
from cli.models.fitting_options import require_fitting, require_several
from cli.models.model_server import EngineKind, EngineOption
from cli.models.spill import SpillBudget, SpillFlag, SpillInputPrice, SpillOptions, SpillOutputPrice
from cli.sigterm import ends_by_sigterm
from cli.starting.checks import check, check_once_there, checked_settings, settings_of
from cli.starting.readiness import load_and_wait, touch_when_celery_is_ready, touch_when_loaded
from cli.switching.options import ServedName, WorkerCommand, models_of
from engine.config import EngineConfig
from jobs.telemetry import logs
from jobs.telemetry.collector import start_traces

DataDirOption = Annotated[
    Path | None, typer.Option(help="Serve the running `tokenmill up` of this folder, not the URLs that are set.")
]


def _removed(ready_file: Path | None) -> Path | None:
    """Remove what a killed role has left: a container that restarts keeps its `/tmp`."""
    if ready_file is not None:
        ready_file.unlink(missing_ok=True)
    return ready_file


ReadyFile = Annotated[Path | None, typer.Option(hidden=True, callback=_removed, help="Created when the role is ready.")]
StartFile = Annotated[
    Path | None, typer.Option(hidden=True, help="Waited for: exists once database and object store may be used.")
]


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
        load_and_wait("api.app", "api.server", start_file=start_file)
        settings = checked_settings(data_dir, writes_objects=True)

        from api.app import create_app
        from api.server import serve

        traces = start_traces(settings.traces_url, role="api", share_of_lines=settings.traces_lines)
        app = create_app(settings, traces=traces)
        touch_when_loaded(ready_file)
        serve(app, settings, host=host, port=port)


def control(data_dir: DataDirOption = None, ready_file: ReadyFile = None, start_file: StartFile = None) -> None:
    """Validate batches, write their files, advance runs, extractions and indexes, send webhooks (Celery, CPU only)."""
    from workers.logs import configure

    configure("control", is_json=logs.wants_json())
    load_and_wait("workers.control", start_file=start_file)
    settings = checked_settings(data_dir, writes_objects=True)

    from workers.control import main

    touch_when_celery_is_ready(ready_file)
    main(settings)


def dispatch(data_dir: DataDirOption = None, ready_file: ReadyFile = None, start_file: StartFile = None) -> None:
    """Pick the next work by fair share and send hints to the workers. Any number may run; one leads."""
    from workers.logs import configure

    configure("dispatch", is_json=logs.wants_json())
    load_and_wait("workers.dispatcher", start_file=start_file)
    settings = checked_settings(data_dir)

    from workers.dispatcher import main

    touch_when_loaded(ready_file)
    main(settings)


def worker(
    *,
    model: Annotated[
        str | None, typer.Option(help="Served name of the model [default with --engine openai: the server's]")
    ] = None,
    models: Annotated[
        str | None,
        typer.Option(
            metavar="A,B=PATH", help="Serve one of several models at a time, the one whose deadlines need it most."
        ),
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
    spill: SpillFlag = False,
    spill_budget: SpillBudget = None,
    input_price: SpillInputPrice = None,
    output_price: SpillOutputPrice = None,
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
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16, float16, or int8 of encoders")] = "auto",
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
    worker_id: Annotated[str | None, typer.Option(hidden=True, help="Id of a worker that was announced.")] = None,
    ready_file: ReadyFile = None,
    start_file: StartFile = None,
) -> None:
    """Run the engine of one model, or ask a server of it, and process its chunks."""
    from workers.logs import configure

    several = None if models is None else models_of(models)
    if several is None:
        configure(f"worker[{model or url}]", is_json=logs.wants_json())
    else:  # its workers log to their own stderr, which it passes on as it is
        logs.configure(f"worker[{', '.join(one.name for one in several)}]", is_json=logs.wants_json())
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
        "spill": SpillOptions(
            spill=spill, spill_budget=spill_budget, input_price=input_price, output_price=output_price
        ).terms(),
    }
    remote = {name: value for name, value in remote.items() if value is not None}
    is_remote = engine is EngineKind.OPENAI
    has_files = bool(path or chat_template or suggested_sampling)
    require_fitting(engine, url=url, own=options, has_files=has_files, remote=remote, model=model, models=models)
    if several is not None:
        require_several(model=model, path=path, chat_template=chat_template)
        own = WorkerCommand(options=options, has_suggested_sampling=suggested_sampling)
        _serve_several(several, own, data_dir, ready_file=ready_file, start_file=start_file)
        return
    settings = settings_of(data_dir)
    if start_file is None:
        check(settings)  # before the model is loaded, which takes seconds

    with without_collections():
        module = import_module("workers.remote.main" if is_remote else "workers.gpu_main")
        gc.freeze()
    touch_when_celery_is_ready(ready_file)
    if is_remote:
        with ends_by_sigterm():  # as long as it waits for its server; then Celery handles the signal
            module.main(
                settings,
                model=model,
                options=module.RemoteOptions(url=url, max_model_len=max_model_len, **remote),
                before_database=lambda: None if start_file is None else check_once_there(start_file, settings),
            )
        return
    module.main(
        settings,
        model=model,
        path=path,
        engine=lambda folder: EngineConfig(model=folder, **(options | {"dtype": "auto"})),
        dtype=dtype,
        chat_template=chat_template,
        has_suggested_sampling=suggested_sampling,
        worker_id=worker_id,
        before_database=lambda: None if start_file is None else check_once_there(start_file, settings),
    )


def _serve_several(
    models: Sequence[ServedName],
    command: WorkerCommand,
    data_dir: Path | None,
    *,
    ready_file: Path | None,
    start_file: Path | None,
) -> None:
    load_and_wait("cli.switching.serving", start_file=start_file)
    settings = checked_settings(data_dir)

    from cli.switching.serving import main

    main(settings, models=models, command=command, ready_file=ready_file)


def prepare(data_dir: DataDirOption = None, ready_file: ReadyFile = None, start_file: StartFile = None) -> None:
    """Parse and split documents, find passages and ground answers (Celery, CPU only). Any number may run."""
    from workers.logs import configure

    configure("prepare", is_json=logs.wants_json())
    load_and_wait("workers.preparing.main", start_file=start_file)

    from jobs.storage import prepared

    settings = settings_of(data_dir).of_prepare()
    check(settings, writes_objects=True, writes_below=prepared.PREFIX)

    from workers.preparing.main import main

    touch_when_celery_is_ready(ready_file)
    main(settings)
