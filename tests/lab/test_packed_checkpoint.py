"""Tests of the folder of the packed checkpoint: a new one, and what was there before is left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab import packed_checkpoint
from lab.packed_checkpoint import main


@pytest.mark.parametrize("place", ["folder", "folder/file"])
def test_a_folder_that_is_there_is_refused_and_kept(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_checkpoint, "write_gptq", lambda *_, **__: None)
    monkeypatch.setattr("subprocess.run", lambda *_, **__: pytest.fail("nothing is measured"))
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_text("mine")
    with pytest.raises(SystemExit) as ended:
        main([str(tmp_path / place)])
    assert ended.value.code == 2
    assert str(tmp_path / place) in capsys.readouterr().err
    assert (tmp_path / "folder" / "file").read_text() == "mine"


def test_a_folder_that_is_not_written_whole_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(path: Path, *_: object, **__: object) -> None:
        (path / "config.json").write_text("{}")
        raise KeyboardInterrupt

    monkeypatch.setattr(packed_checkpoint, "write_gptq", interrupted)
    with pytest.raises(KeyboardInterrupt):
        main([str(tmp_path / "deep" / "folder")])
    assert not (tmp_path / "deep" / "folder").exists()
