"""`tokenmill workers …`: list the workers, drain and resume them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cli.options import AsJson
from cli.table import print_table
from cli.transactions import DataDirOption, admin_transaction, administration
from jobs.accounts.money import in_currency
from jobs.engines.names import label
from jobs.lines.document_bodies import shown_model

if TYPE_CHECKING:
    from jobs.tables import Worker

_HEADER = (
    *("id", "model", "engine", "spilled today", "started", "draining since", "out, because"),
    *("may serve", "left out"),
)

app = typer.Typer(help="Workers: list, drain and resume.", no_args_is_help=True)

WorkerId = Annotated[str, typer.Argument(metavar="WORKER", help="Id, as `workers list` shows it.")]


@app.command("list")
def workers_list(as_json: AsJson = False, data_dir: DataDirOption = None) -> None:
    """List the live workers, oldest first."""
    from jobs.accounts.spill_days import used_today
    from jobs.chunks.fleet import live_workers, out_reason_of

    def spilled(worker: Worker) -> str:
        budget, spent = worker.spill_budget_picos, used.get(worker.model, 0)
        return "" if budget is None else f"{in_currency(spent)} of {in_currency(int(budget))}"

    with admin_transaction(data_dir) as session:
        used = used_today(session)
        rows = [
            (
                worker.id,
                shown_model(worker.model),
                label(worker.engine, worker.engine_version, is_outside=worker.spill_budget_picos is not None),
                spilled(worker),
                worker.started_at,
                worker.draining_at,
                out_reason_of(worker) or "",
                ", ".join(worker.may_serve),
                "; ".join(f"{model}: {reason}" for model, reason in sorted(worker.left_out.items())),
            )
            for worker in live_workers(session)
        ]
    print_table(_HEADER, rows, as_json=as_json)


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
