"""A child process that applies every layer and reports failures: the confinement of readers on this machine."""

from __future__ import annotations

import json
import os
import sys
import time

from confined.child_process import ChildDiedError, ChildProcess
from confined.isolation import Layer, confine, seal

_MODULE = "confined.probe"
_MEMORY_BYTES = 1 << 30
_SECONDS = 30.0
_END = b"\n"


class ProbeError(Exception):
    """The probing process did not answer."""


def missing_layers() -> frozenset[Layer]:
    """Return the layers that confined processes cannot apply here. Raises ProbeError."""
    child = ChildProcess.start(_MODULE)
    give_up_at = time.monotonic() + _SECONDS
    try:
        answer = b"".join(iter(lambda: child.take(1, give_up_at), _END))
    except (ChildDiedError, TimeoutError) as error:
        why = str(error) or "no answer"
        raise ProbeError(f"a process that confines itself ends ({why}); see `python -m {_MODULE}`") from None
    finally:
        child.end()
    return frozenset(map(Layer, json.loads(answer)))


def main() -> None:
    parent_id = os.getppid()
    missing = seal() | confine(_MEMORY_BYTES, parent_id=parent_id)
    sys.stdout.buffer.write(json.dumps(sorted(missing)).encode() + _END)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
