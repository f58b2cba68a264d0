"""The engine alone, in a user's own process: `from tokenmill.engine import LLM, SamplingParams`.

Not available in a process with another package named `engine`, `kernels` or `protocol`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tokenmill.importing import make_importable

if TYPE_CHECKING:
    from engine import *  # noqa: F403

make_importable("engine", "kernels", "protocol")
_engine = import_module("engine")
__all__ = list(_engine.__all__)


def __getattr__(name: str) -> Any:
    return getattr(_engine, name)
