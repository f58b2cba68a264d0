"""`tokenmill bench …`: benchmarks of the engine and the service.

Each benchmark parses its own options, since some run where typer is not installed (docs/adr/0012), and is loaded when
it runs. Studies, in `lab`, are part of a checkout; an installation has the other benchmarks.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from cli.client import client_from_environment, server_errors_as_sentences
from cli.served_model import choose_model
from cli.transactions import DataDirOption, admin_transaction
from jobs.counted import counted
from jobs.errors import InputError

_LAB = Path(__file__).resolve().parent.parent / "lab"

app = typer.Typer(help="Benchmarks of the engine and the service.", no_args_is_help=True)
reads_its_own_options = app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True}, add_help_option=False
)


@app.callback()
def bench() -> None:
    """Group the benchmarks."""


def _require_checkout(context: typer.Context) -> None:
    """Raise InputError if the studies are missing, as in an installation."""
    if not _LAB.is_dir():
        raise InputError(
            f"`tokenmill bench {context.info_name}` is a study, which is part of a checkout of Tokenmill and not of an "
            "installation. Run it in a checkout."
        )


@reads_its_own_options
def throughput(context: typer.Context) -> None:
    """Run a workload file through the engine and report tokens per second, batch sizes and KV use.

    `tokenmill bench throughput --help` lists its options.
    """
    from benchmarks.throughput.__main__ import parse, run

    arguments = parse(context.args)
    if not arguments.workload.is_file():
        raise InputError(f"cannot read {arguments.workload}: no such file. Give a JSONL workload with --workload.")
    arguments.model = choose_model(arguments.model).path
    raise typer.Exit(run(arguments))


@app.command()
def record(
    start: Annotated[str, typer.Option("--from", help="Such as 2026-11-01T00:00:00Z.")],
    end: Annotated[str, typer.Option("--to", help="Not included.")],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="DAY.jsonl")],
    data_dir: DataDirOption = None,
) -> None:
    """Record the batches of a time span and their results for `tokenmill bench replay day`. Connects to Postgres.

    The file has tenants, classes, deadlines and lengths in tokens; no prompts and no answers.
    """
    from benchmarks.day import write_day
    from jobs import day_record

    first, last = _moment("--from", start), _moment("--to", end)
    with admin_transaction(data_dir) as session:
        span = day_record.describe(session, first, last)
        try:
            with output.open("w", encoding="utf-8") as out:
                num = write_day(out, span, day_record.recorded(session, first, last), start=first)
        except OSError as error:
            raise InputError(f"cannot write {output}: {error.strerror}") from None
    print(f"{output}: {counted(num, 'batch', 'batches')}")
    if span.num_open:
        print(f"{span.num_open:,} open ones are left out; record again when they have ended")
    if span.num_forgotten:
        print(f"{span.num_forgotten:,} are left out: no result took tokens, or the results are deleted")


def _moment(option: str, text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InputError(f"{option} is {text!r}; give a time, such as 2026-11-01T00:00:00Z") from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


@reads_its_own_options
def replay(context: typer.Context) -> None:
    """Replay request traces under scheduling policies in the simulator, or validate it on this machine.

    `tokenmill bench replay --help` lists its commands: trace, study, day, eta, order, calibrate, validate.
    """
    _require_checkout(context)
    from lab.replay import main

    raise typer.Exit(main(context.args))


@reads_its_own_options
def peers(context: typer.Context) -> None:
    """Run Tokenmill and every installed peer on the same token ids, and print the ratios.

    `tokenmill bench peers --help` lists its options; lab/README.md says how to install the peers.
    """
    _require_checkout(context)
    from lab.peers.__main__ import main

    raise typer.Exit(main(context.args))


@reads_its_own_options
def gpu(context: typer.Context) -> None:
    """Measure one GPU against its roofline: kernels, decode steps, whole workloads, transformers.

    `tokenmill bench gpu --help` lists its options; lab/README.md says what each section measures.
    """
    _require_checkout(context)
    from lab.gpu.__main__ import main

    raise typer.Exit(main(context.args))


@reads_its_own_options
def extraction(context: typer.Context) -> None:
    """Measure a part of extraction: the speed of parsing and embedding, or how often quotes are located.

    `tokenmill bench extraction --help` lists the parts.
    """
    _require_checkout(context)
    from lab.extraction.__main__ import main

    raise typer.Exit(main(context.args))


@reads_its_own_options
def service(context: typer.Context) -> None:
    """Measure an idle `tokenmill up`: short lines, and an urgent line behind bulk work.

    `tokenmill bench service --help` lists its options.
    """
    from benchmarks.service import parse, run

    arguments = parse(context.args)
    client = client_from_environment()
    with server_errors_as_sentences(client):
        run(client, arguments)


@reads_its_own_options
def queue(context: typer.Context) -> None:
    """Measure the queue on its own stacks with an engine that computes nothing: lines, claims, shares, memory.

    `tokenmill bench queue --help` lists its options.
    """
    _require_checkout(context)
    from lab.work_queue.command import main

    raise typer.Exit(main(context.args))


@reads_its_own_options
def autoscaling(context: typer.Context) -> None:
    """Study the number of workers: a simulated week, the time of a question, real workers from 0 and back.

    `tokenmill bench autoscaling --help` lists its parts.
    """
    _require_checkout(context)
    from lab.autoscaling.command import main

    raise typer.Exit(main(context.args))


@reads_its_own_options
def dashboard(context: typer.Context) -> None:
    """Measure the cost of the dashboard's pages, and of open ones, on its own Postgres with a month of work.

    `tokenmill bench dashboard --help` lists its options.
    """
    _require_checkout(context)
    from cli.embedded.launcher import BenchLauncher
    from lab.dashboard.command import parse, run

    raise typer.Exit(run(parse(context.args), BenchLauncher))


@reads_its_own_options
def schedules(context: typer.Context) -> None:
    """Measure schedules that are due in one minute, until the first batch of each run is handed in, on its own stack.

    `tokenmill bench schedules --help` lists its options.
    """
    _require_checkout(context)
    from cli.embedded.launcher import BenchLauncher
    from lab.schedules.command import parse, run

    raise typer.Exit(run(parse(context.args), BenchLauncher))


@reads_its_own_options
def chaos(context: typer.Context) -> None:
    """Kill, stop and disconnect the parts of its own stack, and check that nothing is lost, repeated or billed twice.

    `tokenmill bench chaos --help` lists its options.
    """
    _require_checkout(context)
    from cli.embedded.launcher import BenchLauncher
    from jobs.settings import load_settings
    from lab.chaos.command import parse, run

    arguments = parse(context.args)
    raise typer.Exit(run(arguments, BenchLauncher, lease_seconds=load_settings().lease_seconds))
