"""Tests of `--idempotency-key`: a repeated command creates nothing twice, and no other request has its key."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from jobs.chunks.recording import LineResult
from jobs.errors import InputError
from tests.cli.service import Service, completed, failed, run, write_lines


def create(service: Service, source: Path | str, *, key: str) -> str:
    return service.run("batch", "create", source, "--idempotency-key", key).stdout.strip()


def num_files(service: Service) -> int:
    return len(service.run("files", "list").stdout.splitlines())


def test_a_create_that_is_given_again_makes_one_batch_of_one_file(service: Service, batch_file: Path) -> None:
    first = create(service, batch_file, key="once")
    before = num_files(service)
    assert create(service, batch_file, key="once") == first
    packed = batch_file.with_suffix(".jsonl.gz")
    packed.write_bytes(gzip.compress(batch_file.read_bytes()))
    assert create(service, packed, key="once") == first
    assert num_files(service) == before, "what was uploaded again is deleted"
    assert create(service, batch_file, key="another") != first


def test_a_file_on_the_server_has_one_batch_for_a_key(service: Service, batch_file: Path) -> None:
    file_id = service.run("files", "upload", batch_file).stdout.strip()
    assert create(service, file_id, key="of a file") == create(service, file_id, key="of a file")


def test_a_key_is_refused_for_another_request(service: Service, batch_file: Path, tmp_path: Path) -> None:
    create(service, batch_file, key="taken")
    with pytest.raises(InputError, match="taken"):
        create(service, write_lines(tmp_path / "other.jsonl", 1), key="taken")
    with pytest.raises(InputError, match="taken"):
        service.run("batch", "create", batch_file, "--idempotency-key", "taken", "--window", "7d")


def test_a_retry_that_is_given_again_makes_one_batch(service: Service, tmp_path: Path) -> None:
    batch_id = create(service, write_lines(tmp_path / "two.jsonl", 2), key="of two")
    results: list[LineResult] = [completed(0), failed(1, code="engine_failure", batch_id=batch_id)]
    service.work_off(batch_id, results)
    retry = ("batch", "retry", batch_id, "--idempotency-key")
    first = service.run(*retry, "of two, again").stdout.strip()
    assert service.run(*retry, "of two, again").stdout.strip() == first
    assert service.run(*retry, "of two, once more").stdout.strip() not in {first, batch_id}


@pytest.mark.parametrize("key", ["", " a", "a\nb", "é", "x" * 256])
@pytest.mark.parametrize(
    "command",
    [("batch", "create", "in.jsonl"), ("batch", "retry", "b"), ("runs", "trigger", "p"), ("run", "in", "-o", "out")],
)
def test_a_key_that_no_header_holds_is_refused_before_anything_is_done(command: tuple[str, ...], key: str) -> None:
    with pytest.raises(InputError, match="--idempotency-key"):
        run(*command, "--idempotency-key", key)


def test_an_estimate_takes_no_key(service: Service, batch_file: Path) -> None:
    with pytest.raises(InputError, match="--dry-run"):
        service.run("batch", "create", batch_file, "--dry-run", "--idempotency-key", "k")
