"""`tokenmill workers …`: who works, and to have one finish what it has and begin nothing more."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.table import print_table
from cli.transactions import DataDirOption, admin_transaction, administration
from jobs.lines.document_bodies import shown_model

app = typer.Typer(help="Workers: who works, and who has to go.", no_args_is_help=True)

WorkerId = Annotated[str, typer.Argument(metavar="WORKER", help="Id, as `workers list` shows it.")]


@app.command("list")
def workers_list(data_dir: DataDirOption = None) -> None:
    """List the workers that live, oldest first."""
    from jobs.chunks.fleet import live_workers, out_reason_of

    with admin_transaction(data_dir) as session:
        rows = [
            (
                worker.id,
                shown_model(worker.model),
                worker.started_at,
                worker.draining_at,
                out_reason_of(worker) or "",
            )
            for worker in live_workers(session)
        ]
    print_table(("id", "model", "started", "draining since", "out, because"), rows)


@app.command("drain")
def workers_drain(worker: WorkerId, data_dir: DataDirOption = None) -> None:
    """Have a worker claim nothing more from its next heartbeat on; what it has it finishes, and it stays up."""
    from features.administration import workers

    with administration(data_dir) as admin:
        workers.drain(admin, worker)
    print(f"{worker} finishes what it has; `tokenmill workers resume {worker}` undoes it")


@app.command("resume")
def workers_resume(worker: WorkerId, data_dir: DataDirOption = None) -> None:
    """Have it claim again."""
    from features.administration import workers

    with administration(data_dir) as admin:
        workers.resume(admin, worker)
    print(f"{worker} claims again")
