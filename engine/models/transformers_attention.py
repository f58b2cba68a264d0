"""Register our attention functions with transformers, and route its calls to the object that runs the model now.

The active `AttentionCalls` object (a paged step, or the check at load) decides what a call does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

PAGED = "tokenmill_paged"
"""transformers builds no mask for it: the paged cache knows which token sees which."""

TRACED = "tokenmill_traced"
"""transformers passes descriptions of its masks to `AttentionCalls.mask`, which a check of the model needs."""


class AttentionCalls(Protocol):
    """Receives the attention calls of one forward pass, in order."""

    def attend(  # noqa: PLR0917  transformers' order
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, options: dict[str, Any]
    ) -> Tensor:
        """Return `[1, tokens, heads, value_dim]` for query, key and value `[1, heads, tokens, dim]`."""
        ...

    def mask(self, options: dict[str, Any]) -> Tensor:
        """Return the object that transformers passes to `attend` as the mask that `options` describe."""
        ...


_in_force: ContextVar[AttentionCalls] = ContextVar("attention_calls")


@contextmanager
def attending(calls: AttentionCalls) -> Iterator[None]:
    """Route the attention calls made inside to `calls`."""
    token = _in_force.set(calls)
    try:
        yield
    finally:
        _in_force.reset(token)


def _attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    return _in_force.get().attend(module, query, key, value, attention_mask, options), None


def _mask(**options: Any) -> Tensor:
    return _in_force.get().mask(options)


AttentionInterface.register(PAGED, _attention)
AttentionInterface.register(TRACED, _attention)
AttentionMaskInterface.register(TRACED, _mask)
