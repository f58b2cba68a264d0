"""The context of a model and the counting of its tokens, by which longer documents are split.

On this machine the model's tokenizer counts. A server gives its context but no tokenizer: two bytes of text then count
as a token, which is more than most texts have.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from cli.client import server_errors_as_sentences
from cli.places.place import Server, ThisMachine
from cli.places.session import Place
from engine.errors import EngineError
from engine.models.config import load_model_config
from engine.models.paths import resolve_model_path
from engine.tokenizer import load_tokenizer
from features.documents.extraction.passes.excerpts import Window, likely_tokens

if TYPE_CHECKING:
    from openai import OpenAI


def window_of(place: Place, *, max_tokens: int | None) -> Window | None:
    """Return the window of a model; None if its context is not known."""
    if max_tokens is None:
        return None
    if isinstance(place, ThisMachine):
        return Window(max_tokens=max_tokens, count=_Counting(place.served.path))
    return Window(max_tokens=max_tokens, count=likely_tokens)


def context_of(place: Place) -> int | None:
    """Return the context of a place's model in tokens, prompt and answer together; None if not known."""
    if isinstance(place, Server):
        return _at_server(place.client, place.model)
    assert isinstance(place, ThisMachine)
    return _here(place.served.path)


def _at_server(client: OpenAI, model: str) -> int | None:

    with server_errors_as_sentences(client):
        served: Any = client.models.retrieve(model)
    context: int | None = getattr(served, "max_model_len", None)  # None without a worker, or on an older server
    return context


def _here(path: str) -> int | None:

    try:
        return load_model_config(path).max_model_len
    except EngineError:
        return None  # the stack reports why it cannot be loaded


class _Counting:
    """Counts with a model's tokenizer, loaded for the first text that may be too long."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __call__(self, text: str) -> int:
        return len(self._tokenizer.encode(text, add_special_tokens=False))

    @cached_property
    def _tokenizer(self) -> Any:

        return load_tokenizer(resolve_model_path(self._path)).backend_tokenizer
