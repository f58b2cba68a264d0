"""Tests of messages to an open page: everything new, within the size of a message, with nothing left out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import count
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from api.dashboard.live import (
    GONE,
    MAX_BYTES,
    MOST_PAGES,
    MOST_STREAMS,
    Look,
    OpenPages,
    Told,
    View,
    _look_at_all,
    _Open,
    one_by_one,
    stream,
)
from jobs.database import sessions
from jobs.errors import NotFoundError, RateLimitError

shows_nothing = one_by_one(lambda _session, _subject: Look(values={}))
WIDE = {f"{row}.{what}": "no worker serves its model" for row in range(100) for what in ("why", "end")}


def test_values_that_have_not_changed_are_not_told_again() -> None:
    told = Told()
    assert (
        told.news(Look(values={"a": "1", "b": ("bad", "warn")}))
        == '{"layout":"","values":{"a":"1","b":["bad","warn"]}}'
    )
    assert told.news(Look(values={"a": "1", "b": ("bad", "warn")})) is None
    assert told.news(Look(values={"a": "2", "b": ("bad", "warn")})) == '{"layout":"","values":{"a":"2"}}'


def test_a_page_without_values_is_told_its_layout_once() -> None:
    told = Told()
    assert told.news(Look(values={}, layout="gone")) == '{"layout":"gone","values":{}}'
    assert told.news(Look(values={}, layout="gone")) is None


def test_what_has_no_room_in_a_message_comes_with_the_next_ones() -> None:
    told, shown = Told(), dict[str, str]()
    messages = []
    while (message := told.news(Look(values=WIDE, layout="x" * 12))) is not None:
        messages.append(message)
        shown |= json.loads(message)["values"]
    assert shown == WIDE
    assert len(messages) > 2
    assert all(len(f"data: {message}\n\n") <= 2048 for message in messages)
    assert max(map(len, messages)) <= MAX_BYTES


def test_values_take_turns_where_all_change_all_the_time() -> None:
    told, told_of = Told(), set[str]()
    for moment in range(10):
        message = told.news(Look(values=dict.fromkeys(WIDE, f"{moment}" * 30)))
        assert message is not None
        told_of |= set(json.loads(message)["values"])
    assert told_of == set(WIDE)


def test_one_value_that_no_message_holds_keeps_no_other_from_being_told() -> None:
    told = Told()
    look = Look(values={"a": "x" * 3 * MAX_BYTES, "b": "1"})
    assert told.news(look) is not None
    assert told.news(look) == '{"layout":"","values":{"b":"1"}}'
    assert told.news(look) is None


def test_a_page_with_other_rows_is_told_all_its_values() -> None:
    """The browser may have loaded it before they changed."""
    told, look = Told(), Look(values={"0.state": "live", "1.state": "live"}, layout="one")
    told.news(look)
    other = Look(values=look.values, layout="two")
    assert told.news(other) == '{"layout":"two","values":{"0.state":"live","1.state":"live"}}'
    assert told.news(other) is None


def test_one_tenant_opens_so_many_different_pages_and_no_more() -> None:
    pages = OpenPages(SimpleNamespace())  # type: ignore[arg-type]
    with ExitStack() as opened:
        for number in range(MOST_PAGES):
            view = View("batch", ("tenant_a", number))
            stream(pages, view, shows_nothing, viewer_id="tenant_a")
            opened.enter_context(pages._viewing(view, shows_nothing, "tenant_a"))
        with pytest.raises(RateLimitError, match="60 different pages"):
            stream(pages, View("batch", ("tenant_a", -1)), shows_nothing, viewer_id="tenant_a")
        stream(pages, View("batch", ("tenant_a", 0)), shows_nothing, viewer_id="tenant_a")
        stream(pages, View("batch", ("tenant_b", 0)), shows_nothing, viewer_id="tenant_b")
    stream(pages, View("batch", ("tenant_a", -1)), shows_nothing, viewer_id="tenant_a")


def test_pages_that_everybody_may_see_count_for_those_who_look() -> None:
    pages = OpenPages(SimpleNamespace())  # type: ignore[arg-type]
    with ExitStack() as opened:
        for number in range(MOST_PAGES):
            opened.enter_context(pages._viewing(View("models", number), shows_nothing, "tenant_a"))
        stream(pages, View("overview", None), shows_nothing, viewer_id=None)
        with pytest.raises(RateLimitError):
            stream(pages, View("models", -1), shows_nothing, viewer_id="tenant_a")


def test_one_tenant_has_so_many_streams_of_one_page_and_no_more() -> None:
    pages, view = OpenPages(SimpleNamespace()), View("models", 1)  # type: ignore[arg-type]
    with ExitStack() as opened:
        for _ in range(MOST_STREAMS):
            opened.enter_context(pages._viewing(view, shows_nothing, "tenant_a"))
        with pytest.raises(RateLimitError, match="or 120 in all"):
            stream(pages, view, shows_nothing, viewer_id="tenant_a")
        stream(pages, view, shows_nothing, viewer_id="tenant_b")


def test_a_stream_ends_with_its_page() -> None:
    pages, view = OpenPages(SimpleNamespace()), View("batch", ("tenant_a", "nothing"))  # type: ignore[arg-type]

    async def told() -> list[str | None]:
        with anyio.fail_after(20), pages._viewing(view, shows_nothing, "tenant_a") as page:
            page.latest = GONE
            return [news async for news in pages.watch(view, shows_nothing, "tenant_a")]

    assert anyio.run(told) == ['{"layout":"gone","values":{}}']


def test_a_page_that_is_gone_keeps_the_others_of_its_kind_together(deployment: Any) -> None:
    asked: list[str] = []

    def look(session: Session, name: str) -> Look:
        asked.append(name)
        return shown_by(name, session)

    pages = {View("same", name): _Open(one_by_one(look)) for name in ("first", "gone", "last")}
    services: Any = SimpleNamespace(sessions=sessions(deployment.engine))
    _look_at_all(services, pages)
    assert asked == ["first", "gone", "last"]


def test_nothing_is_kept_while_no_page_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.dashboard.live.LOOK_SECONDS", 0.0)
    monkeypatch.setattr("api.dashboard.live._look_at_all", lambda *_: 0.0)
    services: Any = SimpleNamespace(session_slots=anyio.Semaphore(1))
    pages = OpenPages(services)

    async def open_twice() -> int:
        async with anyio.create_task_group() as tasks:
            with pages._viewing(View("overview", None), shows_nothing, None):
                pages.recent.get("a", lambda: 1, seconds=1e9)
            tasks.start_soon(pages.keep_looking)
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
        return pages.recent.get("a", lambda: 2, seconds=1e9)

    assert anyio.run(open_twice) == 2


def test_an_open_page_is_told_that_it_lives_while_nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.dashboard.live.HEARTBEAT_SECONDS", 0.01)
    pages = OpenPages(SimpleNamespace())  # type: ignore[arg-type]

    async def first_told() -> str | None:
        with anyio.fail_after(20):
            async for told in pages.watch(View("overview", None), shows_nothing, None):
                return told
        raise AssertionError

    assert anyio.run(first_told) is None


def shown_by(name: str, session: Session) -> Look:
    """Return a look at a page that shows a number, is gone, or cannot be read."""
    if name == "gone":
        raise NotFoundError("there is no such batch")
    return Look(values={"n": str(session.scalar(text("SELECT 1 / 0" if name == "broken" else "SELECT 7")))})


NAMES = ("first", "broken", "gone", "last")
READ = Look(values={"n": "7"})


@pytest.mark.parametrize("kinds", [NAMES, ("same",) * 4])
def test_a_look_that_fails_keeps_no_other_page_from_being_looked_at(kinds: Sequence[str], deployment: Any) -> None:
    def look(session: Session, name: str) -> Look:
        return shown_by(name, session)

    pages = {View(kind, name): _Open(one_by_one(look)) for kind, name in zip(kinds, NAMES, strict=True)}
    services: Any = SimpleNamespace(sessions=sessions(deployment.engine))
    _look_at_all(services, pages)
    found = {view.subject: page.latest for view, page in pages.items()}
    assert found == {"first": READ, "broken": None, "gone": GONE, "last": READ}


def test_pages_of_a_kind_are_looked_at_together(deployment: Any) -> None:
    asked: list[list[str]] = []

    def look_at(_: Session, names: Sequence[str]) -> list[Look]:
        asked.append(list(names))
        return [Look(values={"name": name}) for name in names]

    views = [View(kind, name) for kind in ("one", "other") for name in ("a", "b")]
    pages = {view: _Open(look_at) for view in views}
    services: Any = SimpleNamespace(sessions=sessions(deployment.engine))
    _look_at_all(services, pages)
    assert asked == [["a", "b"], ["a", "b"]]
    assert all(page.latest == Look(values={"name": view.subject}) for view, page in pages.items())


def test_what_is_asked_lately_is_counted_in_looks(deployment: Any) -> None:
    numbers, found = count(), list[int]()
    services: Any = SimpleNamespace(sessions=sessions(deployment.engine), session_slots=anyio.Semaphore(1))
    pages = OpenPages(services)

    async def look_often() -> None:
        for _ in range(6):
            await pages._look()
            found.append(pages.recent.get("a", lambda: next(numbers), seconds=3))

    anyio.run(look_often)
    assert found == [0, 0, 0, 1, 1, 1]
