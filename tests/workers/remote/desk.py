"""Asks a fake server for lines, without a database or a chunk."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from tests.workers.remote.fake_server import FakeServer
from workers.remote.calls.call import Call, Permit
from workers.remote.calls.caller import Caller
from workers.remote.calls.outcomes import Outcome
from workers.remote.reading import Expected
from workers.remote.verdicts import Unloaded, Unpaid, Verdict

PLAIN = Expected(is_chat=True, num_choices=1, answers_as="served", most_prompt_tokens=100, most_completion_tokens=4)


@dataclass(slots=True)
class Desk:
    """Asks a server for lines and waits for their outcomes."""

    server: FakeServer
    caller: Caller
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def ask(
        self,
        *texts: str,
        seconds_left: float = 3600.0,
        adapter: str | None = None,
        permit: Permit | None = None,
        **expected: Any,
    ) -> None:
        for number, text in enumerate(texts):
            body: dict[str, Any] = {"model": "served", "messages": [{"role": "user", "content": text}]}
            if expected.get("num_logprobs") is not None:
                body["logprobs"] = True
            known = replace(PLAIN, **expected)
            call = Call(
                path="chat/completions",
                body=body,
                expected=known,
                order=(1, 0, text, number),
                seconds_left=seconds_left,
                adapter=adapter,
                permit=permit,
            )
            self.caller.submit(text, call, partial(self._note, text))

    def _note(self, text: str, outcome: Outcome) -> None:
        with self._changed:
            self.outcomes[text] = outcome
            self._changed.notify_all()

    def wait(self, num: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.outcomes) >= num, timeout=60), self.outcomes

    def verdict_of(self, text: str, **options: Any) -> Verdict | Unpaid | Unloaded:
        self.ask(text, **options)
        self.wait(1)
        return self.outcomes[text].verdict


def wait_until(condition: Callable[[], bool]) -> None:
    for _ in range(1200):
        if condition():
            return
        threading.Event().wait(0.05)
    raise AssertionError("it never became true")
