"""`tokenmill workers …`: list the workers, drain and resume them."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.table import print_table
from cli.transactions import DataDirOption, admin_transaction, administration
from jobs.engines.names import label
from jobs.lines.document_bodies import shown_model

app = typer.Typer(help="Workers: list, drain and resume.", no_args_is_help=True)

WorkerId = Annotated[str, typer.Argument(metavar="WORKER", help="Id, as `workers list` shows it.")]


@app.command("list")
def workers_list(data_dir: DataDirOption = None) -> None:
    """List the live workers, oldest first."""
    from jobs.chunks.fleet import live_workers, out_reason_of

    with admin_transaction(data_dir) as session:
        rows = [
            (
                worker.id,
                shown_model(worker.model),
                label(worker.engine, worker.engine_version),
                worker.started_at,
                worker.draining_at,
                out_reason_of(worker) or "",
            )
            for worker in live_workers(session)
        ]
    print_table(("id", "model", "engine", "started", "draining since", "out, because"), rows)


@app.command("drain")
def workers_drain(worker: WorkerId, data_dir: DataDirOption = None) -> None:
    """Stop a worker from claiming chunks, from its next heartbeat on; it finishes what it has and stays up."""
    from features.administration import workers

    with administration(data_dir) as admin:
        workers.drain(admin, worker)
    print(f"{worker} finishes what it has and claims nothing more; `tokenmill workers resume {worker}` undoes it")


@app.command("resume")
def workers_resume(worker: WorkerId, data_dir: DataDirOption = None) -> None:
    """Let a worker claim chunks again."""
    from features.administration import workers

    with administration(data_dir) as admin:
        workers.resume(admin, worker)
    print(f"{worker} claims again")
