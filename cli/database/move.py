"""`tokenmill db move`: the embedded Postgres' data goes on with the version that this installation has."""

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
    typer.Option(help="That of a stopped `tokenmill up` [default: as that command has]"),
]


def register(app: typer.Typer) -> None:
    app.command("move")(db_move)


def db_move(
    programs: Annotated[
        Path | None,
        typer.Option(help="Folder with the programs of the Postgres that made the data [default: those on PATH]"),
    ] = None,
    data_dir: DataDirOption = None,
) -> None:
    """Move the data of a stopped `tokenmill up` to the version of Postgres that this installation has.

    The old data is only read, and kept beside the new. Killed at any time, run it again.
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
        print("a move that was killed is finished")
    major = major_of(data_dir.postgres)
    if major is None:
        raise InputError(f"{data_dir.postgres} has no PG_VERSION: it is no data of Postgres")
    if major == new.major:
        print(f"{data_dir.postgres} is of Postgres {major}, as this installation is")
        return
    if major > new.major:
        raise InputError(f"{data_dir.postgres} is of Postgres {major}, and this installation has {new.major}: too old")
    kept = move_cluster(data_dir, old=_programs_of(major, programs), new=new, say=print)
    print(f"{data_dir.postgres} is of Postgres {new.major} now")
    print(f"the data of {major} is kept in {kept}; delete it when you have looked: `tokenmill up`, `tokenmill audit`")


def _programs_of(major: int, programs: Path | None) -> PostgresBinaries:

    return find_postgres(major=major) if programs is None else find_programs(major, programs)
