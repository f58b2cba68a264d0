"""Browsers of several people."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from sqlalchemy.orm import Session

from jobs.accounts.keys import create_key
from tests.api.browser import Browser


@pytest.fixture(scope="session")
def deployment(pages_deployment: Any) -> Any:
    """The API that only tests of pages use."""
    return pages_deployment


@pytest.fixture
def browse(deployment: Any) -> Iterator[Callable[[str | None], Browser]]:
    """Return a function that opens a browser, signed in with a key unless it is None."""
    with ExitStack() as stack:

        def open_one(key: str | None) -> Browser:
            browser = stack.enter_context(Browser(base_url=deployment.url, timeout=120))
            if key is not None:
                assert browser.sign_in(key).status_code == 303
            return browser

        yield open_one


@pytest.fixture
def operator_key(deployment: Any) -> str:
    with Session(deployment.engine) as session, session.begin():
        return create_key(session, None)[1]
