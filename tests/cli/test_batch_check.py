"""Tests of `tokenmill batch check FILE` and of compressed input files."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from jobs.errors import InputError
from tests.cli.service import LINE, Service, run, typed, write_lines


def write(path: Path, *bodies: dict[str, object]) -> Path:
    lines = [{**LINE, "custom_id": str(number), "body": body} for number, body in enumerate(bodies)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def body(**parameters: object) -> dict[str, object]:
    return {"model": "tiny", "prompt": "Hello"} | parameters


@pytest.mark.usefixtures("quick_processes")
def test_every_bad_line_is_listed_and_the_status_says_so(tmp_path: Path) -> None:
    path = write(tmp_path / "in.jsonl", body(temperature=7), body(), body(foo=1), body(prompt=[]))
    done = typed("batch", "check", path, variables={})
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        f"tokenmill: {path} fails validation, bad lines: 3 of 4:",
        "  line 1: temperature is 7; it must be a number from 0 to 2 (invalid_value)",
        "  line 3: foo is not a parameter of this endpoint; remove it (unknown_parameter)",
        "  line 4: prompt is []; it must be at least one prompt (invalid_value)",
    ]


def test_more_than_a_hundred_bad_lines_go_into_a_file_whole(tmp_path: Path) -> None:
    path = write(tmp_path / "in.jsonl", *[body(foo=1)] * 130)
    with pytest.raises(InputError) as refusal:
        run("batch", "check", path)
    listed = tmp_path / "in.invalid.jsonl"
    assert refusal.value.message.splitlines()[-1] == f"  … and 30 more; all of them are in {listed}"
    assert refusal.value.message.count("line ") == 100
    problems = [json.loads(line) for line in listed.read_text().splitlines()]
    assert [problem["line"] for problem in problems] == list(range(1, 131))
    assert problems[129] == {
        "line": 130, "custom_id": "129", "code": "unknown_parameter", "param": "body.foo",
        "message": "foo is not a parameter of this endpoint; remove it",
    }  # fmt: skip


def test_a_good_file_is_told_with_its_size(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "in.jsonl")
    assert run("batch", "check", path).stdout == (
        f"{path} is valid: 3 lines for /v1/completions of tiny, about 18 tokens\n"
    )
    with pytest.raises(InputError, match='the model "tiny" does not exist; known are: large'):
        run("batch", "check", path, "--model", "large")


def test_a_packed_file_is_checked_and_sent_unpacked(service: Service, tmp_path: Path) -> None:
    path, packed = write_lines(tmp_path / "in.jsonl"), tmp_path / "in.jsonl.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert "3 lines" in run("batch", "check", packed).stdout
    file_id = service.run("files", "upload", packed).stdout.strip()
    assert service.run("files", "download", file_id, "-o", tmp_path / "back").exit_code == 0
    assert (tmp_path / "back").read_bytes() == path.read_bytes()
    assert f"{file_id}\tbatch\t{path.stat().st_size}\t" in service.run("files", "list").stdout
    assert "\tin.jsonl\n" in service.run("files", "list", "--limit", "1").stdout
    created = json.loads(service.run("batch", "create", packed, "--json").stdout)
    assert created["endpoint"] == "/v1/completions"


@pytest.mark.parametrize("content", [b"", b"\n \n", gzip.compress(b"\n", mtime=0)])
def test_a_file_without_requests_makes_no_batch(service: Service, tmp_path: Path, content: bytes) -> None:
    empty, known = tmp_path / "in.jsonl", len(service.batches())
    empty.write_bytes(content)
    given: list[str | Path] = [empty]
    if not content:
        given.append(service.run("files", "upload", empty).stdout.strip())
    for source in given:
        with pytest.raises(InputError, match=f"{source} contains no requests"):
            service.run("batch", "create", source)
    assert len(service.batches()) == known


def test_a_packed_file_that_is_cut_off_is_named(tmp_path: Path) -> None:
    packed = tmp_path / "in.jsonl.gz"
    packed.write_bytes(gzip.compress(write_lines(tmp_path / "in.jsonl").read_bytes())[:-20])
    with pytest.raises(InputError, match=rf"cannot unpack {packed}: .*Compress it again"):
        run("batch", "check", packed)


def test_a_file_for_other_purposes_is_sent_as_it_is(service: Service, tmp_path: Path) -> None:
    packed = tmp_path / "notes.gz"
    packed.write_bytes(gzip.compress(b"notes"))
    file_id = service.run("files", "upload", packed, "--purpose", "user_data").stdout.strip()
    assert service.run("files", "download", file_id, "-o", tmp_path / "back").exit_code == 0
    assert (tmp_path / "back").read_bytes() == packed.read_bytes()


BAD = body(temperature=7)


@pytest.mark.parametrize(
    ("lines", "more", "status"),
    [
        ([body()] * 3, [], 0),
        ([body()] + [BAD] * 13, [], 2),
        ([body()] + [BAD] * 13, ["--invalid-lines", "skip"], 3),
        ([BAD] * 1002, ["--invalid-lines", "skip"], 2),  # more than may be skipped
        ([body()], ["--priority", "urgent"], 2),  # not allowed for the tenant
        ([body(model="other")], [], 2),
    ],
)
def test_a_dry_run_ends_with_the_status_of_what_would_become_of_the_batch(
    service: Service, tmp_path: Path, lines: list[dict[str, object]], more: list[str], status: int
) -> None:
    path = write(tmp_path / "in.jsonl", *lines)
    before = (service.run("batch", "list").stdout, service.run("files", "list").stdout)
    done = service.run("batch", "create", path, "--dry-run", *more)
    as_json = service.run("batch", "create", path, "--dry-run", "--json", *more)
    assert (done.exit_code, as_json.exit_code) == (status, status)
    assert done.stderr.count("\n") == (status != 0)
    assert json.loads(as_json.stdout)["invalid_lines"] == sum(one != body() for one in lines)
    assert (service.run("batch", "list").stdout, service.run("files", "list").stdout) == before


def test_what_a_dry_run_foretells_is_what_a_create_comes_to(service: Service, tmp_path: Path) -> None:
    path = write(tmp_path / "in.jsonl", body(), BAD)
    for invalid_lines, state in (("fail", "failed"), ("skip", "in_progress")):
        batch_id = service.run("batch", "create", path, "--invalid-lines", invalid_lines).stdout.strip()
        service.validate(batch_id)
        assert json.loads(service.run("batch", "show", batch_id, "--json").stdout)["status"] == state


@pytest.mark.usefixtures("quick_processes")
def test_standard_input_is_checked_as_a_file_is(tmp_path: Path) -> None:
    content = write_lines(tmp_path / "in.jsonl").read_text()
    assert typed("batch", "check", "-", variables={}, stdin=content).returncode == 0
    assert typed("batch", "check", "-", variables={}, stdin="").returncode == 2


@pytest.mark.usefixtures("quick_processes")
def test_the_list_of_many_bad_lines_of_standard_input_stays(tmp_path: Path) -> None:
    content = write(tmp_path / "in.jsonl", *[body(foo=1)] * 130).read_text()
    told = typed("batch", "check", "-", variables={"TMPDIR": str(tmp_path)}, stdin=content).stderr
    (listed,) = tmp_path.rglob("*.invalid.jsonl")
    assert told.rstrip().endswith(str(listed))
    assert [path.name for path in listed.parent.iterdir()] == [listed.name]


@pytest.mark.usefixtures("quick_processes")
def test_standard_input_is_uploaded_for_batches_alone() -> None:
    done = typed("files", "upload", "-", "--purpose", "user_data", variables={}, stdin="%PDF")
    assert (done.returncode, "--purpose" in done.stderr) == (2, True)
