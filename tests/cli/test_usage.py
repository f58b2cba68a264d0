"""Tests of `tokenmill usage` and `quota`, against a server with fixed answers."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from typer.testing import CliRunner, Result

from cli.app import app
from cli.spending import usage_commands


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def row(**values: Any) -> dict[str, Any]:
    none = dict.fromkeys(("day", "model", "key_id", "key", "batch_id"))
    counts = {"lines": 1200, "input_tokens": 1_500_000, "cached_tokens": 20, "output_tokens": 7, "truncated": 3}
    return {**none, **counts, "cost": "0.000001500001", "gpu_seconds": 1234.56, "cost_micros": 1, **values}


PAGES: dict[str | None, dict[str, Any]] = {
    None: {"data": [row(day="2026-03-01", model="small")], "has_more": True, "next_page": "two"},
    "two": {"data": [row(day="2026-03-02", model="small")], "has_more": False, "next_page": None},
}

NO_WARNING = {"key_id": None, "is_warning": False}
QUOTA = {
    "budgets": [
        {"unit": "tokens", "window": "total", "limit": None, "spent": 5, "reserved": 2, "left": None, "resets_at": None}
        | NO_WARNING,
        {"unit": "micros", "window": "day", "limit": 2_500_000, "spent": 1, "reserved": 0, "left": 2_499_999}
        | {"resets_at": 1_700_000_000, "key_id": "key_1", "is_warning": True, "warn_percent": 80},
    ],
    "limits": [
        {"name": "files", "limit": 100_000, "used": 1200, "left": 98_800},
        {"name": "reading_seconds_per_day", "limit": None, "used": 7, "left": None},
    ],
}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, list[str]]]]:
    """Serve two pages of usage; yield the queries that arrive."""
    queries: list[dict[str, list[str]]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            queries.append(parse_qs(urlsplit(self.path).query))
            page = PAGES[queries[-1].get("page", [None])[0]] | QUOTA
            content = json.dumps(page | {"since": "2026-03-01", "until": "2026-03-02", "currency": "EUR"}).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("TOKENMILL_BASE_URL", f"http://127.0.0.1:{server.server_port}/v1")
        monkeypatch.setenv("TOKENMILL_API_KEY", "tm-any")
        yield queries
        server.shutdown()


def usage(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["usage", *arguments], catch_exceptions=False)


def test_all_pages_are_read_and_a_pipe_gets_bare_numbers(asked: list[dict[str, list[str]]]) -> None:
    header, *rows = [
        line.split("\t") for line in usage("--by", "day,model", "--since", "2026-03-01").stdout.splitlines()
    ]
    assert header == ["day", "model", "lines", "input", "cached", "output", "truncated", "cost EUR", "gpu seconds"]
    assert rows == [
        [f"2026-03-0{day}", "small", "1200", "1500000", "20", "7", "3", "0.000001500001", "1234.56"] for day in (1, 2)
    ]
    assert [query["group_by"] + query["since"] for query in asked] == [["day,model", "2026-03-01"]] * 2


def test_csv_is_exact_and_has_one_header(asked: list[dict[str, list[str]]]) -> None:
    header, *rows = usage("--csv").stdout.splitlines()
    assert header.startswith("day,model,key_id,key,batch_id,lines,")
    assert [line.split(",")[-9:] for line in rows] == [["3", "0.000001500001", "1", "1234.56", *[""] * 4, "EUR"]] * 2
    assert header.endswith(",reasoning_tokens,currency")


def test_a_terminal_shows_numbers_flush_right_and_their_total(
    asked: list[dict[str, list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    for name, value in (("COLUMNS", "120"), ("NO_COLOR", "1"), ("TERM", "xterm")):
        monkeypatch.setenv(name, value)
    usage_commands.usage(by="day,model")
    *rows, total = [line.rstrip() for line in terminal.getvalue().splitlines()]
    assert total.split() == ["total", "2,400", "3,000,000", "40", "14", "6", "0.000003000002", "2,469.1"]
    assert [line.index("1,200") + len("1,200") for line in rows if "1,200" in line] == [
        total.index("2,400") + len("2,400")
    ] * 2


@pytest.mark.parametrize(("cost", "shown"), [("0.00", "0.00"), ("1234.5", "1,234.50"), ("0.000045", "0.000045")])
def test_a_terminal_shows_costs_as_the_api_has_them(cost: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Terminal())
    assert usage_commands._Amounts(cost=Decimal(cost)).shown()[-4] == shown


def test_truncated_answers_are_blank_where_the_server_does_not_know_them_of_every_line(
    asked: list[dict[str, list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PAGES["two"], "data", [row(day="2026-03-02", truncated=None)])
    assert [line.split("\t")[5] for line in usage().stdout.splitlines()] == ["truncated", "3", ""]
    assert [line.split(",")[9] for line in usage("--csv").stdout.splitlines()] == ["truncated", "3", ""]
    older = {name: value for name, value in row(day="2026-03-02").items() if name != "truncated"}
    monkeypatch.setitem(PAGES["two"], "data", [older])
    assert [line.split("\t")[5] for line in usage().stdout.splitlines()] == ["truncated", "3", ""]
    assert [line.split(",")[9] for line in usage("--csv").stdout.splitlines()] == ["truncated", "3", ""]
    unknown = usage_commands._Amounts(truncated=None)
    assert (usage_commands._Amounts(truncated=1) + unknown).truncated is None


def test_quota_shows_budgets_and_limits_in_one_table(asked: list[dict[str, list[str]]]) -> None:
    shown = CliRunner().invoke(app, ["quota"], catch_exceptions=False).stdout.splitlines()
    assert [line.split("\t") for line in shown] == [
        ["what", "limit", "used", "reserved", "left", "resets"],
        ["budget: tokens, total", "none", "5", "2", "", "never"],
        ["budget: EUR, day, key_1", "2.50", "0.000001", "0.00", "2.499999", "2023-11-14T22:13:20Z"],
        ["files", "100000", "1200", "", "98800", ""],
        ["reading_seconds_per_day", "none", "7", "", "", ""],
    ]


def test_work_on_documents_is_a_row_of_documents_and_no_line(
    asked: list[dict[str, list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    read = row(lines=0, document_steps=7, reading_seconds=2.5, input_tokens=0, output_tokens=0)
    monkeypatch.setitem(PAGES, None, {"data": [read], "has_more": False, "next_page": None})
    header, *rows = [line.split("\t") for line in usage("--by", "model").stdout.splitlines()]
    assert [dict(zip(header, one, strict=True)) for one in rows] == [
        {
            "model": "documents", "lines": "0", "input": "0", "cached": "20", "output": "0", "truncated": "3",
            "cost EUR": "0.000001500001", "gpu seconds": "1234.56", "document steps": "7", "reading seconds": "2.5",
        }
    ]  # fmt: skip
