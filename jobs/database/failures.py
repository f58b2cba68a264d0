"""What an error of Postgres is to a caller: a ServiceError where the same call may be tried again. Knows no query."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError, InterfaceError, InternalError, OperationalError, ProgrammingError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from jobs.errors import ServiceError

# SQLSTATEs of a server that is going down, starting or full, or that took us for stopped in a transaction: not the
# caller's fault, worth another try.
_UNAVAILABLE_STATES = frozenset({"57P01", "57P02", "57P03", "53300", "53100", "53200", "25P03"})
# Deadlock, lock timeout, serialization failure: the transaction is rolled back, and the same one may pass next time.
_CONTENDED_STATES = frozenset({"40P01", "55P03", "40001"})
_UNDEFINED_TABLE = "42P01"
_INSUFFICIENT_PRIVILEGE = "42501"


@contextmanager
def reported_as_service_error(url: URL) -> Iterator[None]:
    """Turn a Postgres that is away, overloaded, contended or lacks a table into ServiceError; other errors pass."""
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
    """Tell whether the server is away, restarting or full, as against a statement that failed."""
    state = _sqlstate(error)
    return error.connection_invalidated or state is None or state in _UNAVAILABLE_STATES


def unreachable(url: URL, error: DBAPIError) -> str:
    """Return the sentence that says which server cannot be reached, why, and where to look."""
    where = f"cannot reach Postgres at {_address(url)}{cause(error)}"
    return f"{where}; check TOKENMILL_DATABASE_URL and that the server runs"


def cause(error: DBAPIError) -> str:
    """Return what the server or the driver said first, in brackets after a space; empty where they said nothing."""
    lines = str(error.orig).strip().splitlines()
    return f" ({lines[0]})" if lines else ""


def _sqlstate(error: DBAPIError) -> str | None:
    return getattr(error.orig, "sqlstate", None)


def _address(url: URL) -> str:
    host = url.host or url.query.get("host") or "the local socket"
    return f"{host}:{url.port or url.query.get('port') or 5432}/{url.database or ''}"
