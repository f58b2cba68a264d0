"""Folder names of clusters during a move to another Postgres, and the final rename.

A name shows the progress of a move, so that a killed move can be finished.
"""

from __future__ import annotations

import os
from pathlib import Path


def unfinished_place(folder: Path) -> Path:
    """Return the folder of an unfinished new cluster; its content can be deleted."""
    return folder.with_name(f"{folder.name}.moving")


def moved_place(folder: Path) -> Path:
    """Return the folder of a complete new cluster, until it replaces the old one."""
    return folder.with_name(f"{folder.name}.moved")


def kept_place(folder: Path, major: int) -> Path:
    """Return the folder where the old cluster is kept."""
    return folder.with_name(f"{folder.name}-{major}")


def put_in_place(folder: Path) -> bool:
    """Finish a move that was killed after the old cluster was renamed; return whether there was one.

    While the old cluster is in place it may have changed, and the moved one is useless.
    """
    moved = moved_place(folder)
    if folder.exists() or not moved.exists():
        return False
    rename(moved, folder)
    return True


def rename(folder: Path, target: Path) -> None:
    """Rename durably: return once the rename survives a power loss."""
    folder.rename(target)
    parent = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(parent)
    finally:
        os.close(parent)
