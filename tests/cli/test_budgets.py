"""Tests of `tokenmill budgets` on a real database."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from typer.testing import CliRunner

from cli.app import app
from jobs.errors import InputError

Tokenmill = Callable[..., list[list[str]]]


@pytest.fixture
def tokenmill(database_url: str) -> Tokenmill:
    """Return the command, with output lines split into columns."""

    def run(*arguments: str) -> list[list[str]]:
        variables = {"TOKENMILL_DATABASE_URL": database_url}
        done = CliRunner().invoke(app, arguments, env=variables, catch_exceptions=False)
        return [line.split("\t") for line in done.stdout.splitlines()]

    run("tenants", "create", "acme")
    return run


def test_budgets_are_set_listed_set_again_and_removed(tokenmill: Tokenmill) -> None:
    in_berlin = ("--window", "month", "--time-zone", "Europe/Berlin", "--warn-at", "80")
    _, money = tokenmill("budgets", "set", "acme", "--money", "12.5", *in_berlin)
    assert money[1:8] == ["acme", "", "money", "month", "Europe/Berlin", "12.50", "0.00"]
    assert money[10] == "80"
    assert money[11].endswith(("T22:00:00Z", "T23:00:00Z"))
    tokenmill("budgets", "set", "acme", "--tokens", "1000")
    header, *rows = tokenmill("budgets", "list")
    assert header[0] == "id"
    assert [row[3:7] for row in rows] == [
        ["money", "month", "Europe/Berlin", "12.50"],
        ["tokens", "total", "UTC", "1000"],
    ]
    _, again = tokenmill("budgets", "set", "acme", "--money", "20", "--window", "month")
    assert (again[0], *again[5:7], again[10]) == (money[0], "Europe/Berlin", "20.00", "80")
    _, quiet = tokenmill("budgets", "set", "acme", "--money", "20", "--window", "month", "--warn-at", "none")
    assert (quiet[5], quiet[10]) == ("Europe/Berlin", "")
    assert tokenmill("budgets", "remove", money[0]) == [[f"removed {money[0]}"]]
    assert len(tokenmill("budgets", "list", "acme")) == 2


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "either --tokens N or --money AMOUNT"),
        (("--tokens", "1", "--money", "1"), "either --tokens N or --money AMOUNT"),
        (("--money", "1,50"), "'1,50' is no amount"),
        (("--money", "0.0000000000001"), "at most 12 digits"),
        (("--tokens", "1", "--time-zone", "Berlin"), "Europe/Berlin"),
        (("--tokens", "1", "--key", "key_none"), "tokenmill keys list"),
        (("--tokens", "1", "--warn-at", "0"), "1 to 100 per cent, or `none`"),
    ],
)
def test_what_is_wrong_is_said(tokenmill: Tokenmill, arguments: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        tokenmill("budgets", "set", "acme", *arguments)
