"""A steady load of batches, some of them cancelled, expired or deleted; the outcome of each is checked."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from lab.chaos import checked_batches
from lab.chaos.checked_batches import ENDS
from lab.chaos.expected import MAX_TOKENS, Answer, Found, Lines
from lab.chaos.load import Load
from lab.chaos.patience import PatientClient, patiently
from lab.chaos.receiver import Received
from lab.chaos.stack import MODEL, Stack

NUM_OPEN = 8
"""Open batches: enough that workers always have work."""
_SIZES = (50, 500, 1_000, 3_000)
_TOO_LATE = 409


class Fate(StrEnum):
    """What happens to a batch."""

    LEFT = "left alone"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    DELETED = "deleted"


_FATES = (Fate.LEFT,) * 7 + (Fate.CANCELLED, Fate.EXPIRED, Fate.DELETED)
_RUN_OUT = "UPDATE batch SET expires_at = clock_timestamp() WHERE id = %s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A batch that has ended."""

    batch_id: str
    fate: Fate
    status: str
    num_lines: int
    found: Found
    problems: Sequence[str]


class Traffic(Load[Outcome]):
    """Threads that submit batches, wait for their ends and check their files; a unit is a line."""

    noun, unit = "batch", "lines"

    def __init__(
        self,
        stack: Stack,
        received: Received,
        *,
        num_lines: int,
        seed: int,
        max_tokens: int = MAX_TOKENS,
        answers_to: Callable[[Sequence[str]], Mapping[str, Answer]] | None = None,
    ) -> None:
        """`answers_to` is set when workers compute with the model; otherwise answers repeat the prompts."""
        super().__init__(num_least=num_lines, num_threads=NUM_OPEN)
        self._stack = stack
        self._received = received
        self._seed = seed
        self._max_tokens = max_tokens
        self._answers_to = answers_to

    def prepare(self) -> None:
        """Give every tenant a webhook."""
        for key in self._stack.keys:
            event_types = [f"batch.{status}" for status in ENDS]
            endpoint = {"url": self._received.url, "name": "chaos", "event_types": event_types}
            self._client(key).call("POST", "/webhook_endpoints", json=endpoint)

    @property
    def num_finished(self) -> int:
        return sum(outcome.num_lines for outcome in self.outcomes)

    def size_of(self, number: int, *, num_left: int) -> int:
        largest = max(_SIZES[0], self.num_least // 10)
        size = min(random.Random(f"{self._seed} size {number}").choice(_SIZES), largest)
        return min(size, num_left) if num_left else size

    def carry_out(self, number: int, size: int) -> Outcome:
        rng = random.Random(f"{self._seed} batch {number}")
        client = self._client(self._stack.keys[number % len(self._stack.keys)])
        lines = Lines(name=f"s{self._seed}b{number}", num=size, model=MODEL, max_tokens=self._max_tokens)
        priority = rng.choice(("urgent", "normal", "normal", "bulk"))
        batch_id = checked_batches.submit(client, lines, priority=priority)
        fate = rng.choice(_FATES)
        batch = self._wait(client, batch_id, fate, after=rng.random() * size)
        answers = self._answers_to and self._answers_to([lines.prompt(line) for line in range(size)])
        found, problems = checked_batches.check(self._stack, client, batch, lines, answers=answers)
        if fate is Fate.DELETED:
            client.call("DELETE", f"/batches/{batch_id}", is_done=(404,))
        status = batch["status"]
        return Outcome(batch_id=batch_id, fate=fate, status=status, num_lines=size, found=found, problems=problems)

    def _client(self, key: str) -> PatientClient:
        return PatientClient(f"{self._stack.base_url}/v1", key)

    def _wait(self, client: PatientClient, batch_id: str, fate: Fate, *, after: float) -> dict[str, Any]:
        """Return the batch once it has ended; end it early if that is its fate."""

        def is_far(batch: dict[str, Any]) -> bool:
            has_begun = batch["status"] == "in_progress"
            return batch["status"] in ENDS or (has_begun and batch["request_counts"]["completed"] >= after)

        is_early = fate in (Fate.CANCELLED, Fate.EXPIRED)
        if is_early and client.ended(f"/batches/{batch_id}", is_far)["status"] not in ENDS:
            self._end_early(client, batch_id, fate)
        return checked_batches.until_ended(client, batch_id)

    def _end_early(self, client: PatientClient, batch_id: str, fate: Fate) -> None:
        """Cancel or expire a batch."""
        if fate is Fate.CANCELLED:
            client.call("POST", f"/batches/{batch_id}/cancel", is_done=(_TOO_LATE,))
        else:
            patiently(lambda: self._stack.query(_RUN_OUT, batch_id))
