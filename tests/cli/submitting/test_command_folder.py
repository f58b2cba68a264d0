"""Tests of what a resumable command notes between starts, and of reading its input."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from cli.disk.input_scan import scan_input
from cli.run_command import key_of
from cli.submitting.command_folder import CommandFolder, CommandState, sha256_of
from cli.submitting.results import ResultFiles
from jobs.errors import ConflictError, InputError


def write(path: Path, *lines: object) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def line(model: str, *, url: str = "/v1/completions") -> dict[str, object]:
    return {"custom_id": "a", "url": url, "body": {"model": model}}


def test_a_scan_names_models_once_in_order_and_counts_requests_only(tmp_path: Path) -> None:
    path = write(tmp_path / "in.jsonl", line("b"), "", line("a"), line("b"), "   ")
    scan = scan_input(path)
    assert (scan.models, scan.num_lines, scan.endpoint) == (("b", "a"), 3, "/v1/completions")
    assert scan.sha256 == sha256_of(path)


@pytest.mark.parametrize("bad", ["{", "[]", '{"body": 3}', '{"body": {"model": 7}}', "null", "\x00"])
def test_lines_that_validation_will_refuse_do_not_stop_the_scan(tmp_path: Path, bad: str) -> None:
    scan = scan_input(write(tmp_path / "in.jsonl", bad, line("m")))
    assert (scan.models, scan.num_lines) == (("m",), 2)


def test_a_byte_order_mark_hides_nothing(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(line("m")).encode())
    assert scan_input(path).models == ("m",)


def test_a_run_is_another_one_when_its_input_place_output_or_key_is(tmp_path: Path) -> None:
    def key(*, content: str = "x", place: str = "m", output: str = "out.jsonl", given: str | None = None) -> str:
        scan = scan_input(write(tmp_path / "in.jsonl", content))
        return key_of(ResultFiles(answers=tmp_path / output), scan=scan, place=place, key=given)

    assert key() == key()
    assert key(given="monday") == key(given="monday")
    others = {key(content="y"), key(place="n"), key(output="other.jsonl"), key(given="monday"), key(given="tuesday")}
    assert len({key(), *others}) == 6


def test_a_noted_state_is_read_back(tmp_path: Path) -> None:
    folder = CommandFolder.below(tmp_path, "k")
    assert (folder.read(), folder.is_begun) == (CommandState(), False)
    state = CommandState(window="7d", outputs={"/out": "ab"}, stored=["batch_1"], num_answered=2, failed={"x": 1})
    with folder.held():
        folder.write(state)
        assert (folder.read(), folder.is_begun) == (state, True)
        folder.forget()
    assert not folder.root.exists()


def test_an_output_is_complete_only_while_every_file_is_as_it_was_written(tmp_path: Path) -> None:
    out, errors = write(tmp_path / "out", "1"), write(tmp_path / "errors", "2")
    folder = CommandFolder.below(tmp_path, "k")
    assert not folder.has_written([out])
    with folder.held():
        folder.note_outputs([out, errors], stored=["file_1"])
    assert (folder.has_written([out]), folder.read().stored) == (True, ["file_1"])
    assert not folder.has_written([out, tmp_path / "other"])
    write(errors, "3")
    assert not folder.has_written([out])
    write(errors, "2")
    out.unlink()
    assert not folder.has_written([out])


def test_errors_go_beside_the_output() -> None:
    assert ResultFiles(answers=Path("/a/out.jsonl")).errors == Path("/a/out.errors.jsonl")
    assert ResultFiles(answers=Path("/a/out")).errors == Path("/a/out.errors.jsonl")


def test_a_command_is_held_by_one_start_which_is_named_to_others(tmp_path: Path) -> None:
    folder = CommandFolder.below(tmp_path, "k")
    with folder.held():
        with pytest.raises(ConflictError, match=rf"already runs \(pid {os.getpid()}\)\. Wait for it, or stop it"):
            folder.held().__enter__()
        with CommandFolder.below(tmp_path, "other").held():
            pass
    with folder.held():
        pass
    assert not folder.root.exists()


def test_what_a_killed_start_left_holds_nobody_off(tmp_path: Path) -> None:
    folder = CommandFolder.below(tmp_path, "k")
    folder.root.mkdir(parents=True)
    (folder.root / "lock").write_text("99999999 of a process that had a long number")
    with folder.held():
        assert (folder.root / "lock").read_text() == f"{os.getpid()}\n"


@pytest.mark.parametrize(
    ("state", "names", "left"),
    [
        (
            {"file_id": "file_1", "batch_id": "batch_1", "attempt": 1, "outputs": None},
            ["stack"],
            "stack, file_1, batch",
        ),
        ({"file_id": "file_1", "batch_id": None, "attempt": 0, "outputs": None}, [], "file_1"),
        (None, ["input.jsonl", "rendered.json"], "input.jsonl"),
    ],
)
def test_unfinished_work_of_an_earlier_version_is_told_and_left_alone(
    tmp_path: Path, state: object, names: list[str], left: str
) -> None:
    folder = CommandFolder.below(tmp_path, "k")
    folder.root.mkdir(parents=True)
    if state is not None:
        (folder.root / "state.json").write_text(json.dumps(state))
    for name in names:
        (folder.root / name).mkdir()
    with pytest.raises(InputError, match=rf"runs/k .*\({left}.* Finish it with the version .*, or delete that folder"):
        folder.held().__enter__()
    assert {path.name for path in folder.root.iterdir()} == {*names, *(["state.json"] if state else [])}


def test_finished_work_of_an_earlier_version_counts(tmp_path: Path) -> None:
    out = write(tmp_path / "out", "1")
    folder = CommandFolder.below(tmp_path, "k")
    folder.root.mkdir(parents=True)
    state = {"file_id": "f", "batch_id": "b", "attempt": 0, "outputs": {str(out): sha256_of(out)}, "num_answered": 4}
    (folder.root / "state.json").write_text(json.dumps(state))
    with folder.held():
        assert (folder.has_written([out]), folder.read().num_answered) == (True, 4)
