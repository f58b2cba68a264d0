"""Optional packages for some kinds of tables, imported when one is used."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from tokenmill.errors import InputError


def needed(module: str, *, by: str, extra: str = "tables") -> Any:
    """Import a package of an extra. Raises InputError naming what to install."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if (error.name or "").partition(".")[0] != package:
            raise
        raise InputError(
            f"{by} needs the package {package}, which is not installed. Run `pip install 'tokenmill[{extra}]'`."
        ) from None
