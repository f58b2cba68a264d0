"""The `tokenmill` command: puts the groups of commands together and turns errors into one sentence.

Imports nothing heavy: each command loads what it needs when it runs.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
from typing import Annotated

import typer

from cli import (
    backup_commands,
    bench_commands,
    file_commands,
    move_command,
    roles,
    run_command,
    up_command,
)
from cli.admin import database as database_commands
from cli.admin import keys as key_commands
from cli.admin import log as log_commands
from cli.admin import sessions as session_commands
from cli.admin import tenants as tenant_commands
from cli.admin import workers as worker_commands
from cli.batches import commands as batch_commands
from cli.disk.download import OutputError
from cli.extracting import group as extract_group
from cli.extractions import commands as extraction_commands
from cli.extras import what_to_install
from cli.indexes import commands as index_commands
from cli.mapping import command as map_command
from cli.models import commands as model_commands
from cli.overview import Interrupted, Overview
from cli.pipelines import pipeline_commands, run_commands, schedule_commands, store_commands
from cli.spending import budget_commands, usage_commands
from cli.status import commands as status_commands
from cli.webhooks import commands as webhook_commands
from jobs.errors import InputError, TokenmillError
from jobs.telemetry import logs

app = typer.Typer(
    name="tokenmill",
    cls=Overview,
    help="Batch inference for LLMs on your own machines, with an OpenAI-compatible API.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
up_command.register(app)
run_command.register(app)
map_command.register(app)
extract_group.register(app)
extraction_commands.register(app)
index_commands.register(app)
status_commands.register(app)
app.add_typer(batch_commands.app, name="batch")
app.add_typer(file_commands.app, name="files")
app.add_typer(webhook_commands.app, name="webhooks")
usage_commands.register(app)
app.add_typer(pipeline_commands.app, name="pipelines")
app.add_typer(schedule_commands.app, name="schedules")
app.add_typer(run_commands.app, name="runs")
roles.register(app)
app.add_typer(database_commands.db_app, name="db")
backup_commands.register(database_commands.db_app)
move_command.register(database_commands.db_app)
app.command()(database_commands.audit)
app.add_typer(tenant_commands.app, name="tenants")
app.add_typer(key_commands.app, name="keys")
app.add_typer(session_commands.app, name="sessions")
app.add_typer(log_commands.app, name="admin")
app.add_typer(model_commands.app, name="models")
app.add_typer(budget_commands.app, name="budgets")
app.add_typer(store_commands.app, name="stores")
app.add_typer(worker_commands.app, name="workers")
app.add_typer(bench_commands.app, name="bench")


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"tokenmill {version('tokenmill')}, Python {sys.version.split()[0]}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    pass


_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EROFS)


def run() -> None:
    """Run the command line. Exit status: 0 done, 1 something failed, 2 the command was wrong, 130 interrupted."""
    try:
        try:
            app()
        finally:
            sys.stdout.flush()  # here, where a full disk or a closed pipe can still be reported
    except InputError as error:
        _fail(error.message, status=2)
    except TokenmillError as error:
        _fail(error.message, status=1)
    except (KeyboardInterrupt, Interrupted):
        _fail("interrupted", status=130)
    except ModuleNotFoundError as error:
        sentence = what_to_install(error.name)
        if sentence is None:
            raise
        _fail(sentence, status=1)
    except BrokenPipeError:
        # The reader of our output has gone (`| head`); keep the interpreter's last flush from complaining.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        if error.errno in _DISK_ERRORS:
            advice = "Make room or permit it, then try again."
        elif isinstance(error, OutputError):  # of a folder, for one, that was removed meanwhile
            advice = "Give the same command again once it can be written."
        else:
            raise
        _fail(f"{error.strerror}: {error.filename or 'the output'}. {advice}", status=1)


def _fail(message: str, *, status: int) -> None:
    if roles.wants_json_log() and logs.is_json():
        logging.getLogger(__name__).error("command failed", extra={"fields": {"reason": message}})
    else:
        print(f"tokenmill: {message}", file=sys.stderr)
    sys.exit(status)
