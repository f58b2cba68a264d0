"""Tests that docs/engines.md shows the table of dialects, and that its example is an engine that a worker can use."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.orm import Session, sessionmaker

from examples.own_engine import Handler
from jobs.lines.needs import Need
from jobs.settings import Settings
from jobs.storage import Storage
from tests.workers.remote.builders import Post
from workers.remote.checks import first_check
from workers.remote.dialects import DIALECTS, VLLM
from workers.remote.exchange import Address
from workers.remote.identity import identify
from workers.remote.probing.probes import probes_of

ROOT = Path(__file__).resolve().parents[3]


def offers() -> str:
    """Return the table of the page: for each need the kinds of servers that offer it."""
    rows = ["| needed | offered by |", "|---|---|"]
    for need in Need:
        (name,) = need.names()
        kinds = [dialect.kind for dialect in DIALECTS.values() if need in dialect.meets]
        rows.append(f"| `{name}` | {'all' if len(kinds) == len(DIALECTS) else ', '.join(kinds) or 'none'} |")
    return "\n".join(rows)


def test_the_page_shows_what_each_kind_of_server_offers() -> None:
    assert offers() in (ROOT / "docs" / "engines.md").read_text(encoding="utf-8")


def test_the_example_of_the_page_has_at_most_60_lines() -> None:
    assert len((ROOT / "examples" / "own_engine.py").read_text(encoding="utf-8").splitlines()) <= 60


@pytest.fixture
def own_engine() -> Iterator[str]:
    class Quiet(Handler):
        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Quiet)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_an_engine_of_one_s_own_answers_a_batch(
    own_engine: str,
    maker: sessionmaker[Session],
    storage: Storage,
    settings: Settings,
    submit_valid: Callable[..., str],
    line: Callable[..., dict[str, Any]],
) -> None:
    address = Address(url=f"{own_engine}/v1")
    identity = identify(address, named=None, served="demo")
    check, name = first_check(address, identity, has_tokenizer=False)
    assert (identity.max_model_len, check.path, name) == (4096, "chat/completions", "reverse")
    submit_valid([line(0, messages=[{"role": "user", "content": "one two three four five"}]), line(1, n=2)])
    post = Post(address.url, maker, storage, settings)
    post.open(identity=identity, answers_as=name)
    assert post.run_next()
    post.close()
    (answer,) = post.bodies_of(200)
    assert answer["choices"][0]["message"]["content"] == "five four three two"
    assert answer["choices"][0]["finish_reason"] == "length"
    assert post.billed() == (5, 4)
    (refusal,) = post.bodies_of(400)
    assert "one answer" in refusal["error"]["message"]


def test_the_page_shows_how_each_capability_is_seen() -> None:
    page = (ROOT / "docs" / "engines.md").read_text(encoding="utf-8")
    for probe in probes_of(VLLM):
        assert f"| `{probe.name}` | {probe.effect} |" in page
