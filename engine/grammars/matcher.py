"""Position of one sequence's output in its grammar, with a small work limit per token at first, then a larger one.

Made by grammar.py, which compiles a grammar twice. The first form finds forced tokens, and has small limits: llguidance
finds all of them at once, on the thread that runs the steps, and only its limits stop it. When they do, the second form
takes over, with larger limits and no forced tokens: a token then costs only its own mask, however long the forced text.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

_MAX_FORCED = 1024
"""Maximum of forced tokens that a matcher keeps."""

MAX_FIRST_BYTES = 10_000
"""Length of a grammar's initial text that is tokenized at once; later texts are limited by the fuel."""

_REPLAYED = 64
"""Tokens replayed between two masks, each of which resets llguidance's fuel."""

_MAX_SHOWN = 400
"""Characters of llguidance's own message that an error quotes."""


_P = ParamSpec("_P")
_R = TypeVar("_R")


def _timed(
    work: Callable[Concatenate[GrammarMatcher, _P], _R],
) -> Callable[Concatenate[GrammarMatcher, _P], _R]:
    """Measure how long a method works."""

    @functools.wraps(work)
    def timed(matcher: GrammarMatcher, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        start = time.perf_counter()
        try:
            return work(matcher, *args, **kwargs)
        finally:
            matcher.seconds += time.perf_counter() - start

    return timed


class _Copies:
    """State shared by all copies of a matcher."""

    __slots__ = ("is_spent",)

    def __init__(self) -> None:
        self.is_spent = False


class GrammarMatcher:
    """Position of one sequence's output in its grammar. Not thread-safe."""

    __slots__ = ("_copies", "_eos_token_ids", "_followed", "_forced", "_num_followed", "_unforced", "inner", "seconds")

    def __init__(
        self,
        matcher: Any,
        eos_token_ids: tuple[int, ...],
        *,
        unforced: Callable[[], Any] | None = None,
        copies: _Copies | None = None,
    ) -> None:
        """Take llguidance's matcher at the start, and a function for the one to take over when its limits stop it.

        `unforced` returns the same matcher at each call, None if there is none.
        """
        self.inner = matcher
        self._copies = _Copies() if copies is None else copies
        self._eos_token_ids = eos_token_ids
        self._unforced = unforced  # shared by all copies; None once it is in use
        self._followed: list[int] = []
        self._forced: list[int] = []  # as last found, and how many were followed; copies share it
        self._num_followed = 0
        self.seconds = 0.0
        """Time it has worked since this was last set to 0, without masks."""

    def copy(self) -> GrammarMatcher:
        """Return a matcher at the same position. The copies share llguidance's limits of regexes.

        When one copy exceeds such a limit, each of the others does so at its next token, and falls back too.
        """
        copied = GrammarMatcher(
            self.inner.deep_copy(), self._eos_token_ids, unforced=self._unforced, copies=self._copies
        )
        copied._followed = self._followed.copy()
        copied._forced, copied._num_followed = self._forced, self._num_followed
        return copied

    def start(self) -> None:
        """Compute the first mask and the forced first tokens; a long text is left to be sampled."""
        self.inner.compute_bitmask()
        if (self.inner.is_error() or len(self.inner.compute_ff_bytes()) > MAX_FIRST_BYTES) and self.fall_back():
            self.inner.compute_bitmask()
        self.forced_tokens()

    @_timed
    def accept(self, token_id: int) -> bool:
        """Advance by a token; return False, and set `error`, if the grammar does not allow it here.

        An end-of-sequence token is allowed when the text is complete, and changes nothing.
        """
        if not self._goes_on_by(token_id) and not (self.fall_back() and self._goes_on_by(token_id)):
            return False
        if token_id not in self._eos_token_ids:
            follows = self._num_followed < len(self._forced) and self._forced[self._num_followed] == token_id
            self._num_followed = self._num_followed + 1 if follows else len(self._forced)
            self._followed.append(token_id)
        return True

    def replay(self, token_ids: Sequence[int]) -> bool:
        """Advance by the output of an earlier run; return False if the grammar does not allow it."""
        for index, token_id in enumerate(token_ids):
            if index % _REPLAYED == 0 and not self.inner.is_error():
                self.inner.compute_bitmask()
            if not self.accept(token_id):
                return False
        return True

    @property
    def is_spent(self) -> bool:
        """Tell whether one of the copies has permanently exceeded a limit: each of the others soon will."""
        return self._copies.is_spent

    @property
    def error(self) -> str | None:
        """Return why matching cannot continue: a token that was not allowed, or a limit of llguidance."""
        return shortened(self.inner.get_error()) if self.inner.is_error() else None

    @_timed
    def forced_tokens(self) -> list[int]:
        """Return the next tokens that must follow, an end-of-sequence token if the text can only end; often empty.

        They are computed once and reused while they are followed.
        """
        return self._find_forced()

    def _find_forced(self) -> list[int]:
        if self.inner.is_error():
            return []
        if self.inner.is_stopped():
            return [self._eos_token_ids[0]]
        if self._num_followed == len(self._forced):
            forced = self.inner.compute_ff_tokens()[:_MAX_FORCED]
            if self.inner.is_error() and self.fall_back():
                return self._find_forced()
            self._forced, self._num_followed = forced, 0
        return self._forced[self._num_followed :]

    @_timed
    def num_allowed(self, token_ids: list[int]) -> int:
        """Return how many of these tokens could follow, one after the other, before an end-of-sequence token."""
        for index, token_id in enumerate(token_ids):
            if token_id in self._eos_token_ids:
                token_ids = token_ids[:index]
                break
        if not token_ids or self.inner.is_stopped():
            return 0
        num_allowed = int(self.inner.validate_tokens(token_ids))
        if self.inner.is_error() and self.fall_back():
            num_allowed = int(self.inner.validate_tokens(token_ids))
        return num_allowed

    def fall_back(self) -> bool:
        """Switch to the form with larger limits and no forced tokens, which is possible once; return whether it was."""
        start = None if self._unforced is None else self._unforced()
        self._unforced = None
        if start is None:
            self._copies.is_spent |= self.inner.is_error()
            return False
        unforced = GrammarMatcher(start.deep_copy(), self._eos_token_ids, copies=self._copies)
        if not unforced.replay(self._followed):
            return False
        self.inner = unforced.inner
        self._forced, self._num_followed = [], 0
        return True

    def _goes_on_by(self, token_id: int) -> bool:
        if token_id in self._eos_token_ids:
            return not self.inner.is_error() and bool(self.inner.is_accepting())
        return bool(self.inner.consume_tokens([token_id]))


def shortened(message: str) -> str:
    """Return llguidance's reason in one line, without the dump of its state."""
    text = " ".join(message.partition("<state>")[0].split()).rstrip(".")
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "…"
