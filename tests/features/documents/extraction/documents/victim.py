"""A worker whose reader is taken over: run as a module, with or without `hang`, it runs and reports all attacks."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import orjson
import psutil

from features.documents.extraction.documents.limits import Limits
from features.documents.extraction.documents.process.document_reader import DocumentReader
from tests.features.documents.extraction.documents.attacker import ATTACKS, MODULE, READS, WRITTEN, become_nobody

LIMITS = Limits(seconds=600)
_USR1_IGNORED = 1 << (signal.SIGUSR1 - 1)


def main() -> None:
    with DocumentReader(LIMITS, module=MODULE) as reader:
        # loaded before this process becomes nobody: Python may be readable only by root
        assert reader.parsers == MODULE
        become_nobody()
        if sys.argv[1:] == ["hang"]:
            print_readers_that_hang(reader)
        else:
            sys.stdout.buffer.write(orjson.dumps(attacked(reader)))


def attacked(reader: DocumentReader) -> dict[str, Any]:
    secret = ctypes.create_string_buffer(b"s" * len(WRITTEN))
    folder = Path(tempfile.mkdtemp())
    kept = folder / "kept"
    kept.write_bytes(b"kept")
    mode_before = kept.stat().st_mode
    stranger = os.fork()
    if stranger == 0:
        time.sleep(600)
    target = {
        "worker": os.getpid(),
        "address": ctypes.addressof(secret),
        "descriptor": 0,
        "stranger": stranger,
        "file": str(kept),
    }
    content = orjson.dumps(target)
    names = ("who", "run a thread", *READS, *ATTACKS)
    outcomes = {name: orjson.loads(reader.read_stored(content, name)) for name in names}
    reader.close()
    ids = [outcomes["who"][1][0], *(got for name, (_, got) in outcomes.items() if name.startswith("fork") and got)]
    seen = {
        "outcomes": outcomes,
        "secret": secret.value.decode(),
        "files": sorted(path.name for path in folder.iterdir()),
        "kept": kept.read_text() if kept.exists() else None,
        "mode": kept.stat().st_mode if kept.exists() else None,
        "mode_before": mode_before,
        "stranger": psutil.Process(stranger).status() if psutil.pid_exists(stranger) else None,
        "left": [process_id for process_id in ids if psutil.pid_exists(process_id)],
    }
    os.kill(stranger, signal.SIGKILL)
    return seen


def print_readers_that_hang(reader: DocumentReader) -> None:
    """Print the readers once one hangs, and wait to be killed."""
    threading.Thread(target=reader.read_stored, args=(b"{}", "hang"), daemon=True).start()
    while not any(map(ignores_usr1, found := psutil.Process().children(recursive=True))):
        time.sleep(0.01)
    sys.stdout.write(" ".join(str(each.pid) for each in found) + "\n")
    sys.stdout.flush()
    signal.pause()


def ignores_usr1(process: psutil.Process) -> bool:
    status = Path(f"/proc/{process.pid}/status").read_bytes()  # the user nobody cannot load a codec
    (ignored,) = (line.split()[1] for line in status.splitlines() if line.startswith(b"SigIgn:"))
    return bool(int(ignored, 16) & _USR1_IGNORED)


if __name__ == "__main__":
    main()
