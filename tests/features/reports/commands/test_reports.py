"""Tests of `tokenmill reports`, and of a report as lines of text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from features.reports.texts import end_words, lines, title
from jobs.errors import InputError
from tests.cli.service import Service

FILE = """
name: daily
steps:
  - name: fields
    source: {store: documents, keys: "in/*.jsonl"}
    prompt: Read {{ text }}
    model: tiny
    output: {store: results, keys: "{pipeline}/{date}/part-{n}.jsonl"}
"""

RUN = {
    "id": "run_1",
    "status": "succeeded",
    "reason": None,
    "scheduled_for": 1795829400,
    "ended_at": 1795830000,
    "rows": 500,
    "failed": 17,
}
FAILED = {
    "run_id": "run_1",
    "step": "fields",
    "rows": 500,
    "failed": 17,
    "codes": {"length": 15, "not_rendered": 2},
    "failed_rows": ["row-000000003"],
    "rows_file_id": "file-1",
    "failed_rows_file_id": "file-2",
    "batch_id": "batch_1",
    "retryable": 15,
    "retry": "tokenmill batch retry batch_1",
}


def measure(kind: str, **fields: Any) -> dict[str, Any]:
    return {
        "step": "fields",
        "measure": kind,
        "field": "vendor",
        "value": 0.31,
        "usual": 0.02,
        "low": 0.0,
        "high": 0.08,
        "drifted": True,
        "labels": [],
    } | fields


REPORT: dict[str, Any] = {
    "pipeline": "nightly",
    "day": "2026-11-28",
    "time_zone": "Europe/Berlin",
    "status": "succeeded",
    "reason": None,
    "ended_at": 1795830000,
    "runs": [RUN],
    "num_runs": 1,
    "rows": 500,
    "failed": 17,
    "failed_steps": [FAILED],
    "total_tokens": 1200,
    "cost_micros": 1_230_000,
    "cost_micros_day_before": 1_100_000,
    "currency": "EUR",
    "drift": {
        "nights": 7,
        "nights_needed": 5,
        "changed_steps": ["fields"],
        "measures": [measure("null_rate"), measure("length", drifted=False)],
    },
    "eta": None,
    "eta_earliest": None,
    "eta_latest": None,
    "next_run": {
        "schedule": "nights",
        "at": 1795915800,
        "local": "2026-11-29T02:30:00+01:00",
        "eta": 1795916400,
        "eta_earliest": 1795916100,
        "eta_latest": 1795917000,
    },
}


def test_a_report_is_a_few_lines_of_text() -> None:
    assert title(REPORT) == "nightly 2026-11-28: finished, 17 rows failed, 1 drift"
    shown = list(lines(REPORT))
    for words in (
        "2026-11-28 02:40 CET",
        "17 of 500 rows of step fields (length 15, not_rendered 2)",
        "tokenmill batch retry batch_1",
        "retry these 17: tokenmill files download file-2",
        "1.23 EUR",
        "1.10",
        "fields.vendor: null 31.0 %, usually 2.0 % (drift beyond 8.0 %)",
        "2026-11-29 02:40 CET (02:35 to 02:50)",
    ):
        assert any(words in line for line in shown), words


def test_labels_lengths_and_unknown_ends_are_shown() -> None:
    moved = [{"label": "bad", "share": 0.7, "usual": 0.1}]
    measures = [measure("labels", labels=moved), measure("length", value=20.4), measure("failed_rate", field=None)]
    report = REPORT | {"drift": REPORT["drift"] | {"measures": measures}, "next_run": None, "status": "in_progress"}
    shown = "\n".join(lines(report | {"eta": 1795830000, "eta_earliest": 1795830000, "eta_latest": 1795830600}))
    for words in (
        "bad 70.0 %, usually bad 10.0 %",
        "length 20,",
        "fields: without an answer 31.0 %",
        "none is scheduled",
    ):
        assert words in shown
    assert "2026-11-28 02:40 CET (02:40 to 02:50)" in shown


def test_an_end_after_midnight_has_its_date() -> None:
    eta = {"eta": 1795904400, "eta_earliest": 1795903200, "eta_latest": 1795908000}
    assert end_words(eta, "Europe/Berlin") == "2026-11-28 23:20 CET (2026-11-28 23:00 to 2026-11-29 00:20)"
    assert end_words(eta | {"eta": None}, "UTC") is None


def test_a_report_is_shown_as_text_and_as_json(service: Service, tmp_path: Path) -> None:
    admin = {"TOKENMILL_DATABASE_URL": service.database}
    for name in ("documents", "results"):
        (tmp_path / name).mkdir()
        added = service.run("stores", "add", "acme", name, f"file://{tmp_path / name}", "--writable", **admin)
        assert added.exit_code == 0
    path = tmp_path / "daily.yaml"
    path.write_text(FILE)
    assert service.run("pipelines", "apply", path).exit_code == 0
    shown = service.run("reports", "show", "daily", "--day", "2026-01-02").stdout
    assert shown.startswith("daily 2026-01-02: no run\n")
    assert "drift: not compared" in shown
    report = json.loads(service.run("reports", "show", "daily", "--json").stdout)
    assert report["pipeline"] == "daily"
    assert [title(report), *lines(report)]
    assert "each day at 06:15" in service.run("reports", "subscribe", "daily", "--at", "06:15").stdout
    assert json.loads(service.run("reports", "subscription", "daily").stdout)["at"] == "06:15"
    with pytest.raises(InputError):
        service.run("reports", "subscribe", "daily", "--mail", "anna@example.com")
    assert service.run("reports", "unsubscribe", "daily").exit_code == 0
    with pytest.raises(InputError):
        service.run("reports", "subscription", "daily")
