"""Tests of the trial of a store before it is registered."""

from __future__ import annotations

from pathlib import Path

import pytest

from features.pipelines.external.trial import try_store, unset_variables
from jobs.errors import InputError
from lab.s3_server import Mood, S3Server
from tests.features.pipelines.bucket_options import bucket_options


def test_a_folder_that_can_be_used_is_left_as_it_was(tmp_path: Path) -> None:
    try_store("s", tmp_path.as_uri(), {}, is_writable=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("is_writable", [False, True])
def test_a_folder_that_is_not_there_is_refused(tmp_path: Path, *, is_writable: bool) -> None:
    (tmp_path / "file").write_text("x")
    for name in ("none", "file"):
        with pytest.raises(InputError, match="--unchecked"):
            try_store("s", (tmp_path / name).as_uri(), {}, is_writable=is_writable)


@pytest.mark.parametrize("mood", [Mood.FORBID, Mood.NO_BUCKET, Mood.NO_ROUTE, Mood.REFUSE])
def test_a_bucket_that_refuses_is_refused(s3: S3Server, mood: Mood) -> None:
    try_store("s", s3.url, bucket_options(s3), is_writable=True)
    s3.trouble(mood)
    with pytest.raises(InputError, match="--unchecked"):
        try_store("s", s3.url, bucket_options(s3), is_writable=False)


def test_a_bucket_without_the_right_to_write_is_refused_only_for_writing(s3: S3Server) -> None:
    s3.trouble(Mood.FORBID, methods="PUT POST")
    try_store("s", s3.url, bucket_options(s3), is_writable=False)
    with pytest.raises(InputError):
        try_store("s", s3.url, bucket_options(s3), is_writable=True)


def test_an_object_that_cannot_be_deleted_again_is_named(s3: S3Server) -> None:
    s3.trouble(Mood.FORBID, methods="DELETE")
    with pytest.raises(InputError) as refused:
        try_store("s", s3.url, bucket_options(s3), is_writable=True)
    (key,) = s3.keys()
    assert Path(key).name in refused.value.message


def test_variables_that_are_not_set_here_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERE", "x")
    assert unset_variables({"a": "env:HERE", "b": "env:ELSEWHERE", "c": "env"}) == ["ELSEWHERE"]
