"""Tests of checking structures at submission, in bounded time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from engine.config import EngineConfig
from engine.errors import InvalidRequestError
from engine.structured import MAX_LEVELS, StructuredOutput
from jobs.lines.body_checks import BodyError
from jobs.lines.body_structure import Structure
from workers import structure
from workers.prompt_lengths import Unwanted

PATIENCE_SECONDS = 60.0


class Checks:
    """Replaces llguidance: refuses "bad", hangs on texts that begin with "slow" until `release`."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self.asked: list[str] = []

    def __call__(self, structured: StructuredOutput) -> None:
        assert structured.regex is not None
        self.asked.append(structured.regex)
        if structured.regex.startswith("slow"):
            assert self.release.wait(PATIENCE_SECONDS)
        if structured.regex == "bad":
            raise InvalidRequestError("The regex cannot be used.")


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Checks]:
    checks = Checks()
    monkeypatch.setattr(structure, "check_grammar", checks)
    structure._checks.cache_clear()
    yield checks
    checks.release.set()
    structure._checks.cache_clear()


@pytest.fixture
def no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(structure, "CHECK_SECONDS", 1e-9)


def problem_of(regex: str, *, tenant: str = "") -> str | None:
    try:
        structure.check_structure(StructuredOutput(regex=regex), structure.Asker(tenant=tenant), param="guided_regex")
    except BodyError as error:
        return str(error)
    return None


def test_a_verdict_is_kept_for_the_lines_that_share_a_structure(checks: Checks) -> None:
    assert [problem_of("good"), problem_of("good")] == [None, None]
    assert [problem_of("bad"), problem_of("bad")] == ["The regex cannot be used."] * 2
    assert checks.asked == ["good", "bad"]


def test_the_error_names_the_parameter(checks: Checks) -> None:
    with pytest.raises(BodyError) as caught:
        structure.check_structure(StructuredOutput(regex="bad"), structure.Asker(), param="guided_regex")
    assert (caught.value.param, caught.value.code) == ("guided_regex", "unsupported_structure")


@pytest.mark.usefixtures("no_time")
def test_a_check_that_takes_too_long_is_the_lines_error_with_the_limit(checks: Checks) -> None:
    reason = "The grammar was not compiled within 1e-09 s; make it simpler."
    assert [problem_of("slow"), problem_of("slow")] == [reason, reason]
    assert checks.asked == ["slow"]


def test_checks_of_one_tenant_that_hang_fail_no_check_of_another(checks: Checks) -> None:
    def ask(index: int) -> None:
        problem_of(f"slow {index}", tenant="bulk")

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(7)]
    for thread in threads:
        thread.start()
    assert [problem_of(f"good {index}", tenant="innocent") for index in range(5)] == [None] * 5
    checks.release.set()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)


def test_large_grammars_of_one_tenant_fail_no_line_of_another() -> None:
    """With llguidance itself."""
    asked: dict[int, str | None] = {}

    def ask(number: int) -> None:
        properties = {f"p{number}_{n}": {"type": "string", "pattern": f"^(a|b{n})*[a-z]{{1,50}}$"} for n in range(1000)}
        schema = StructuredOutput(json={"type": "object", "properties": properties})
        try:
            structure.check_structure(schema, structure.Asker(tenant="bulk"), param="guided_json")
        except BodyError as error:
            asked[number] = str(error)
        else:
            asked[number] = None

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(7)]
    for thread in threads:
        thread.start()
    innocent = [problem_of(f"[a-z]+{number}", tenant="innocent") for number in range(5)]
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert innocent == [None] * 5
    assert asked == dict.fromkeys(range(7))


def test_a_check_that_nobody_waits_for_is_left(checks: Checks) -> None:
    answers = iter([True, False])
    asker = structure.Asker(is_wanted=lambda: next(answers))
    with pytest.raises(Unwanted):
        structure.check_structure(StructuredOutput(regex="slow"), asker, param="guided_regex")


def test_a_grammar_that_takes_much_work_is_refused_by_llguidances_own_limit() -> None:
    properties = {f"p{n}": {"type": "string", "pattern": f"^(a|b{n})*[a-z]{{1,50}}$"} for n in range(4900)}
    large = Structure(param="guided_json", fields={"json": {"type": "object", "properties": properties}})
    with pytest.raises(BodyError, match="too big") as caught:
        structure.structured_output(large, structure.Asker())
    assert caught.value.code == "unsupported_structure"


def test_a_check_has_as_long_as_the_engine_compiles() -> None:
    assert EngineConfig(model="m").grammar_timeout_seconds == structure.CHECK_SECONDS


@pytest.mark.parametrize("num_levels", [MAX_LEVELS + 1, 300, 1000, 2000])
def test_a_schema_that_is_too_deep_is_refused_with_its_depth_and_the_limit(num_levels: int) -> None:
    deep = Structure(param="guided_json", fields={"json": nested_arrays(num_levels)})
    with pytest.raises(BodyError) as caught:
        structure.structured_output(deep, structure.Asker())
    assert (caught.value.param, caught.value.code) == ("guided_json", "unsupported_structure")
    depth = "too many" if num_levels >= 1000 else num_levels
    sentence = f"The JSON schema is nested {depth} levels deep; {MAX_LEVELS} are allowed."
    assert str(caught.value).startswith(sentence)


def nested_arrays(num_levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(num_levels - 1):
        schema = {"items": schema}
    return schema
