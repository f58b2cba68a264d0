"""`tokenmill bench …`: measures the engine on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from jobs.errors import InputError

app = typer.Typer(help="Measure the engine on this machine.", no_args_is_help=True)


@app.callback()
def bench() -> None:
    """Group the measurements."""


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


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True}, add_help_option=False)
def replay(context: typer.Context) -> None:
    """Replay request traces under scheduling policies in the simulator, or check it against this machine.

    `tokenmill bench replay --help` lists its commands: trace, study, calibrate, validate.
    """
    from benchmarks.replay import main

    raise typer.Exit(main(context.args))


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True}, add_help_option=False)
def peers(context: typer.Context) -> None:
    """Run ours and every installed peer on the same token ids, one after the other, and print the ratios.

    `tokenmill bench peers --help` lists its options; benchmarks/README.md says how to install the peers.
    """
    from benchmarks.peers.__main__ import main

    raise typer.Exit(main(context.args))


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True}, add_help_option=False)
def gpu(context: typer.Context) -> None:
    """Measure everything on one GPU against its roofline: kernels, decode steps, whole loads, transformers.

    `tokenmill bench gpu --help` lists its options; benchmarks/README.md says what each section measures.
    """
    from benchmarks.gpu.__main__ import main

    raise typer.Exit(main(context.args))
