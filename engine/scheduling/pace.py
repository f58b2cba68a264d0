"""Learn how long a step takes and estimate when a sequence would end. The clock is passed in.

The estimate serves policies with deadlines; it is no guarantee.
"""

from __future__ import annotations

from collections.abc import Callable

from engine.scheduling.admission import OutputForecast
from engine.scheduling.request import Sequence

_SMOOTHING = 0.05
"""Weight of the newest step: about the last 20 count, so that one long prefill does not dominate."""


class Pace:
    """Seconds per step, as a moving mean over the intervals between steps while there is work.

    `clock` returns seconds from the same epoch as deadlines, which are compared with it.
    """

    def __init__(self, clock: Callable[[], float], forecast: OutputForecast, *, max_num_batched_tokens: int) -> None:
        self._clock = clock
        self._forecast = forecast
        self._budget = max_num_batched_tokens
        self._last_step: float | None = None
        self._step_tokens = 0.0
        self._grammar_seconds = 0.0
        self.step_seconds = 0.0
        self.last_step_seconds = 0.0
        """Of the last step alone; 0 after a pause."""

    def now(self) -> float:
        """Return the current time."""
        return self._clock()

    @property
    def tokens_per_second(self) -> float:
        """Return the tokens per second of step time apart from grammars; 0 before two steps were observed."""
        seconds = self.step_seconds - self._grammar_seconds
        return self._step_tokens / seconds if seconds > 0.0 else 0.0

    def observe_step(self, *, num_tokens: int, grammar_seconds: float) -> None:
        """Add the time since the last step to the mean, with its tokens and the time spent on grammars."""
        now = self._clock()
        self.last_step_seconds = 0.0
        if self._last_step is not None:
            took = self.last_step_seconds = now - self._last_step
            weight = _SMOOTHING if self.step_seconds else 1.0
            self.step_seconds += weight * (took - self.step_seconds)
            self._step_tokens += weight * (num_tokens - self._step_tokens)
            self._grammar_seconds += weight * (min(grammar_seconds, took) - self._grammar_seconds)
        self._last_step = now

    def pause(self) -> None:
        """Leave the time until the next step out of the mean: the engine is idle."""
        self._last_step = None

    def seconds_to_run(self, sequence: Sequence) -> float:
        """Return how long a waiting sequence would take if it started now; 0 before two steps were observed."""
        num_steps = -(-sequence.num_tokens // self._budget) + int(self._forecast.remaining_tokens([sequence])[0])
        return num_steps * self.step_seconds
