"""Compile grammars beside other work: a few threads, a time limit, a share for each tenant, a cache.

A thread cannot be stopped, so one that exceeds its time is left to end by itself and another replaces it. Their number
is limited, since each takes a core from the rest; beyond it other grammars wait, and none fails. A slow grammar costs
its own request and its own tenant's turn.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from engine.errors import InvalidRequestError
from engine.grammars.deep_stack import start_with_deep_stack
from engine.structured import StructuredOutput
from protocol.turns import Place, TurnQueue

NUM_THREADS = 2
"""Threads that compile at the same time, within their time limit."""

MAX_THREADS = 4
"""Threads alive, including those that have exceeded their time limit."""

TENANT_THREADS = NUM_THREADS - 1
"""Maximum of threads for the grammars of one tenant, overdue ones included: one is always left for the others."""

SLOW_SECONDS = 0.5
"""Processor time from which a grammar is slow: it takes no thread from tenants whose last grammar was not slow."""

MAX_SLOW_TENANTS = 1000
"""Maximum of tenants remembered for a slow last grammar."""

MAX_CACHED = 256
"""Maximum of compiled grammars kept; concurrent batches use few."""

MAX_CACHED_CHARACTERS = 4 * 2**20
"""Maximum of their sources' characters together.

Compiled in both forms (`matcher`), a character needs up to 160 bytes: 20,000 choices of 23 characters, 72 MB
(llguidance 1.9.1, x86-64, 2026-11-23). The newest grammar is kept, whatever its size.
"""

_LOOK_SECONDS = 0.05
"""Interval at which a waiter for a single grammar checks its time limit."""


def cpu_seconds(thread_id: int) -> float:
    """Return the processor time of a thread, which does not grow while a busy machine runs other threads."""
    if not hasattr(time, "pthread_getcpuclockid"):
        return time.monotonic()
    return time.clock_gettime(time.pthread_getcpuclockid(thread_id))


T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Grammars(Protocol[T_co]):
    """The methods of `engine.grammars.grammar.GrammarTokens` that the compiler uses. Both raise InvalidRequestError."""

    def load(self) -> None: ...
    def compile(self, structured: StructuredOutput) -> T_co: ...


class Compilation(Generic[T]):
    """The compilation of one grammar: when it is done there is either an `error` or a result."""

    __slots__ = (
        "_done",
        "compiled",
        "error",
        "has_thread",
        "num_characters",
        "places",
        "started_at",
        "structured",
        "tenant",
        "thread_id",
    )

    def __init__(self, structured: StructuredOutput) -> None:
        self.structured = structured
        self.num_characters = _num_characters(structured)
        """Counted once: a choice may list tens of thousands of texts."""
        self.places: dict[str, Place[Compilation[T]]] = {}
        """Its places in the queue for a thread, by requesting tenant."""
        self.has_thread = False
        """Whether it has, or had, a thread: it then waits no more."""
        self.tenant = ""
        """The tenant in whose turn it is compiled: of several that requested it, the first to get a turn."""
        self.thread_id: int | None = None
        self.started_at: float | None = None
        """On the clock of its thread."""
        self.compiled: T | None = None
        self.error: str | None = None
        self._done = threading.Event()

    @property
    def is_done(self) -> bool:
        """Tell whether it has succeeded or failed, which is final."""
        return self._done.is_set()

    def end(self, *, compiled: T | None = None, error: str | None = None) -> None:
        """Set its result, once."""
        self.compiled, self.error = compiled, error
        self._done.set()

    def wait(self, seconds: float) -> bool:
        """Wait until it is done, at most for the given time; return whether it is."""
        return self._done.wait(seconds)


class GrammarCompiler(Generic[T]):
    """Compile each grammar once. Thread-safe, except `wait`, which belongs to one thread.

    The limit is one of processor time, from when a thread starts on the grammar, without the loading of the model's
    tokenizer. A grammar that has exceeded it fails until its thread has ended.
    """

    def __init__(
        self,
        grammars: Grammars[T],
        *,
        timeout_seconds: float,
        num_threads: int = NUM_THREADS,
        is_spent: Callable[[T], bool] = lambda _: False,
        clock: Callable[[int], float] = cpu_seconds,
    ) -> None:
        """`is_spent` tells that a compiled grammar has become useless: the next request has it compiled again."""
        self._grammars = grammars
        self._is_spent = is_spent
        self._timeout_seconds = timeout_seconds
        self._num_threads = num_threads
        self._clock = clock
        self._cache: OrderedDict[StructuredOutput, Compilation[T]] = OrderedDict()
        self._lock = threading.Lock()
        self._has_finished = threading.Event()
        self._queue: TurnQueue[Compilation[T]] = TurnQueue()
        self._at_work: list[Compilation[T]] = []
        self._overdue: list[Compilation[T]] = []
        self._slow_tenants: OrderedDict[str, None] = OrderedDict()

    def compile(
        self, structured: StructuredOutput, *, tenant: str = "", keep_on: Callable[[], None] = lambda: None
    ) -> Compilation[T]:
        """Return a grammar's compilation when it is done; `keep_on` is called during the wait and may raise."""
        compilation = self.submit(structured, tenant=tenant)
        while not compilation.wait(_LOOK_SECONDS):
            self.check_times()
            keep_on()
        return compilation

    def submit(self, structured: StructuredOutput, *, tenant: str = "") -> Compilation[T]:
        """Return a grammar's compilation, which may already be done or failed; starts it if it is new."""
        with self._lock:
            compilation = self._cache.get(structured)
            if compilation is None or self._has_spent(compilation):
                compilation = self._cache[structured] = Compilation(structured)
                self._evict()
            self._cache.move_to_end(structured)
            if not compilation.has_thread and tenant not in compilation.places:
                compilation.places[tenant] = self._queue.put(compilation, tenant=tenant)
            self._start_threads()
        return compilation

    def check_times(self) -> None:
        """Fail compilations that have exceeded the time limit, and replace their threads."""
        with self._lock:
            for compilation in list(self._at_work):
                if self._seconds_at_work(compilation) > self._timeout_seconds:
                    compilation.end(
                        error=f"The grammar was not compiled within {self._timeout_seconds:g} s; make it simpler."
                    )
                    self._at_work.remove(compilation)
                    self._overdue.append(compilation)
            self._start_threads()

    def wait(self, seconds: float) -> None:
        """Return when a compilation has ended since the last call, or after the given time."""
        self._has_finished.wait(seconds)
        self._has_finished.clear()

    def _start_threads(self) -> None:
        """Start every compilation that may start. Needs the lock, like all methods below except the thread's own."""
        while compilation := self._pop():
            start_with_deep_stack(threading.Thread(target=self._work, args=(compilation,), name="grammar", daemon=True))

    def _seconds_at_work(self, compilation: Compilation[T]) -> float:
        if compilation.started_at is None or compilation.thread_id is None:
            return 0.0
        return self._clock(compilation.thread_id) - compilation.started_at

    def _pop(self) -> Compilation[T] | None:
        """Return the next grammar for a thread, None if none waits or no further thread may work."""
        num_slow = sum(map(self._is_slow, self._at_work))
        num_free = min(self._num_threads + num_slow, MAX_THREADS - len(self._overdue)) - len(self._at_work)
        if num_free <= 0:
            return None
        firsts = self._queue.firsts()
        place = next((each for each in firsts if self._has_thread_for(each.tenant, num_slow=num_slow)), None)
        return None if place is None else self._taken(place)

    def _taken(self, place: Place[Compilation[T]]) -> Compilation[T]:
        """Return the compilation waiting there, which now has a thread: it leaves other tenants' queues."""
        compilation = place.work
        for other in compilation.places.values():
            if other is not place:
                self._queue.leave(other)
        compilation.places.clear()
        compilation.has_thread, compilation.tenant = True, place.tenant
        self._at_work.append(compilation)
        return self._queue.take(place)

    def _has_thread_for(self, tenant: str, *, num_slow: int) -> bool:
        """Tell whether a tenant may have a thread now: slow grammars of several tenants delay only each other."""
        num_before = len(self._at_work) - (0 if tenant in self._slow_tenants else num_slow)
        return num_before < self._num_threads and self._num_threads_of(tenant) < TENANT_THREADS

    def _is_slow(self, compilation: Compilation[T]) -> bool:
        return self._seconds_at_work(compilation) > SLOW_SECONDS

    def _note_pace(self, compilation: Compilation[T]) -> None:
        self._slow_tenants.pop(compilation.tenant, None)
        if self._is_slow(compilation):
            self._slow_tenants[compilation.tenant] = None
        if len(self._slow_tenants) > MAX_SLOW_TENANTS:
            self._slow_tenants.popitem(last=False)

    def _num_threads_of(self, tenant: str) -> int:
        return sum(compilation.tenant == tenant for compilation in (*self._at_work, *self._overdue))

    def _evict(self) -> None:
        """Drop the least recently used grammars beyond the limits."""
        num_characters = sum(compilation.num_characters for compilation in self._cache.values())
        while len(self._cache) > MAX_CACHED or (len(self._cache) > 1 and num_characters > MAX_CACHED_CHARACTERS):
            _, forgotten = self._cache.popitem(last=False)
            num_characters -= forgotten.num_characters

    def _has_spent(self, compilation: Compilation[T]) -> bool:
        return compilation.compiled is not None and self._is_spent(compilation.compiled)

    def _forget(self, compilation: Compilation[T]) -> None:
        if self._cache.get(compilation.structured) is compilation:
            del self._cache[compilation.structured]

    def _work(self, compilation: Compilation[T]) -> None:
        """Compile one grammar after the other until none waits, or too many threads are alive."""
        following: Compilation[T] | None = compilation
        while following is not None:
            following = self._compile(following)

    def _compile(self, compilation: Compilation[T]) -> Compilation[T] | None:
        """Compile it, and return what this thread compiles next."""
        compiled, error = None, None
        try:
            self._grammars.load()
            with self._lock:
                compilation.thread_id = threading.get_ident()
                compilation.started_at = self._clock(compilation.thread_id)
            compiled = self._grammars.compile(compilation.structured)
        except InvalidRequestError as failure:
            error = str(failure)
        except BaseException as failure:  # noqa: BLE001 - the edge of the thread: a request without an answer hangs
            error = f"The grammar could not be compiled: {type(failure).__name__}: {failure}"
        with self._lock:
            self._note_pace(compilation)
            if compilation in self._overdue:
                self._overdue.remove(compilation)
                self._forget(compilation)
            else:
                compilation.end(compiled=compiled, error=error)
                self._at_work.remove(compilation)
            following = self._pop()
        self._has_finished.set()
        return following


def _num_characters(structured: StructuredOutput) -> int:
    texts = (structured.json, structured.regex, structured.grammar, *(structured.choice or ()))
    return sum(len(text) for text in texts if isinstance(text, str))
