"""Translate Postgres errors: a ServiceError where the same call may be retried."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError, InterfaceError, InternalError, OperationalError, ProgrammingError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from jobs.errors import ServiceError

# SQLSTATEs of a server that is shutting down, starting or full, or that ended our idle transaction: not the caller's
# fault, worth a retry.
_UNAVAILABLE_STATES = frozenset({"57P01", "57P02", "57P03", "53300", "53100", "53200", "25P03"})
# Deadlock, lock timeout, serialization failure: the transaction is rolled back, and may succeed when repeated.
_CONTENDED_STATES = frozenset({"40P01", "55P03", "40001"})
_UNDEFINED_TABLE = "42P01"
_INSUFFICIENT_PRIVILEGE = "42501"


@contextmanager
def reported_as_service_error(url: URL) -> Iterator[None]:
    """Raise ServiceError where Postgres is away, overloaded, contended or lacks a table; other errors pass."""
    try:
        yield
    except PoolTimeoutError:
        raise ServiceError(
            f"every connection to Postgres at {_address(url)} is in use; try again, or run more API processes"
        ) from None
    except (OperationalError, InterfaceError, InternalError) as error:
        if _sqlstate(error) in _CONTENDED_STATES:
            raise ServiceError(f"Postgres gave up this transaction to let others pass{cause(error)}; retry") from error
        if not is_connection_problem(error):
            raise
        raise ServiceError(unreachable(url, error)) from error
    except ProgrammingError as error:
        if _sqlstate(error) == _INSUFFICIENT_PRIVILEGE:
            raise ServiceError(
                f"the database at {_address(url)} refuses this to {url.username}{cause(error)}. Run `tokenmill db "
                "upgrade` with TOKENMILL_DATABASE_OWNER_URL set: see docs/database_roles.md"
            ) from error
        if _sqlstate(error) != _UNDEFINED_TABLE:
            raise
        raise ServiceError(
            f"the database at {_address(url)} lacks a table of this version{cause(error)}. "
            "Run `tokenmill db upgrade`, or name another database in TOKENMILL_DATABASE_URL."
        ) from error


def is_connection_problem(error: DBAPIError) -> bool:
    """Return whether the server is away, restarting or full, as opposed to a failed statement."""
    state = _sqlstate(error)
    return error.connection_invalidated or state is None or state in _UNAVAILABLE_STATES


def unreachable(url: URL, error: DBAPIError) -> str:
    """Return a sentence that names the unreachable server, the reason, and what to check."""
    where = f"cannot reach Postgres at {_address(url)}{cause(error)}"
    return f"{where}; check TOKENMILL_DATABASE_URL and that the server runs"


def cause(error: DBAPIError) -> str:
    """Return the first line of the server's or driver's message, in brackets after a space; empty without one."""
    lines = str(error.orig).strip().splitlines()
    return f" ({lines[0]})" if lines else ""


def _sqlstate(error: DBAPIError) -> str | None:
    return getattr(error.orig, "sqlstate", None)


def _address(url: URL) -> str:
    host = url.host or url.query.get("host") or "the local socket"
    return f"{host}:{url.port or url.query.get('port') or 5432}/{url.database or ''}"
