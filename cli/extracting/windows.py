"""How much a model reads at once, and how its tokens are counted here: what longer documents are shown in parts by.

On this machine its own tokenizer counts. A server says how long its context is, not how it counts: there two bytes of
text are a token, which is more than most texts have.
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
    """Return the window of a model whose context is known."""
    if max_tokens is None:
        return None
    if isinstance(place, ThisMachine):
        return Window(max_tokens=max_tokens, count=_Counting(place.served.path))
    return Window(max_tokens=max_tokens, count=likely_tokens)


def context_of(place: Place) -> int | None:
    """Return how many tokens a place's model takes, prompt and answer together; None where that cannot be told."""
    if isinstance(place, Server):
        return _at_server(place.client, place.model)
    assert isinstance(place, ThisMachine)
    return _here(place.served.path)


def _at_server(client: OpenAI, model: str) -> int | None:

    with server_errors_as_sentences(client):
        told: Any = client.models.retrieve(model)
    found: int | None = getattr(told, "max_model_len", None)  # none where no worker runs it, or of an older server
    return found


def _here(path: str) -> int | None:

    try:
        return load_model_config(path).max_model_len
    except EngineError:
        return None  # the stack says why it cannot be loaded


class _Counting:
    """Counts by a model's tokenizer, which is loaded for the first text that may be too long."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __call__(self, text: str) -> int:
        return len(self._tokenizer.encode(text, add_special_tokens=False))

    @cached_property
    def _tokenizer(self) -> Any:

        return load_tokenizer(resolve_model_path(self._path)).backend_tokenizer
