"""Measure containers at rest: processor time by cgroup, and memory by the processes' proportional share (PSS).

    DOCKER_HOST=unix://… python -m lab.containers_at_rest PROJECT --seconds 60

Needs root. PROJECT is docker-compose's, by default the name of its folder.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.arguments import natural

_CGROUPS = Path("/sys/fs/cgroup")
_PSS = re.compile(r"^Pss:\s+(\d+) kB", flags=re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    name: str
    id: str

    @property
    def processor_seconds(self) -> float:
        """Processor time since the start, of health checks, too."""
        first = _CGROUPS / "cpuacct" / "docker" / self.id / "cpuacct.usage"
        if first.exists():
            return int(first.read_text()) / 1e9
        second = _CGROUPS / "system.slice" / f"docker-{self.id}.scope" / "cpu.stat"
        return int(second.read_text().split()[1]) / 1e6

    @property
    def pss_mb(self) -> float:
        top = _docker("top", self.id, "-eo", "pid").split()[1:]
        rollups = [Path("/proc", pid, "smaps_rollup").read_text() for pid in top]
        return sum(int(kilobytes) for text in rollups for kilobytes in _PSS.findall(text)) / 1000


def containers(project: str) -> Iterator[Container]:
    listed = _docker("ps", "--no-trunc", "--filter", f"label=com.docker.compose.project={project}",
                     "--format", "{{.ID}} {{.Names}}")  # fmt: skip
    for line in sorted(listed.splitlines(), key=lambda line: line.split()[1]):
        container_id, name = line.split()
        yield Container(name=name, id=container_id)


def _docker(*arguments: str) -> str:
    return subprocess.run(["docker", *arguments], check=True, capture_output=True, text=True).stdout


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m lab.containers_at_rest", description=__doc__)
    parser.add_argument("project")
    parser.add_argument("--seconds", type=natural, default=60)
    arguments = parser.parse_args()
    found = list(containers(arguments.project))
    if not found:
        parser.error(f"no container of the project {arguments.project!r} runs.")
    before, began = {each.name: each.processor_seconds for each in found}, time.monotonic()
    time.sleep(arguments.seconds)
    took = time.monotonic() - began
    shares = {each.name: (each.processor_seconds - before[each.name]) / took * 100 for each in found}
    memory = {each.name: each.pss_mb for each in found}
    for name, share in shares.items():
        print(f"{name}: {share:.2f} % of a core, {memory[name]:.0f} MB")
    together = f"{sum(shares.values()):.2f} % of a core, {sum(memory.values()):.0f} MB"
    print(f"together: {together}; load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
