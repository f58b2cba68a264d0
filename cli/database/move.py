"""`tokenmill db move`: moves the data of the embedded Postgres to the version of this installation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.data_dir import DataDir, default_data_dir, locked
from cli.embedded.binaries import find_postgres, find_programs
from cli.embedded.moved_cluster import moved_place, put_in_place
from jobs.errors import InputError

if TYPE_CHECKING:
    from cli.embedded.binaries import PostgresBinaries

DataDirOption = Annotated[
    Path | None,
    typer.Option(help="Folder of a stopped `tokenmill up` [default: that command's default]"),
]


def register(app: typer.Typer) -> None:
    app.command("move")(db_move)


def db_move(
    programs: Annotated[
        Path | None,
        typer.Option(help="Folder with the Postgres programs that created the data [default: on PATH]"),
    ] = None,
    data_dir: DataDirOption = None,
) -> None:
    """Move the data of a stopped `tokenmill up` to the Postgres version of this installation.

    The old data is only read, and kept next to the new. If it is killed, run it again.
    """
    root = data_dir or default_data_dir()
    folder = DataDir(root=root).postgres
    if not folder.exists() and not moved_place(folder).exists():
        raise InputError(f"there is no Postgres of `tokenmill up` in {root}. Name its folder with --data-dir.")
    with locked(root) as owned:
        _move(owned, programs)


def _move(data_dir: DataDir, programs: Path | None) -> None:
    from cli.embedded.moving import move_cluster
    from cli.embedded.postgres import major_of

    new = find_postgres()
    if put_in_place(data_dir.postgres):
        print("finished a move that was killed")
    major = major_of(data_dir.postgres)
    if major is None:
        raise InputError(f"{data_dir.postgres} has no PG_VERSION: it is not a data directory of Postgres")
    if major == new.major:
        print(f"{data_dir.postgres} is already of Postgres {major}, the version of this installation")
        return
    if major > new.major:
        raise InputError(f"{data_dir.postgres} is of Postgres {major}, newer than {new.major} of this installation")
    kept = move_cluster(data_dir, old=_programs_of(major, programs), new=new, say=print)
    print(f"{data_dir.postgres} is of Postgres {new.major} now")
    print(f"the data of {major} is kept in {kept}; delete it after checking: `tokenmill up`, `tokenmill audit`")


def _programs_of(major: int, programs: Path | None) -> PostgresBinaries:

    return find_postgres(major=major) if programs is None else find_programs(major, programs)
