"""What the prompts of one run may take of a CPU, all rows together: a row has limits of its own, a run many rows."""

from __future__ import annotations

from dataclasses import dataclass

from jobs.errors import InputError

CODE = "template_cpu_exceeded"


@dataclass(slots=True, kw_only=True)
class CpuTime:
    """Seconds that were taken, of those that are allowed."""

    allowed_seconds: float
    used_seconds: float = 0.0

    def add(self, seconds: float) -> None:
        """Raise InputError once more is taken than is allowed."""
        self.used_seconds += seconds
        if self.used_seconds > self.allowed_seconds:
            raise InputError(
                f"The prompts have taken {self.used_seconds:,.1f} s of CPU time, and {self.allowed_seconds:,g} s are "
                "allowed for all rows together. Make the templates simpler, or take fewer rows.",
                code=CODE,
            )
