"""`tokenmill bench …`: measures the engine on this machine."""

from pathlib import Path
from typing import Annotated

import typer

from jobs.errors import InputError

app = typer.Typer(help="Measure the engine on this machine.", no_args_is_help=True)


@app.callback()
def bench() -> None:
    """Keep `throughput` a command of its own: a group with one command would swallow its name."""


@app.command()
def throughput(
    model: Annotated[str, typer.Option(help="Model folder or Hugging Face id.")],
    workload: Annotated[Path, typer.Option(help="JSONL of prompt_token_ids, max_tokens, …")],
    batching: Annotated[str, typer.Option(help="continuous or static")] = "continuous",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Run a workload file through the engine and report tokens per second, batch sizes and KV use."""
    from cli.served_model import choose_model

    if batching not in ("continuous", "static"):
        raise InputError(f"--batching is {batching!r}. Give continuous or static.")
    if not workload.is_file():
        raise InputError(f"cannot read {workload}: no such file. Give a JSONL workload with --workload.")
    path = choose_model(model).path

    from benchmarks.throughput import main

    main(model=path, workload=workload, batching=batching, as_json=as_json)
