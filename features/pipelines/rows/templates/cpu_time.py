"""The limit on the CPU time of one run's prompts, for all rows together; each row has its own limits too."""

from __future__ import annotations

from dataclasses import dataclass

from jobs.errors import InputError

CODE = "template_cpu_exceeded"


@dataclass(slots=True, kw_only=True)
class CpuTime:
    """CPU seconds used and allowed."""

    allowed_seconds: float
    used_seconds: float = 0.0

    def add(self, seconds: float) -> None:
        """Add used seconds. Raise InputError once they exceed the limit."""
        self.used_seconds += seconds
        if self.used_seconds > self.allowed_seconds:
            raise InputError(
                f"The prompts have taken {self.used_seconds:,.1f} s of CPU time, and {self.allowed_seconds:,g} s are "
                "allowed for all rows together. Make the templates simpler, or take fewer rows.",
                code=CODE,
            )
