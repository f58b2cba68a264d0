"""`tokenmill batch watch` as a user leaves it: what it says of a batch that waits, and what Ctrl-C does not end."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from tests.cli.service import Service, clean_environment


def test_a_batch_that_waits_says_for_what_and_goes_on_after_ctrl_c(service: Service, batch_file: Path) -> None:
    batch_id = service.run("batch", "create", batch_file).stdout.strip()
    service.validate(batch_id)
    with subprocess.Popen(
        [sys.executable, "-m", "cli.main", "batch", "watch", batch_id],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean_environment(**service.variables),
    ) as process:  # fmt: skip
        assert process.stderr is not None
        first = process.stderr.readline()
        process.send_signal(signal.SIGINT)
        printed, said = process.communicate(timeout=60)
    assert first.startswith("No running worker serves the model 'tiny'.")
    assert said.splitlines()[-2:] == [
        f"{batch_id} goes on. Watch it again: tokenmill batch watch {batch_id}",
        f"Cancel it: tokenmill batch cancel {batch_id}",
    ]
    assert (process.returncode, printed) == (130, "")
    assert service.run("batch", "show", batch_id).stdout.splitlines()[0].split() == ["status", "in_progress"]
