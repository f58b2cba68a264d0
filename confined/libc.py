"""The C library of this process, for calls that Python has no function for."""

from __future__ import annotations

import ctypes
from functools import cache


@cache
def libc() -> ctypes.CDLL:
    """Return the C library, loaded once: forks of a process that has called it do not load it again."""
    return ctypes.CDLL(None, use_errno=True)
