"""Where one sequence's output stands in its grammar: at first with little work allowed for each token, then with more.

Made by grammar.py, which compiles a grammar twice. The first form finds the tokens that must follow, and is allowed
little work: llguidance finds all of them at once, on the thread that runs the steps, and nothing but its limits ends
that. Where they do, the second form goes on, which is allowed more and forces nothing: a token then costs what its own
mask costs, however long the text that must follow.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

_MAX_FORCED = 1024
"""Forced tokens that a matcher keeps."""

MAX_FIRST_BYTES = 10_000
"""Of a text with which a grammar begins, and that is cut into tokens at once; later ones are bounded by the fuel."""

_REPLAYED = 64
"""Tokens that are followed between two masks, each of which gives llguidance its fuel anew."""

_MAX_SHOWN = 400
"""Characters of llguidance's own message that an error quotes."""


_P = ParamSpec("_P")
_R = TypeVar("_R")


def _timed(
    work: Callable[Concatenate[GrammarMatcher, _P], _R],
) -> Callable[Concatenate[GrammarMatcher, _P], _R]:
    """Count how long a method works."""

    @functools.wraps(work)
    def timed(matcher: GrammarMatcher, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        start = time.perf_counter()
        try:
            return work(matcher, *args, **kwargs)
        finally:
            matcher.seconds += time.perf_counter() - start

    return timed


class _Copies:
    """What all copies of a matcher share."""

    __slots__ = ("is_spent",)

    def __init__(self) -> None:
        self.is_spent = False


class GrammarMatcher:
    """Where one sequence's output stands in its grammar. Not thread-safe."""

    __slots__ = ("_copies", "_eos_token_ids", "_followed", "_forced", "_num_followed", "_unforced", "inner", "seconds")

    def __init__(
        self, matcher: Any, eos_token_ids: tuple[int, ...], *, unforced: Any = None, copies: _Copies | None = None
    ) -> None:
        """Take llguidance's matcher at the start, and `unforced` as the one to go on with where its limits end it."""
        self.inner = matcher
        self._copies = _Copies() if copies is None else copies
        self._eos_token_ids = eos_token_ids
        self._unforced = unforced  # at the start, shared by all copies; None once it is in use
        self._followed: list[int] = []
        self._forced: list[int] = []  # as they were found last, of which so many were followed; copies share it
        self._num_followed = 0
        self.seconds = 0.0
        """How long it has worked since this was last set to 0, masks not counted."""

    def copy(self) -> GrammarMatcher:
        """Return a matcher at the same place. Of llguidance's limits the copies share those of the regexes.

        Where one copy meets such a limit, each of the others does so at its next token, and falls back too.
        """
        copied = GrammarMatcher(
            self.inner.deep_copy(), self._eos_token_ids, unforced=self._unforced, copies=self._copies
        )
        copied._followed = self._followed.copy()
        copied._forced, copied._num_followed = self._forced, self._num_followed
        return copied

    def start(self) -> None:
        """Find the first mask and the tokens that must come first; a long text is left to be sampled."""
        self.inner.compute_bitmask()
        if (self.inner.is_error() or len(self.inner.compute_ff_bytes()) > MAX_FIRST_BYTES) and self.fall_back():
            self.inner.compute_bitmask()
        self.forced_tokens()

    @_timed
    def accept(self, token_id: int) -> bool:
        """Go on by a token; False, and an `error` from then on, if the grammar does not allow it here.

        An end-of-sequence token is allowed where the text is complete, and changes nothing.
        """
        if not self._goes_on_by(token_id) and not (self.fall_back() and self._goes_on_by(token_id)):
            return False
        if token_id not in self._eos_token_ids:
            follows = self._num_followed < len(self._forced) and self._forced[self._num_followed] == token_id
            self._num_followed = self._num_followed + 1 if follows else len(self._forced)
            self._followed.append(token_id)
        return True

    def replay(self, token_ids: Sequence[int]) -> bool:
        """Go on by the output of an earlier run; False if the grammar does not allow it."""
        for index, token_id in enumerate(token_ids):
            if index % _REPLAYED == 0 and not self.inner.is_error():
                self.inner.compute_bitmask()
            if not self.accept(token_id):
                return False
        return True

    @property
    def is_spent(self) -> bool:
        """Tell whether one of the copies has met a limit for good: then each of the others soon does."""
        return self._copies.is_spent

    @property
    def error(self) -> str | None:
        """Return why nothing can be matched any more: a token that was not allowed, or a limit of llguidance."""
        return shortened(self.inner.get_error()) if self.inner.is_error() else None

    @_timed
    def forced_tokens(self) -> list[int]:
        """Return the next tokens that must follow, an end-of-sequence token where the text can only end; often none.

        They are found once for as long as they are followed.
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
        """Return how many of these tokens, one after the other, could follow before an end-of-sequence token."""
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
        """Go on with the form that is allowed more and forces nothing; tell whether that was possible: it is once."""
        if self._unforced is None:
            self._copies.is_spent |= self.inner.is_error()
            return False
        unforced = GrammarMatcher(self._unforced.deep_copy(), self._eos_token_ids, copies=self._copies)
        self._unforced = None
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
