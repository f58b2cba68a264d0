"""Triton's interpreter without its slowest habit: it patches triton.language anew for each launch and each inner call.

Only where TRITON_INTERPRET was set before triton was imported.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import triton.language as tl
from triton.runtime import interpreter


@contextmanager
def language_patched_once() -> Iterator[None]:
    """Patch everything that kernels use, triton.language and its core, once for all kernels in the block."""
    scope = interpreter._patch_lang(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
    patched = SimpleNamespace(restore=lambda: None)

    def leave_patched(kernel: Any) -> Any:
        return patched

    try:
        with mock.patch.object(interpreter, "_patch_lang", leave_patched):
            yield
    finally:
        scope.restore()
