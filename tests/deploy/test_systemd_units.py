"""Tests of deploy/systemd: units that systemd accepts, for commands that exist, with the grace that a drain needs."""

from __future__ import annotations

import configparser
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
UNITS = {path.name: path for path in (ROOT / "deploy" / "systemd").glob("*.service")}
ANALYSER = shutil.which("systemd-analyze")


def value(unit: Path, section: str, name: str) -> str:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # systemd's names have capitals
    parser.read(unit)
    return parser[section][name]


def test_a_unit_runs_a_role_and_one_a_worker() -> None:
    commands = {name: value(unit, "Service", "ExecStart").split()[1:] for name, unit in UNITS.items()}
    assert commands == {
        "tokenmill@.service": ["%i"],
        "tokenmill-worker@.service": ["worker", "--model", "%i", "$WORKER_OPTIONS"],
    }


@pytest.mark.parametrize("name", UNITS)
def test_a_stop_has_the_grace_that_compose_gives(name: str) -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    grace = services["worker-cpu"]["stop_grace_period"]
    assert value(UNITS[name], "Service", "TimeoutStopSec") + "s" == grace
    assert value(UNITS[name], "Service", "KillMode") == "mixed", "SIGTERM to the role alone, as in a container"


@pytest.mark.skipif(ANALYSER is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("name", UNITS)
def test_systemd_accepts_a_unit(name: str, tmp_path: Path) -> None:
    assert ANALYSER is not None
    text = UNITS[name].read_text().replace("/opt/tokenmill/venv/bin/tokenmill", "/bin/true")
    unit = tmp_path / name.replace("@", "@demo")
    unit.write_text(text.replace("User=tokenmill", "User=root"))
    verified = subprocess.run([ANALYSER, "verify", unit], capture_output=True, text=True, check=False, timeout=60)
    assert (verified.returncode, verified.stderr) == (0, "")
