"""Measure how busy the machine is while an engine runs, from Linux's /proc."""

from __future__ import annotations

import os
import time
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


class MachineWatch:
    """The CPU time of all processes together, sampled now and then, and that of one process."""

    seconds_between_looks = 0.5
    seconds_between_reports = 10.0

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._looks: list[tuple[float, float]] = []
        self.look()

    def look(self) -> None:
        """Sample the time and the machine's CPU seconds since its start."""
        self._looks.append((time.perf_counter(), _busy_seconds()))

    def process_seconds(self) -> float:
        """Return the CPU seconds of the process and of the children that it has waited for."""
        try:
            fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0  # it has just ended
        return sum(map(int, fields[11:15])) / _TICKS

    def other_cores(self, started: float, seconds: float, *, cpu_seconds: float) -> float:
        """Return how many cores others kept busy; `started` is of `time.perf_counter`, shared by all processes.

        `cpu_seconds` is what the engine reports as its own use.
        """
        self.look()
        busy = self._busy_at(started + seconds) - self._busy_at(started)
        return max(0.0, (busy - cpu_seconds) / seconds)

    def _busy_at(self, moment: float) -> float:
        """Return the CPU seconds at a moment, interpolated between two samples."""
        before, after = self._looks[0], self._looks[-1]
        for look in self._looks:
            if look[0] <= moment:
                before = look
            else:
                after = look
                break
        if after[0] <= before[0]:
            return before[1]
        share = min(1.0, max(0.0, (moment - before[0]) / (after[0] - before[0])))
        return before[1] + share * (after[1] - before[1])


def _busy_seconds() -> float:
    user, nice, system, _idle, _iowait, irq, softirq = map(int, Path("/proc/stat").read_text().split()[1:8])
    return (user + nice + system + irq + softirq) / _TICKS
