"""Tests of the batch and file commands against a real API process and its database; no batch is processed."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from jobs.errors import InputError
from tests.cli.service import Service, Tokenmill


def test_a_file_goes_up_and_comes_down_unchanged(server: Tokenmill, batch_file: Path, tmp_path: Path) -> None:
    file_id = server("files", "upload", batch_file).stdout.strip()
    assert server("files", "download", file_id, "-o", tmp_path / "back.jsonl").exit_code == 0
    assert (tmp_path / "back.jsonl").read_bytes() == batch_file.read_bytes()
    assert list(tmp_path.glob("*.part")) == []


def test_listed_files_are_tab_separated_below_a_header_and_gone_once_deleted(
    server: Tokenmill, batch_file: Path
) -> None:
    file_id = server("files", "upload", batch_file).stdout.strip()
    header, listed = (line.split("\t") for line in server("files", "list", "--limit", "1").stdout.splitlines())
    assert header == ["id", "purpose", "bytes", "created", "name"]
    assert listed[:3] == [file_id, "batch", str(batch_file.stat().st_size)]
    assert listed[4] == "in.jsonl"
    assert server("files", "delete", file_id).stdout == f"deleted {file_id}\n"
    assert file_id not in server("files", "list").stdout


def test_a_batch_is_created_from_a_local_file_with_the_endpoint_of_its_lines(
    server: Tokenmill, batch_file: Path
) -> None:
    created = server("batch", "create", batch_file, "--metadata", "team=a=b", "--priority", "bulk", "--json")
    batch = json.loads(created.stdout)
    assert batch["endpoint"] == "/v1/completions"
    assert batch["metadata"] == {"team": "a=b"}
    shown = json.loads(server("batch", "show", batch["id"], "--json").stdout)
    assert shown["input_file_id"] == batch["input_file_id"]
    assert shown["priority"] == "bulk"


def test_a_batch_is_created_from_an_uploaded_file(server: Tokenmill, batch_file: Path) -> None:
    file_id = server("files", "upload", batch_file).stdout.strip()
    batch_id = server("batch", "create", file_id, "--endpoint", "/v1/completions", "--window", "2h").stdout.strip()
    shown = server("batch", "show", batch_id).stdout.splitlines()
    assert shown[0].split() == ["status", "validating"]
    assert f"input_file_id      {file_id}" in shown
    assert "lines              0 done, 0 failed of 0" in shown
    assert "cost               0.00 USD" in shown


def test_the_newest_batches_are_listed_first(server: Tokenmill, batch_file: Path) -> None:
    batch_ids = [server("batch", "create", batch_file).stdout.strip() for _ in range(2)]
    header, *rows = [line.split("\t") for line in server("batch", "list", "--limit", "2").stdout.splitlines()]
    assert header[:2] == ["id", "status"]
    assert [row[0] for row in rows] == batch_ids[::-1]
    assert rows[0][1:2] == ["validating"]


def test_a_batch_is_cancelled_and_has_no_results_yet(server: Tokenmill, batch_file: Path, tmp_path: Path) -> None:
    batch_id = server("batch", "create", batch_file).stdout.strip()
    assert server("batch", "results", batch_id).stdout == ""
    assert server("batch", "results", batch_id, "-o", tmp_path / "out.jsonl").exit_code == 0
    assert (tmp_path / "out.jsonl").read_bytes() == b""
    assert server("batch", "cancel", batch_id).stdout in ("cancelling\n", "cancelled\n")


def test_an_exact_dry_run_waits_until_a_worker_has_counted(
    service: Service, server: Tokenmill, batch_file: Path
) -> None:
    def work() -> None:
        deadline = time.monotonic() + 60
        while not service.count_an_input(tokens=7):
            assert time.monotonic() < deadline
            time.sleep(0.05)

    before = server("files", "list").stdout
    with ThreadPoolExecutor(1) as threads:
        worker = threads.submit(work)
        done = server("batch", "create", batch_file, "--dry-run", "--exact")
        worker.result()
    assert "counted 0 of 3 lines" in done.stderr
    assert "21 in, at most 12 out" in done.stdout
    assert "0 of 3 lines" in done.stdout
    assert "Exact: a worker of the model" in done.stdout
    assert server("files", "list").stdout == before
    with pytest.raises(InputError, match="--exact needs --dry-run"):
        server("batch", "create", batch_file, "--exact")


def test_a_dry_run_says_what_a_batch_would_take_and_leaves_nothing(server: Tokenmill, batch_file: Path) -> None:
    before = (server("batch", "list").stdout, server("files", "list").stdout)
    shown = server("batch", "create", batch_file, "--dry-run").stdout
    assert "0 of the first 3 lines" in shown
    assert "at most 12 out" in shown
    assert "No running worker serves the model 'tiny'." in shown
    assert "no limit: it fits" in shown
    assert (server("batch", "list").stdout, server("files", "list").stdout) == before


def test_a_batch_is_changed_and_says_what_was_decided_and_why_it_cannot_be_retried_yet(
    server: Tokenmill, batch_file: Path
) -> None:
    batch_id = server("batch", "create", batch_file).stdout.strip()
    changed = server("batch", "change", batch_id, "--priority", "bulk", "--window", "2h").stdout
    assert changed.startswith("in.jsonl: class bulk, to end by 20")
    shown = server("batch", "decisions", batch_id).stdout
    assert "Its owner changed it: class normal → bulk and window 24h → 2h." in shown
    with pytest.raises(InputError, match="Cannot retry a batch with status 'validating'"):
        server("batch", "retry", batch_id)
    with pytest.raises(InputError, match="There is nothing to change"):
        server("batch", "change", batch_id)


def test_results_that_are_refused_leave_an_earlier_copy_of_them_alone(server: Tokenmill, tmp_path: Path) -> None:
    copy = tmp_path / "out.jsonl"
    copy.write_text("earlier")
    with pytest.raises(InputError, match="batch_none"):
        server("batch", "results", "batch_none", "-o", copy)
    assert copy.read_text() == "earlier"


def test_results_of_a_day_that_is_kept_no_longer_are_refused_with_the_file_that_has_them(
    server: Tokenmill, database: str, batch_file: Path
) -> None:
    batch_id = server("batch", "create", batch_file).stdout.strip()
    with psycopg.connect(database) as connection:
        query = """
            UPDATE batch SET created_at = '2020-01-01', num_completed = 1, output_file_id = input_file_id
            WHERE id = %s RETURNING output_file_id
        """
        row = connection.execute(query, [batch_id]).fetchone()
    assert row is not None
    with pytest.raises(InputError, match=f"{batch_id}.*no longer kept.*{row[0]}"):
        server("batch", "results", batch_id)


@pytest.mark.parametrize(
    ("arguments", "variables", "sentence"),
    [
        (("batch", "show", "batch_none"), {}, "batch_none"),
        (("files", "delete", "file_none"), {}, "file_none"),
        (("batch", "list"), {"TOKENMILL_API_KEY": "tm-wrong"}, "Check TOKENMILL_API_KEY."),
    ],
)
def test_what_the_server_refuses_is_said_in_its_words(
    server: Tokenmill, arguments: tuple[str, ...], variables: dict[str, str], sentence: str
) -> None:

    with pytest.raises(InputError, match=sentence):
        server(*arguments, **variables)


def test_a_base_url_without_v1_is_explained(server: Tokenmill, base_url: str) -> None:

    with pytest.raises(InputError, match="TOKENMILL_BASE_URL should end in /v1"):
        server("batch", "list", TOKENMILL_BASE_URL=base_url.removesuffix("/v1"))
