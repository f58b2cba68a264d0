"""`tokenmill bench …`: measures the engine on this machine."""

from pathlib import Path
from typing import Annotated

import typer

from jobs.errors import InputError

app = typer.Typer(help="Measure the engine on this machine.", no_args_is_help=True)


@app.callback()
def bench() -> None:
    """Keep `throughput` a command of its own: a group with one command would swallow its name."""


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def throughput(
    context: typer.Context,
    *,
    model: Annotated[str, typer.Option(help="Model folder or Hugging Face id.")],
    workload: Annotated[Path, typer.Option(help="JSONL of prompt_token_ids, max_tokens, …")],
    batching: Annotated[str, typer.Option(help="continuous or static")] = "continuous",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Run a workload file through the engine and report tokens per second, batch sizes and KV use.

    Further options are those of `python -m benchmarks.throughput --help`.
    """
    from cli.served_model import choose_model

    if batching not in ("continuous", "static"):
        raise InputError(f"--batching is {batching!r}. Give continuous or static.")
    if not workload.is_file():
        raise InputError(f"cannot read {workload}: no such file. Give a JSONL workload with --workload.")
    path = choose_model(model).path

    from benchmarks.throughput import main

    arguments = ["--model", path, "--workload", str(workload), "--batching", batching, *context.args]
    raise typer.Exit(main([*arguments, "--json"] if as_json else arguments))
