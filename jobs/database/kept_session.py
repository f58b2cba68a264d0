"""A session for what is asked again and again, on one connection that is kept. Knows no table."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from sqlalchemy.orm import Session, sessionmaker

from jobs.database.failures import reported_as_service_error
from jobs.database.transactions import open_autocommit, transaction

T = TypeVar("T")


class KeptSession:
    """For one thread at a time. Each statement is a transaction of its own, as `autocommit` runs them.

    A look that finds nothing, several times a second in some role, is one round trip so; in a transaction it is three,
    and a check of the connection. Behind a pooler each question is a transaction all the same: what a connection was
    told of our settings holds in one alone.
    """

    def __init__(self, maker: sessionmaker[Session]) -> None:
        """Takes a connection of `maker` at the first question, and holds it."""
        self._maker = maker
        self._session: Session | None = None

    def ask(self, question: Callable[[Session], T]) -> T:
        """Return what `question` finds; it may be asked anew. Raises ServiceError as `transaction` does.

        After any error the next question is asked on another connection.
        """
        with reported_as_service_error(self._maker.kw["bind"].url):
            try:
                self._session = self._session or open_autocommit(self._maker)
                if not self._session.connection().info["is_pooled"]:
                    return question(self._session)
            except BaseException:
                self.close()
                raise
        self.close()
        with transaction(self._maker) as session:
            return question(session)

    def close(self) -> None:
        """Give the connection back; the next question takes one again."""
        if self._session is not None:
            session, self._session = self._session, None
            session.close()
