"""A session for frequent queries, on one connection that stays open."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from sqlalchemy.orm import Session, sessionmaker

from jobs.database.failures import reported_as_service_error
from jobs.database.transactions import open_autocommit, transaction

T = TypeVar("T")


class KeptSession:
    """For one thread at a time. Each statement is its own transaction, as in `autocommit`.

    A poll that finds nothing, made several times a second in some roles, is then one round trip instead of three and a
    connection check. Behind a pooler each query is still run in a transaction: our connection settings hold only within
    one.
    """

    def __init__(self, maker: sessionmaker[Session]) -> None:
        """Takes a connection of `maker` at the first query, and keeps it."""
        self._maker = maker
        self._session: Session | None = None

    def ask(self, question: Callable[[Session], T]) -> T:
        """Return the result of `question`, which may be called again. Raises ServiceError as `transaction` does.

        After any error the next query uses another connection.
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
        """Return the connection; the next query takes one again."""
        if self._session is not None:
            session, self._session = self._session, None
            session.close()
