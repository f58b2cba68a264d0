"""Measure how long a page takes to become a record while other tenants have the slowest possible files read.

python -m lab.extraction.slow_documents [--strangers 1,8] [--tokenmill OTHER/.venv/bin/tokenmill]

Starts its own stack, of any revision, with the demo model. A tenant extracts the fields of one page repeatedly: alone,
then beside k other tenants, each with 1,000 files that take a reader's maximum of time or memory, then alone again.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from benchmarks.arguments import natural, naturals
from examples.make_papers import make_papers
from lab.extraction import worst_files
from lab.own_stack import OwnStack, own_stack

_EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
_SCHEMA = json.loads((_EXAMPLES / "extract" / "invoice.schema.json").read_text())
_POLL_SECONDS = 0.05
_UNDER_WAY = "SELECT count(DISTINCT tenant_id) FROM chunk WHERE state = 'leased' AND model = ':prepare'"
_LOAD = "load averages of a minute, before and after"


class Tenant:
    """A tenant that has documents read."""

    def __init__(self, base_url: str, api_key: str) -> None:
        self._http = httpx.Client(
            base_url=base_url, headers={"Authorization": f"Bearer {api_key}"}, timeout=httpx.Timeout(600)
        )

    def extract(self, contents: Mapping[str, bytes]) -> str:
        """Upload documents and start an extraction; return its id."""
        collection = self._post("/collections", {"name": f"documents {time.monotonic_ns()}"})["id"]
        ids = [self._upload(name, content) for name, content in contents.items()]
        for start in range(0, len(ids), 500):
            self._post(f"/collections/{collection}/documents", {"file_ids": ids[start : start + 500]})
        body = {"collection_id": collection, "schema": _SCHEMA, "model": "demo", "completion_window": "24h"}
        return str(self._post("/extractions", body)["id"])

    def seconds(self, name: str, content: bytes) -> float:
        """Return the time from the request to a document's record."""
        collection = self._post("/collections", {"name": name})["id"]
        file_id = self._upload(name, content)
        self._post(f"/collections/{collection}/documents", {"file_ids": [file_id]})
        body = {"collection_id": collection, "schema": _SCHEMA, "model": "demo", "completion_window": "24h"}
        started = time.monotonic()
        extraction = self._post("/extractions", body)["id"]
        while (result := self._get(f"/extractions/{extraction}"))["ended_at"] is None:
            time.sleep(_POLL_SECONDS)
        duration = time.monotonic() - started
        assert result["document_counts"]["completed"] == 1, result
        return duration

    def cancel(self, extraction_id: str) -> None:
        self._post(f"/extractions/{extraction_id}/cancel", {})

    def _upload(self, name: str, content: bytes) -> str:
        answer = self._http.post("/files", files={"purpose": (None, b"user_data"), "file": (name, content)})
        return str(answer.raise_for_status().json()["id"])

    def _post(self, path: str, body: Mapping[str, Any]) -> Any:
        return self._http.post(path, json=body).raise_for_status().json()

    def _get(self, path: str) -> Any:
        return self._http.get(path).raise_for_status().json()


def new_tenant(stack: OwnStack, tokenmill: str, name: str) -> Tenant:
    """Create a tenant with a key."""
    environment = {**os.environ, "TOKENMILL_DATABASE_URL": stack.database_url}

    def run(*arguments: str) -> str:
        process = subprocess.run([tokenmill, *arguments], env=environment, check=True, capture_output=True, text=True)
        return process.stdout.split()[-1]

    run("tenants", "create", name)
    return Tenant(stack.base_url, run("keys", "create", name))


def files_of_a_stranger(number: int) -> dict[str, bytes]:
    """Return files that take all of a reader's time, or all its memory, alternating."""
    kinds = {
        "form.pdf": worst_files.form_of_itself(),
        "layers.pdf": worst_files.packed_three_times(128 << 20),
        "far.xlsx": worst_files.far_cell(),
        "text.xlsx": worst_files.long_text_in_many_cells(),
    }
    names = list(kinds)
    return {f"{n}-{names[n % len(names)]}": kinds[names[n % len(names)]] for n in range(number)}


def times(tenant: Tenant, papers: Sequence[tuple[str, bytes]]) -> list[float]:
    return [tenant.seconds(name, content) for name, content in papers]


def measure(stack: OwnStack, tokenmill: str, *, num_strangers: int, num_files: int, num_pages: int) -> None:
    """Print the times of a tenant alone, beside others, and alone again."""
    load = os.getloadavg()[0]
    first, *papers = [(paper.name, paper.content) for paper in make_papers(3 * num_pages + 1, seed=num_strangers)]
    tenant = new_tenant(stack, tokenmill, f"tenant-{num_strangers}")
    files = files_of_a_stranger(num_files)
    strangers = [new_tenant(stack, tokenmill, f"stranger-{num_strangers}-{n}") for n in range(num_strangers)]
    times(tenant, [first])  # readers start with the first document
    alone = times(tenant, papers[:num_pages])
    extractions = [stranger.extract(files) for stranger in strangers]
    while stack.query(_UNDER_WAY) < min(num_strangers, 3):
        time.sleep(_POLL_SECONDS)
    beside = times(tenant, papers[num_pages : 2 * num_pages])
    for stranger, extraction in zip(strangers, extractions, strict=True):
        stranger.cancel(extraction)
    while stack.query(_UNDER_WAY):
        time.sleep(_POLL_SECONDS)
    alone += times(tenant, papers[2 * num_pages :])
    ratios = [statistics.median(beside) / statistics.median(alone), max(beside) / statistics.median(alone)]
    print(f"{num_strangers} strangers with {num_files:,} files each:", flush=True)
    for label, seconds in (("alone", alone), ("beside them", beside)):
        print(f"  {label}: {statistics.median(seconds):.2f} s ({min(seconds):.2f} to {max(seconds):.2f})", flush=True)
    print(f"  {ratios[0]:.2f} times as long, the longest {ratios[1]:.2f} times", flush=True)
    print(f"  {_LOAD}: {load:.1f}, {os.getloadavg()[0]:.1f}", flush=True)


def main() -> None:
    description = __doc__.partition("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m lab.extraction.slow_documents", description=description)
    parser.add_argument("--tokenmill", default="tokenmill", help="tokenmill executable of the revision to measure")
    parser.add_argument(
        "--strangers", type=naturals, default=[1, 8], help="numbers of other tenants, measured one after the other"
    )
    parser.add_argument("--files", type=natural, default=1000, help="files of each other tenant")
    parser.add_argument("--pages", type=natural, default=5, help="how often the page is extracted beside them")
    arguments = parser.parse_args()
    with own_stack(arguments.tokenmill, environment={}) as stack:
        for number in arguments.strangers:
            measure(
                stack,
                arguments.tokenmill,
                num_strangers=number,
                num_files=arguments.files,
                num_pages=arguments.pages,
            )


if __name__ == "__main__":
    main()
