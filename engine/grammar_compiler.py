"""Compile grammars beside the engine's loop: a few threads, a time limit, a cache. Knows no grammar library.

A thread cannot be stopped, so one that has run over its time is left to end by itself and another takes its place: a
slow grammar costs its own request and nobody else's.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Protocol

from engine.errors import InvalidRequestError
from engine.grammar import Matcher
from engine.structured import StructuredOutput

NUM_THREADS = 2
MAX_CACHED = 256
"""Compiled grammars that are kept; the batches of a moment use few."""


class Grammars(Protocol):
    """What the compiler needs of `engine.grammar.GrammarTokens`. Both methods raise InvalidRequestError."""

    def load(self) -> None: ...
    def compile(self, structured: StructuredOutput) -> Matcher: ...


class Compilation:
    """One grammar on its way: `matcher` or `error` is set when it is done."""

    __slots__ = ("error", "matcher", "started_at", "structured")

    def __init__(self, structured: StructuredOutput) -> None:
        self.structured = structured
        self.started_at: float | None = None
        self.matcher: Matcher | None = None
        self.error: str | None = None

    @property
    def is_done(self) -> bool:
        """Tell whether it has succeeded or failed; it never changes after that."""
        return self.matcher is not None or self.error is not None


class GrammarCompiler:
    """Compile each grammar once. `submit`, `check_times` and `wait` belong to one thread.

    The time limit runs from when a thread takes the grammar up, and not while the model's tokenizer is loaded.
    """

    def __init__(
        self, grammars: Grammars, *, timeout_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._grammars = grammars
        self._timeout_seconds = timeout_seconds
        self._clock = clock
        self._cache: OrderedDict[StructuredOutput, Compilation] = OrderedDict()
        self._lock = threading.Lock()
        self._has_finished = threading.Event()
        self._queue: deque[Compilation] = deque()
        self._at_work: list[Compilation] = []

    def submit(self, structured: StructuredOutput) -> Compilation:
        """Return the compilation of a grammar, which may be done already, or failed; starts it if it is new."""
        compilation = self._cache.get(structured)
        if compilation is None:
            compilation = self._cache[structured] = Compilation(structured)
            with self._lock:
                self._queue.append(compilation)
            self._start_threads()
            if len(self._cache) > MAX_CACHED:
                self._cache.popitem(last=False)
        self._cache.move_to_end(structured)
        return compilation

    def check_times(self) -> None:
        """Fail what has run for longer than the time limit, and replace its thread."""
        with self._lock:
            now = self._clock()
            for compilation in list(self._at_work):
                if compilation.started_at is not None and now - compilation.started_at > self._timeout_seconds:
                    compilation.error = (
                        f"The grammar was not compiled within {self._timeout_seconds:g} s; make it simpler."
                    )
                    self._at_work.remove(compilation)
                    self._cache.pop(compilation.structured, None)  # it may have been the machine that was slow
        self._start_threads()

    def wait(self, seconds: float) -> None:
        """Return when something was done since the last call, or after the given time."""
        self._has_finished.wait(seconds)
        self._has_finished.clear()

    def _start_threads(self) -> None:
        with self._lock:
            missing = min(NUM_THREADS - len(self._at_work), len(self._queue))
            taken = [self._queue.popleft() for _ in range(missing)]
            self._at_work += taken
        for compilation in taken:
            threading.Thread(target=self._work, args=(compilation,), name="grammar", daemon=True).start()

    def _work(self, compilation: Compilation) -> None:
        """Compile one grammar after the other until none waits, or this one has run over its time."""
        following: Compilation | None = compilation
        while following is not None:
            following = self._compile(following)

    def _compile(self, compilation: Compilation) -> Compilation | None:
        """Compile and return what this thread is to compile next."""
        matcher, error = None, None
        try:
            self._grammars.load()
            with self._lock:
                compilation.started_at = self._clock()
            matcher = self._grammars.compile(compilation.structured)
        except InvalidRequestError as failure:
            error = str(failure)
        except BaseException as failure:  # noqa: BLE001 - the edge of the thread: a request that hears nothing hangs
            error = f"The grammar could not be compiled: {type(failure).__name__}: {failure}"
        with self._lock:
            if compilation.is_done:  # it ran over its time
                return None
            compilation.matcher, compilation.error = matcher, error
            self._at_work.remove(compilation)
            following = self._queue.popleft() if self._queue else None
            if following is not None:
                self._at_work.append(following)
        self._has_finished.set()
        return following
