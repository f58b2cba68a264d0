"""Runs a call of `tokenmill.map` in its own process: a folder has the table, and gets the new columns or an error."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from cli.client import client_for
from cli.data_dir import default_data_dir
from cli.extras import what_to_install
from cli.mapping.carried import source_of, write_added
from cli.mapping.job import MapOptions, plan
from cli.mapping.running import check_schema, computed, delete_taken, folder_of
from cli.service.choosing import local_target
from cli.service.options import say
from cli.service.remote import remote_target
from cli.service.service import Target
from jobs.errors import TokenmillError
from tokenmill.mapping import ADDED, INTERRUPTED, TABLE, note_error

Call = Mapping[str, Any]
"""The arguments of `tokenmill.map` except the table."""


def answer(folder: Path, call: Call, *, is_taken: Callable[[], bool]) -> int:
    """Answer a call; return the exit status.

    `is_taken` announces the new columns and returns whether the caller has them; until then all is kept.
    """
    try:
        _map(folder, call, is_taken)
    except KeyboardInterrupt:
        return INTERRUPTED
    except typer.Exit as ended:  # a signal ended the stack on this machine
        return ended.exit_code
    except (TokenmillError, OSError) as error:
        return note_error(folder, error)
    except ModuleNotFoundError as error:
        sentence = what_to_install(error.name)
        if sentence is None:
            raise
        return note_error(folder, TokenmillError(sentence))
    return 0


def _map(folder: Path, call: Call, is_taken: Callable[[], bool]) -> None:
    source, form = source_of(folder / TABLE, call["form"])
    job = plan(source, MapOptions(model="", **call["wanted"]), form)
    base = Path(call["data_dir"]) if call["data_dir"] else default_data_dir()
    target = _target(call, base)
    job = replace(job, ask=replace(job.ask, model=target.model))
    check_schema(job, target)
    mapped = folder_of(job, target, base=base, output="")
    with mapped.command.held(), computed(job, target, mapped, say=say) as work:
        write_added(folder / ADDED, call["form"], job.shape, work.rows)
        if is_taken():
            delete_taken(work, say=say)


def _target(call: Call, base: Path) -> Target:
    if not call["base_url"]:
        return local_target(call["model"], data_dir=base)
    client = client_for(call["base_url"], call["api_key"])
    return remote_target(client, call["model"], window=call["window"])
