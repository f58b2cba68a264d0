"""Measure the processor time of uploading small files, one by one and many in a request.

python -m lab.extraction uploads [--files 1204] [--bytes 2000] [--together 200]

Counts the API's process and this one's, on a stack that it starts: the client is the official one, as in commands.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from functools import partial

import httpx
import openai

from benchmarks.arguments import natural
from lab import no_compute
from lab.extraction.first_records import cpu_seconds
from lab.own_stack import OwnStack, own_stack, tokenmill_here

Named = tuple[str, bytes]


def main(argv: Sequence[str] | None = None) -> int:
    """Upload the files in both ways and print seconds of processor time; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m lab.extraction uploads", description=__doc__)
    parser.add_argument("--files", type=natural, default=1204)
    parser.add_argument("--bytes", type=natural, default=2000, help="size of a file")
    parser.add_argument("--together", type=natural, default=200, help="files of a request; a command sends 200")
    arguments = parser.parse_args(argv)
    files = [
        (f"{number}.txt", f"Letter {number}. ".encode().ljust(arguments.bytes, b"."))
        for number in range(arguments.files)
    ]
    with own_stack(tokenmill_here(), environment=no_compute.environment(step_seconds=0.0)) as stack:
        client = stack.client()
        together = partial(several, client, num_together=arguments.together)
        print("              client     API")
        for name, send in (("one by one", partial(one_by_one, client)), ("together", together)):
            send(files[:2])  # what is loaded with the first file
            print(f"{name:<12}{measured(stack, partial(send, files))}", flush=True)
    print(f"load average of a minute: {os.getloadavg()[0]:.1f}")
    return 0


def one_by_one(client: openai.OpenAI, files: Sequence[Named]) -> None:
    for file in files:
        client.files.create(file=file, purpose="user_data")


def several(client: openai.OpenAI, files: Sequence[Named], *, num_together: int) -> None:
    for at in range(0, len(files), num_together):
        client.post(
            "/files/several",
            cast_to=httpx.Response,
            body={"purpose": "user_data"},
            files=[("files", file) for file in files[at : at + num_together]],
            options={"headers": {"Content-Type": "multipart/form-data"}},
        )


def measured(stack: OwnStack, work: Callable[[], None]) -> str:
    """Do the work; return the seconds of processor time that client and API took, and both together."""
    api = stack.role("api")
    before = time.process_time(), cpu_seconds(api)
    work()
    client_seconds, api_seconds = time.process_time() - before[0], cpu_seconds(api) - before[1]
    return f"{client_seconds:6.2f} s {api_seconds:6.2f} s   together {client_seconds + api_seconds:.2f} s"


if __name__ == "__main__":
    raise SystemExit(main())
