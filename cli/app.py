"""The `tokenmill` command: its own options, and the sentence and exit status of each error."""

from __future__ import annotations

import errno
import logging
import os
import sys
from typing import Annotated

import typer

from cli.disk.download import OutputError
from cli.extras import what_to_install
from cli.overview import Interrupted, Overview
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


def _print_version(is_given: bool) -> None:
    if is_given:
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
            sys.stdout.flush()  # while a full disk or a closed pipe can still be reported
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
        # The reader of our output is gone (`| head`); keep the interpreter's last flush from failing.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        if error.errno in _DISK_ERRORS:
            advice = "Free space or grant access, then try again."
        elif isinstance(error, OutputError):  # such as a folder that was removed meanwhile
            advice = "Run the same command again once it can be written."
        else:
            raise
        _fail(f"{error.strerror}: {error.filename or 'the output'}. {advice}", status=1)


def _fail(message: str, *, status: int) -> None:
    if logs.wants_json() and logs.is_json():  # the API logs JSON in any case
        logging.getLogger(__name__).error("command failed", extra={"fields": {"reason": message}})
    else:
        print(f"tokenmill: {message}", file=sys.stderr)
    sys.exit(status)
