"""Where the clusters of a move to another Postgres lie beside the data's own folder, and the last of its renames.

A name says how far a move had come, so that whoever finds the folders after a kill knows what to do.
"""

from __future__ import annotations

import os
from pathlib import Path


def unfinished_place(folder: Path) -> Path:
    """Return where a new cluster is filled; what lies there is of no use."""
    return folder.with_name(f"{folder.name}.moving")


def moved_place(folder: Path) -> Path:
    """Return where a new cluster lies that has everything, until it takes the place of the old one."""
    return folder.with_name(f"{folder.name}.moved")


def kept_place(folder: Path, major: int) -> Path:
    """Return where the old cluster is kept."""
    return folder.with_name(f"{folder.name}-{major}")


def put_in_place(folder: Path) -> bool:
    """Finish a move that was killed once the old cluster had left its place; return whether there was one.

    While the old one is there, it may have gone on, and what was moved is of no use.
    """
    moved = moved_place(folder)
    if folder.exists() or not moved.exists():
        return False
    rename(moved, folder)
    return True


def rename(folder: Path, target: Path) -> None:
    """Rename, and return once that outlasts a loss of power."""
    folder.rename(target)
    parent = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(parent)
    finally:
        os.close(parent)
