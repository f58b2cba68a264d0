"""Tests of the service that runs on a data directory: what it serves, and who may end it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from cli.data_dir import DataDir, locked
from cli.embedded.note import StackNote, write_note
from cli.service.running import RunningService, find_running, using, without_users
from jobs.errors import InputError, ServiceError

DEMO = Path(__file__).resolve().parents[2] / "examples" / "demo_model"


def note(*, pid: int = 7, is_of_command: bool = False, environment: Mapping[str, str] | None = None) -> StackNote:
    return StackNote(
        pid=pid, started_at=0.0, base_url="", environment=environment or {}, roles=[], is_of_command=is_of_command
    )


def running(root: Path, *, is_of_command: bool = False, **models: str) -> RunningService:
    return RunningService(data_dir=DataDir(root=root), note=note(is_of_command=is_of_command), models=models)


def test_lines_get_the_model_that_they_name(tmp_path: Path) -> None:
    service = running(tmp_path, demo=str(DEMO), other="org/other")
    assert service.served(None, name="other").path == "org/other"
    assert service.served(str(DEMO), name="demo").path == str(DEMO)
    assert service.served("demo", name="demo").path == str(DEMO)


@pytest.mark.parametrize(
    ("model", "name", "problem"),
    [
        (None, "third", "does not serve 'third'"),
        (str(DEMO), "other", rf"'other', which the lines name, is org/other, not {DEMO}"),
        ("org/third", None, "does not serve org/third"),
        (None, None, "no model was given"),
    ],
)
def test_a_model_that_a_running_service_lacks_is_told_with_those_it_serves(
    tmp_path: Path, model: str | None, name: str | None, problem: str
) -> None:
    service = running(tmp_path, demo=str(DEMO), other="org/other")
    with pytest.raises(
        InputError, match=rf"\(pid 7\), and .*{problem}.* It serves: demo \({DEMO}\), other \(org/other"
    ):
        service.served(model, name=name)


def test_a_model_may_be_given_by_its_name_its_path_or_not_at_all_if_it_is_the_only_one(tmp_path: Path) -> None:
    service = running(tmp_path, mine=str(DEMO))
    for model in (None, "mine", "demo", str(DEMO), os.path.relpath(DEMO)):
        assert service.served(model).name == "mine"


def test_the_service_of_a_command_is_waited_for_and_that_of_up_stopped(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Wait for the end of the command"):
        running(tmp_path, is_of_command=True).served("org/third")
    with pytest.raises(InputError, match="`tokenmill worker`"):
        running(tmp_path).served("org/third")


def test_a_folder_on_which_nothing_runs_has_no_service(tmp_path: Path) -> None:
    assert find_running(tmp_path) is None


def test_the_end_of_the_command_that_runs_a_service_is_noticed(tmp_path: Path) -> None:
    with locked(tmp_path) as data_dir:
        write_note(data_dir, note(is_of_command=True))
        service = running(tmp_path)
        service.require_running()
        write_note(data_dir, note(pid=8))
        with pytest.raises(ServiceError, match="has ended"):
            service.require_running()
    with pytest.raises(ServiceError, match="has ended"):
        service.require_running()


def test_a_service_ends_after_the_last_command_that_uses_it_and_then_none_begins(tmp_path: Path) -> None:
    with locked(tmp_path) as data_dir:
        first, second = using(data_dir), using(data_dir)
        assert [first.__enter__(), second.__enter__()] == [True, True]
        leaving = [second, first]
        with without_users(data_dir, wait=lambda: leaving.pop().__exit__(None, None, None)):
            assert leaving == []
            with using(data_dir) as is_running:
                assert not is_running
        with using(data_dir) as is_running:
            assert is_running
