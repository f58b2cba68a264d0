"""`tokenmill up`: the whole service in the foreground of a terminal."""

from __future__ import annotations

import logging
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.data_dir import default_data_dir
from cli.models.model_server import EngineKind, EngineOption, ModelServer
from cli.models.spill import SpillBudget, SpillFlag, SpillInputPrice, SpillOptions, SpillOutputPrice
from cli.served_model import ServedModel, choose_model
from cli.status.life import shown_life
from cli.supervisor import StopRequestedError
from jobs.errors import InputError
from jobs.telemetry import logs

if TYPE_CHECKING:
    from cli.stack import RunningStack
    from jobs.metrics import Overview

_DTYPES = ("auto", "float32", "bfloat16", "float16", "int8")


def up(
    *,
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder for all data [default: $TOKENMILL_DATA_DIR or ~/.local/share/…]")
    ] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the API.")] = 8000,
    host: Annotated[str, typer.Option(help="Address that the API listens on.")] = "127.0.0.1",
    model: Annotated[
        str | None,
        typer.Option(help="Folder, FILE.gguf or Hugging Face id[@revision] [default: the demo model of a checkout]"),
    ] = None,
    served_name: Annotated[str | None, typer.Option(help="Model name in requests [default: from --model]")] = None,
    chat_template: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            readable=True,
            help="Jinja file with a chat template [default: the model's own]",
        ),
    ] = None,
    dtype: Annotated[
        str, typer.Option(help="auto, float32 (no rounded products), bfloat16, float16, or int8 of encoders")
    ] = "auto",
    engine: EngineOption = EngineKind.OWN,
    url: Annotated[
        str | None, typer.Option(help="URL of that server, as http://host:8000/v1; --model is a name there.")
    ] = None,
    key_file: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, readable=True, help="File with the server's API key.")
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="Folder, FILE.gguf or hub id with the tokenizer of the server's model.")
    ] = None,
    max_model_len: Annotated[
        int | None, typer.Option(min=2, help="Tokens of the server's context [default: as it tells]")
    ] = None,
    spill: SpillFlag = False,
    spill_budget: SpillBudget = None,
    input_price: SpillInputPrice = None,
    output_price: SpillOutputPrice = None,
    suggested_sampling: Annotated[
        bool,
        typer.Option(
            "--suggested-sampling", help="Sample as the model's generation_config.json says where a line does not."
        ),
    ] = False,
    workers: Annotated[
        int, typer.Option(min=0, help="Engines to run, one per GPU if several; 0: start workers yourself.")
    ] = 1,
    external_servers: Annotated[
        bool,
        typer.Option(
            "--external-servers",
            envvar="TOKENMILL_EXTERNAL_SERVERS",
            help="Use the servers of TOKENMILL_DATABASE_URL, _REDIS_URL and _STORAGE_URL; start only the others.",
        ),
    ] = False,
    show_env: Annotated[
        bool,
        typer.Option("--show-env", help="Also print the variables that `tokenmill worker` needs in another terminal."),
    ] = False,
    show_key: Annotated[
        bool, typer.Option("--show-key", help="Print the API key; the first start always does.")
    ] = False,
) -> None:
    """Run Postgres, Valkey, the API and a worker here until Ctrl-C; a restart continues with the same data."""
    from cli.stack import StackOptions, running_stack

    if logs.wants_json():
        logs.configure("up", is_json=True)
    outside = SpillOptions(spill=spill, spill_budget=spill_budget, input_price=input_price, output_price=output_price)
    server = _server_of(
        engine,
        url=url,
        key_file=key_file,
        tokenizer=tokenizer,
        max_model_len=max_model_len,
        spill=None if outside.terms() is None else outside,
    )
    if dtype not in _DTYPES:
        raise InputError(f"--dtype is {dtype!r}; give one of {', '.join(_DTYPES)}.")
    if server is not None and (chat_template is not None or suggested_sampling or dtype != "auto"):
        raise InputError(
            "--chat-template, --suggested-sampling and --dtype are of our engine: a server of --engine openai has its "
            "own. Leave them out."
        )
    options = StackOptions(
        data_dir=data_dir or default_data_dir(),
        model=choose_model(model, name=served_name) if server is None else _served_by(server, model, served_name),
        server=server,
        host=host,
        port=port,
        num_workers=workers,
        chat_template=chat_template,
        dtype=dtype,
        suggested_sampling=suggested_sampling,
        external_servers=external_servers,
    )
    try:
        with running_stack(options, say=_say) as stack:
            _say(f"ready: model {options.model.name!r}, data and logs in {options.data_dir.absolute()}")
            _tell_where(stack, data_dir=data_dir, is_key_shown=show_key or stack.is_key_new)
            if show_env:
                print("export " + shlex.join(f"{name}={url}" for name, url in stack.environment.items()), flush=True)
            with _life_of(stack):
                stack.supervisor.watch()
            _say("stopping (Ctrl-C again to stop at once)")
    except StopRequestedError:
        _say("stopped before everything was ready")
        raise typer.Exit(130) from None
    _say("stopped")


def _server_of(engine: EngineKind, *, url: str | None, **options: Any) -> ModelServer | None:
    """Return the server that the options name. Raises InputError for those of one without --engine openai."""
    if engine is EngineKind.OWN:
        if url is not None or any(value is not None for value in options.values()):
            raise InputError("--url and the options of a server need --engine openai.")
        return None
    if url is None:
        raise InputError("--engine openai needs the server's address: --url http://host:8000/v1.")
    return ModelServer(url=url, **options)


def _served_by(server: ModelServer, model: str | None, served_name: str | None) -> ServedModel:
    """Return the model of a server, under the name in requests; without a name the server is asked."""
    from workers.remote.identity import api_url, identify
    from workers.remote.keys import address_of

    address = address_of(server.url, server.key_file)
    name = served_name or model or identify(address, named=None, served=None).model
    return ServedModel(name=name, path=api_url(server.url), name_at_server=model)


def _tell_where(stack: RunningStack, *, data_dir: Path | None, is_key_shown: bool) -> None:
    """Print what a browser and a second terminal need. A key that each start prints would end up in logs."""
    where = "below" if is_key_shown else "of the first start; `tokenmill up --show-key` prints it"
    _say(f"dashboard: {stack.base_url.removesuffix('v1')} (sign in with the key {where})")
    variables = {"TOKENMILL_BASE_URL": stack.base_url}
    if is_key_shown:
        variables["TOKENMILL_API_KEY"] = stack.api_key
    if data_dir is not None:
        variables["TOKENMILL_DATA_DIR"] = str(data_dir.absolute())
    print("export " + shlex.join(f"{name}={value}" for name, value in variables.items()), flush=True)


@contextmanager
def _life_of(stack: RunningStack) -> Iterator[None]:
    """Show a status line of queue and workers, unless logs are JSON."""
    if logs.is_json():
        yield
        return
    with overviews(stack.environment["TOKENMILL_DATABASE_URL"]) as look, shown_life(look):
        yield


@contextmanager
def overviews(database_url: str) -> Iterator[Callable[[], Overview]]:
    """Open a database to read overviews of the queue and its workers."""
    from jobs.database import connect, sessions, transaction
    from jobs.metrics import overview

    engine = connect(database_url)

    def look() -> Overview:
        with transaction(sessions(engine)) as session:
            return overview(session)

    try:
        yield look
    finally:
        engine.dispose()


def _say(message: str) -> None:
    if logs.is_json():
        logging.getLogger(__name__).info("stack", extra={"fields": {"text": message}})
    else:
        print(f"tokenmill: {message}", file=sys.stderr, flush=True)
