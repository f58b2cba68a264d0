"""Tests of registered stores: listing, reading and writing; nothing leads out of a folder, and errors give advice."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from features.pipelines.external.folder import LocalFolder
from features.pipelines.external.opening import open_store
from features.pipelines.external.store import BESIDE, ExternalStore, StoreRefusedError
from features.pipelines.patterns import matches, prefix_of
from jobs.errors import InputError, ServiceError, StoreAwayError
from lab.s3_server import Mood, S3Server


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "store"
    folder.mkdir()
    return folder


@pytest.fixture
def folder(root: Path) -> LocalFolder:
    return LocalFolder("documents", root)


def put(store: ExternalStore, key: str, content: bytes) -> None:
    with store.create(key) as file:
        file.write(content)


def keys(store: ExternalStore, prefix: str = "") -> list[str]:
    return [found.key for found in store.list(prefix)]


def use(store: ExternalStore) -> None:
    """Do everything that runs do with a store."""
    for key in ("in/2026/a.jsonl", "in/2026/b.jsonl", "in/c.jsonl", f"out/{BESIDE}/run_1/part-0.jsonl"):
        put(store, key, key.encode())
    assert keys(store, "in/") == ["in/2026/a.jsonl", "in/2026/b.jsonl", "in/c.jsonl"]
    assert keys(store, "in/2026/b.jsonl") == ["in/2026/b.jsonl"]
    assert keys(store, "nothing/") == []
    assert keys(store, "out/") == [], "what is not published is no file of a source"
    with store.open("in/c.jsonl") as file:
        file.seek(3)
        assert bytes(file.read(100)) == b"c.jsonl"
    [before] = store.list("in/c.jsonl")
    put(store, "in/c.jsonl", b"another")
    [after] = store.list("in/c.jsonl")
    assert before.version != after.version
    assert store.read_small("in/c.jsonl", 100) == b"another"
    assert store.read_small("in/d.jsonl", 100) is None
    assert store.move(f"out/{BESIDE}/run_1/part-0.jsonl", "out/part-0.jsonl")
    assert not store.move(f"out/{BESIDE}/run_1/part-0.jsonl", "out/part-0.jsonl")
    assert keys(store, "out/") == ["out/part-0.jsonl"]
    put(store, f"out/{BESIDE}/run_1/part-1.jsonl", b"left")
    store.clear(f"out/{BESIDE}/run_1")
    store.clear(f"out/{BESIDE}/run_1")
    assert store.read_small(f"out/{BESIDE}/run_1/part-1.jsonl", 9) is None
    store.delete("out/part-0.jsonl")
    store.delete("out/part-0.jsonl")
    assert keys(store, "out/") == []
    with pytest.raises(StoreRefusedError, match="There is no 'in/d"):
        store.open("in/d.jsonl")


def test_a_folder_does_what_runs_need(folder: LocalFolder) -> None:
    use(folder)


def test_a_bucket_does_what_runs_need(s3: S3Server) -> None:
    environment = s3.environment
    names = {"AWS_ACCESS_KEY_ID": "access_key_id", "AWS_SECRET_ACCESS_KEY": "secret_access_key"}
    names |= {"AWS_ENDPOINT": "endpoint", "AWS_ENDPOINT_URL": "endpoint", "AWS_REGION": "region"}
    options = {name: environment[variable] for variable, name in names.items() if variable in environment}
    use(open_store("documents", f"{s3.url}/below", {**options, "allow_http": "true"}, timeout_seconds=10))


def test_no_key_leads_out_of_a_folder(folder: LocalFolder, root: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.jsonl").write_text("secret")
    for key in ("../secret.jsonl", "a/../../secret.jsonl", "/etc/passwd", "./a", "a//b"):
        with pytest.raises(StoreRefusedError):
            folder.open(key)
        with pytest.raises(StoreRefusedError):
            put(folder, key, b"x")
    assert (tmp_path / "secret.jsonl").read_text() == "secret"


def test_symbolic_links_are_neither_listed_nor_followed(folder: LocalFolder, root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.jsonl").write_text("secret")
    (root / "file.jsonl").symlink_to(outside / "secret.jsonl")
    (root / "folder").symlink_to(outside)
    assert keys(folder) == []
    for key in ("file.jsonl", "folder/secret.jsonl"):
        with pytest.raises(StoreRefusedError, match="symbolic link"):
            folder.open(key)
    with pytest.raises(StoreRefusedError, match="symbolic link"):
        put(folder, "folder/new.jsonl", b"x")
    put(folder, "file.jsonl", b"ours")  # a file replaces the link, whose target stays
    assert (outside / "secret.jsonl").read_text() == "secret"
    assert sorted(path.name for path in outside.iterdir()) == ["secret.jsonl"]


def test_what_is_renamed_while_a_folder_is_listed_is_left_out(folder: LocalFolder, root: Path) -> None:
    for key in ("a.jsonl", "b.jsonl", "c/d.jsonl", "e.jsonl"):
        put(folder, key, b"x")
    listed = folder.list("")
    assert next(listed).key == "a.jsonl"
    (root / "b.jsonl").rename(root / "f.jsonl")
    (root / "c").rename(root / "g")
    assert [found.key for found in listed] == ["e.jsonl"]


def test_a_pipe_in_a_folder_holds_up_nobody(folder: LocalFolder, root: Path) -> None:
    os.mkfifo(root / "pipe.jsonl")
    assert keys(folder) == []
    with pytest.raises(StoreRefusedError, match="is not a file"):
        folder.open("pipe.jsonl")


def test_a_file_that_is_not_finished_never_appears(folder: LocalFolder, root: Path) -> None:
    with pytest.raises(TypeError), folder.create("out/a.jsonl") as file:
        file.writelines([b"half", None])  # type: ignore[list-item] # what a defect of ours may do
    assert keys(folder) == []
    assert list((root / "out").iterdir()) == []


def test_a_folder_deeper_than_any_is_refused(folder: LocalFolder, root: Path) -> None:
    (root / "/".join("d" * 60)).mkdir(parents=True)
    with pytest.raises(StoreRefusedError, match="deeper than 50 folders"):
        keys(folder)


@pytest.mark.parametrize(
    ("url", "options", "said"),
    [
        ("http://example.com/x", {}, "give file:///absolute/folder or s3://bucket/prefix"),
        ("file://relative", {}, "give file:///folder"),
        ("/etc", {}, "give file:///absolute/folder or s3"),
        ("s3://bucket", {"no_such_option": "1"}, "cannot be opened"),
        ("s3://bucket", {"access_key_id": "env:NO_SUCH_VARIABLE"}, "from NO_SUCH_VARIABLE, which is not set"),
    ],
)
def test_a_store_that_cannot_be_is_refused_with_what_is_allowed(url: str, options: dict[str, str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        open_store("documents", url, options, timeout_seconds=1)


def test_a_bucket_that_fails_is_a_trouble_that_may_be_over_and_one_without_rights_is_not(s3: S3Server) -> None:
    store = open_store("b", "s3://nowhere/x", {"endpoint": "http://127.0.0.1:9", "access_key_id": "a",
        "secret_access_key": "b", "region": "us-east-1", "allow_http": "true"}, timeout_seconds=0.5)  # fmt: skip
    with pytest.raises(ServiceError, match="the store 'b' failed"):
        keys(store)


@pytest.mark.parametrize(
    ("pattern", "key", "expected"),
    [
        ("in/*.jsonl", "in/a.jsonl", True),
        ("in/*.jsonl", "in/b/a.jsonl", False),
        ("in/**/*.jsonl", "in/b/c/a.jsonl", True),
        ("in/**/*.jsonl", "in/a.jsonl", True),
        ("in/", "in/b/a.csv", True),
        ("in/a?.csv", "in/ab.csv", True),
        ("in/a.csv", "in/a.csv", True),
        ("in/a.csv", "in/b.csv", False),
        ("**", "x/y", True),
        ("a/**/b/**/c", "a/b/b/x/c", True),
        ("*a*a*a*a*a*a*a*a*a*b", "a" * 400, False),
        ("**/x/" * 8 + "y", "x/" * 200 + "z", False),
    ],
)
def test_patterns_mean_what_globs_mean(pattern: str, key: str, expected: bool) -> None:
    assert matches(pattern, key) is expected


def test_what_is_listed_is_what_every_match_begins_with() -> None:
    assert [prefix_of(each) for each in ("in/2026/*.csv", "in/*/a.csv", "*.csv", "in/a.csv", "in/")] == [
        "in/2026/", "in/", "", "in/a.csv", "in/",
    ]  # fmt: skip


def test_a_folder_that_is_gone_is_away_and_not_empty(folder: LocalFolder, root: Path) -> None:
    put(folder, "in/a.jsonl", b"a")
    root.rename(root.with_name("unmounted"))
    for call in (
        lambda: keys(folder),
        lambda: folder.open("in/a.jsonl"),
        lambda: folder.read_small("in/a.jsonl", 9),
        lambda: put(folder, "in/b.jsonl", b"b"),
        lambda: folder.move("in/a.jsonl", "in/b.jsonl"),
    ):
        with pytest.raises(StoreAwayError):
            call()
    assert not root.exists()


def bucket(s3: S3Server) -> ExternalStore:
    options = {"endpoint": s3.environment["AWS_ENDPOINT_URL"], "access_key_id": "test", "allow_http": "true"}
    options |= {"secret_access_key": "test", "region": "us-east-1"}
    return open_store("documents", f"{s3.url}/below", options, timeout_seconds=10)


@pytest.mark.parametrize("mood", [Mood.NO_BUCKET, Mood.NO_ROUTE])
def test_a_bucket_that_is_gone_is_away_and_not_empty(s3: S3Server, mood: Mood) -> None:
    store = bucket(s3)
    put(store, "in/a.jsonl", b"a")
    s3.trouble(mood)
    for call in (
        lambda: keys(store),
        lambda: store.open("in/a.jsonl"),
        lambda: store.read_small("in/a.jsonl", 9),
        lambda: put(store, "in/b.jsonl", b"b"),
        lambda: store.move("in/a.jsonl", "in/b.jsonl"),
    ):
        with pytest.raises(ServiceError):
            call()
    s3.recover()
    assert keys(store) == ["in/a.jsonl"]
    assert store.read_small("in/none.jsonl", 9) is None


@pytest.mark.parametrize("mood", [Mood.NO_BUCKET, Mood.NO_ROUTE, Mood.OTHER_SITE])
def test_a_write_that_another_site_answers_has_failed_for_now(s3: S3Server, mood: Mood) -> None:
    store = bucket(s3)
    put(store, "in/a.jsonl", b"a")
    put(store, "out/a.jsonl", b"b")
    s3.trouble(mood, methods="PUT POST DELETE")
    for call in (
        lambda: put(store, "in/b.jsonl", b"b"),
        lambda: store.move("in/a.jsonl", "in/c.jsonl"),
        lambda: store.move("in/a.jsonl", "out/a.jsonl"),
        lambda: store.delete("in/a.jsonl"),
    ):
        with pytest.raises(ServiceError):
            call()
    s3.recover()
    assert keys(store) == ["in/a.jsonl", "out/a.jsonl"]
    assert store.read_small("out/a.jsonl", 9) == b"b"


def test_a_file_that_is_there_is_not_missing_because_another_site_answers(s3: S3Server) -> None:
    store = bucket(s3)
    put(store, "in/a.jsonl", b"a")
    with store.open("in/a.jsonl") as opened:
        s3.trouble(Mood.NO_ROUTE, methods="GET", key_prefix="objects/below/in/")
        for read in (opened.read, lambda: store.read_small("in/a.jsonl", 9)):
            with pytest.raises(ServiceError):
                read()
