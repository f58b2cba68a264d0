"""Tests of log records: each is one JSON object with a fixed event, its fields, and an exception as a field."""

from __future__ import annotations

import ast
import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobs.states import BatchState
from jobs.telemetry.logs import JsonLines, last_words

ROOT = Path(__file__).resolve().parents[3]
OWN_WORDS = {"%s%s %s"}
"""Sentences for people, of `tokenmill worker --log-decisions`."""
METHODS = {"debug", "info", "warning", "error", "critical", "exception"}


def written(message: object, *args: object, **more: Any) -> dict[str, Any]:
    record = logging.LogRecord("workers.control", logging.INFO, "file.py", 1, message, args, None)
    for name, value in more.items():
        setattr(record, name, value)
    line = JsonLines("control").format(record)
    assert "\n" not in line
    found: dict[str, Any] = json.loads(line)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", found.pop("time"))
    assert (found.pop("level"), found.pop("role")) == ("INFO", "control")
    return found


def test_an_event_and_its_fields_are_read_from_the_format() -> None:
    found = written("batch validated batch_id=%s outcome=%s ms=%d", "batch_1", BatchState.IN_PROGRESS, 12)
    fields = {"batch_id": "batch_1", "outcome": "in_progress", "ms": 12}
    assert found == {"event": "batch validated", "logger": "workers.control"} | fields


def test_what_stands_in_a_value_is_never_taken_for_a_field() -> None:
    found = written("chunk abandoned chunk_id=%s reason=%s", 7, "a b=c\n%s d=%d")
    assert (found["event"], found["chunk_id"], found["reason"]) == ("chunk abandoned", 7, "a b=c\n%s d=%d")


def test_fields_may_come_by_name_and_a_note_may_follow_them() -> None:
    found = written("deleted kind=%(kind)s id=%(subject_id)s", {"kind": "batch", "subject_id": "batch_1"})
    assert (found["event"], found["kind"], found["id"]) == ("deleted", "batch", "batch_1")
    found = written("parts are not swept storage=%s: the bucket needs a rule", "s3://b")
    assert (found["event"], found["storage"], found["note"]) == (
        "parts are not swept",
        "s3://b",
        "the bucket needs a rule",
    )


@pytest.mark.parametrize("message", ["Connected to %s", "a %s and b=%s c", "no=%s b=%s of %s"])
def test_the_words_of_others_are_kept_whole(message: str) -> None:
    args = ("x", "y", "z")[: message.count("%s")]
    assert written(message, *args) == {"event": message % args, "logger": "workers.control"}


def test_given_fields_are_taken_as_they_are() -> None:
    assert written("request answered", fields={"status": 200}) == {"event": "request answered", "status": 200}


def test_an_exception_is_a_field() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError:
        found = written("suspects wait", exc_info=sys.exc_info())
    assert found["event"] == "suspects wait"
    assert found["traceback"].startswith("Traceback (most recent call last)")
    assert found["traceback"].endswith("ValueError: two\nlines")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("tokenmill: no database", "tokenmill: no database"),
        ('{"event": "command failed", "reason": "no database"}', "no database"),
        ('{"event": "process ends", "traceback": "Traceback\\n  File\\nKeyError: 1"}', "KeyError: 1"),
        ('{"event": "dispatcher stopped"}', "dispatcher stopped"),
        ("[1]", "[1]"),
    ],
)
def test_the_last_line_of_a_log_is_told_in_words(line: str, said: str) -> None:
    assert last_words(line) == said


def formats() -> Iterator[tuple[str, str]]:
    """Yield place and format of every call of one of our loggers that has arguments."""
    for package in ("api", "cli", "features", "jobs", "workers"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not node.args:
                    continue
                whose, form = node.func.value, node.args[0]
                if isinstance(whose, ast.Name) and whose.id in ("log", "logger") and node.func.attr in METHODS:
                    place = f"{path.relative_to(ROOT)}:{node.lineno}"
                    yield place, str(form.value) if isinstance(form, ast.Constant) else "no literal %s"


def test_every_call_of_ours_has_a_fixed_event_and_named_fields() -> None:
    loose = []
    for place, form in formats():
        without = re.sub(r"\w+=%(\(\w+\))?\w", "", form)
        if "%" in without and form not in OWN_WORDS:
            loose.append(f"{place}: {form}")
    assert loose == []


PRINTS = """
import logging, os, subprocess, sys, threading, warnings
from jobs.telemetry import logs
logs.configure("role", is_json=True, has_relay=True)
print("printed by us")
os.write(2, b"printed by native code\\n")
subprocess.run([sys.executable, "-c", "import os; os.write(1, b'printed by a child'); os.write(2, b'and its error')"])
warnings.warn("deprecated")
logging.getLogger("celery").warning("Connected to %s", "redis")
thread = threading.Thread(target=lambda: 1 / 0)
thread.start()
thread.join()
sys.stdout.write("its last words")
{end}
"""


@pytest.mark.parametrize(
    ("end", "last"),
    [
        ("", "its last words"),
        ("sys.exit('worker left: no engine')", "worker left: no engine"),
        ("{}[1]", "KeyError: 1"),
    ],
)
def test_whatever_a_process_and_its_children_print_becomes_json(end: str, last: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PRINTS.replace("{end}", end)], capture_output=True, text=True, cwd=ROOT, check=False
    )
    entries = [json.loads(line) for line in ran.stderr.splitlines()]
    assert ran.stdout == ""
    assert all({"time", "level", "role", "event"} <= set(entry) for entry in entries)
    told = " | ".join(str(entry) for entry in entries)
    for words in ("printed by us", "by native code", "by a child", "and its error", "deprecated", "Connected to redis"):
        assert words in told
    assert any(entry["event"] == "thread ends" and "ZeroDivisionError" in entry["traceback"] for entry in entries)
    assert "its last words" in told
    assert last in told


UNREAD = """
import logging, os
from jobs.telemetry import logs
logs.configure("role", is_json=True, has_relay=True)
logging.getLogger("jobs").info("is read")
os.read(0, 1)
for number in range(100):
    logging.getLogger("jobs").info("is not read number=%d", number)
    print("x" * 1000, flush=True)
os.write(int(os.environ["DONE"]), b"went on")
"""


def test_a_process_goes_on_where_nobody_reads_its_log() -> None:
    done, told = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", UNREAD],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env=os.environ | {"DONE": str(told)},
        pass_fds=[told],
    )
    os.close(told)
    assert process.stdin is not None
    assert process.stderr is not None
    try:
        assert b"is read" in process.stderr.readline()
        process.stderr.close()
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert process.wait(60) == 0
        assert os.read(done, 100) == b"went on"
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        os.close(done)
