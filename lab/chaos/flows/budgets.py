"""A tenant whose budget grows slowly, so that flows reach it all the time; no budget may ever be passed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress

from lab.chaos.patience import AWAY
from lab.chaos.stack import Stack

_LOOK_SECONDS = 0.5
_GROWTH_TOKENS = 1_000
"""Free after each look: one of two steps or documents more than that is refused."""
_PASSED = """
    SELECT tenant.name, spent_tokens, reserved_tokens, limit_tokens
    FROM budget JOIN tenant ON tenant.id = budget.tenant_id
    WHERE limit_tokens IS NOT NULL AND spent_tokens + reserved_tokens > greatest(limit_tokens, committed_tokens)
"""
_GROW = "UPDATE budget SET limit_tokens = spent_tokens + reserved_tokens + %s WHERE tenant_id = %s"


class BudgetWatch:
    """Looks at all budgets in a thread of its own, and lets that of one tenant grow."""

    def __init__(self, stack: Stack, tenant_id: str) -> None:
        self.findings: list[str] = []
        self.num_looks = 0
        self._stack = stack
        self._tenant_id = tenant_id
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="budgets", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_over.wait(_LOOK_SECONDS):
            with suppress(*AWAY):
                self.findings += self._look()
                self.num_looks += 1

    def _look(self) -> Iterator[str]:
        for name, spent, reserved, limit in self._stack.query(_PASSED):
            yield f"tenant {name} has spent {spent} and reserved {reserved} tokens of {limit}"
        self._stack.query(_GROW, _GROWTH_TOKENS, self._tenant_id)
