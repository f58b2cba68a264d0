"""Log lines of every role: text for people, or one JSON object per line. Never prompts or outputs.

Defines format and destination of records; callers decide what to log.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import threading
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, TextIO

from jobs.telemetry.relay import Relay

_PAIR = re.compile(r"(\w+)=%(?:\((\w+)\))?[-+ #0-9.]*[a-z]")
_AS_IT_IS = (bool, int, float, type(None))
_CHATTY = ("celery", "kombu", "httpx", "obstore")


class JsonLines(logging.Formatter):
    """Format a record as one line: time, level, role, event and fields.

    The fields come from the record's `fields`, or from names in its format: `"batch validated batch_id=%s"` is an event
    and its field. Text after the last of them is the `note`.
    """

    def __init__(self, role: str) -> None:
        super().__init__()
        self._role = role

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC)
        event, fields = _told(record)
        entry: dict[str, Any] = {
            "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "role": self._role,
            "event": event,
            **fields,
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry)  # escapes all but ASCII: no character of a request can break a line, or a terminal


class _Relayed(logging.StreamHandler[TextIO]):
    """Write to the original stderr from before a relay."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Drop a record that cannot be written: reporting it on stderr would end up here again, endlessly."""


def _told(record: logging.LogRecord) -> tuple[str, dict[str, Any]]:
    """Return event and fields of a record."""
    explicit = getattr(record, "fields", None)
    if explicit is not None:
        return record.getMessage(), explicit
    fields = {"logger": record.name}
    pairs = list(_PAIR.finditer(record.msg)) if isinstance(record.msg, str) else []
    phrase = record.msg[: pairs[0].start()] if pairs else ""
    # another library's, whose message is not fixed
    if not pairs or "%" in phrase or "%" in record.msg[pairs[-1].end() :]:
        return record.getMessage(), fields
    values = _values(record, pairs)
    if values is None:
        return record.getMessage(), fields
    note = record.msg[pairs[-1].end() :].strip(" :")
    return phrase.strip(), fields | values | ({"note": note} if note else {})


def _values(record: logging.LogRecord, pairs: list[re.Match[str]]) -> dict[str, Any] | None:
    """Return the arguments by the names that precede them; None where they do not match."""
    if isinstance(record.args, dict):
        values = {pair[1]: record.args.get(pair[2] or "") for pair in pairs}
    elif isinstance(record.args, tuple) and len(record.args) == len(pairs):
        values = {pair[1]: value for pair, value in zip(pairs, record.args, strict=True)}
    else:
        return None
    return {name: value if type(value) in _AS_IT_IS else str(value) for name, value in values.items()}


def configure(role: str, *, is_json: bool, has_relay: bool = False) -> None:
    """Send all records of this process to stderr.

    With `has_relay` the stdout and stderr of this process and its children become records too.
    """
    handler = logging.StreamHandler(sys.stderr)
    if has_relay:
        relay = Relay(lambda text: logging.getLogger("output").info("output", extra={"fields": {"text": text}}))
        handler = _Relayed(relay.start())
    handler.setFormatter(JsonLines(role) if is_json else _text(role))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)
    if is_json:
        logging.captureWarnings(True)
        sys.excepthook = _log_exception
        threading.excepthook = _log_thread_exception


def wants_json() -> bool:
    """Return whether TOKENMILL_LOG_FORMAT is json; read before the settings, whose errors are logged too."""
    return os.environ.get("TOKENMILL_LOG_FORMAT") == "json"


def is_json() -> bool:
    """Return whether this process writes JSON lines."""
    return any(isinstance(handler.formatter, JsonLines) for handler in logging.getLogger().handlers)


def last_words(line: str) -> str:
    """Return the message of a log line: the reason in a JSON line, otherwise the line itself."""
    try:
        entry = json.loads(line)
    except ValueError:
        return line
    if not isinstance(entry, dict):
        return line
    traceback = str(entry.get("traceback", "")).strip().rpartition("\n")[2]
    known = (entry.get(name) for name in ("reason", "error", "text", "event"))
    return traceback or next((str(one) for one in known if one), line)


def _text(role: str) -> logging.Formatter:
    return logging.Formatter(f"%(asctime)s %(levelname)s {role} %(message)s", datefmt="%Y-%m-%dT%H:%M:%S%z")


def _log_exception(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, traceback)
    else:
        logging.getLogger(__name__).critical("process ends", exc_info=(kind, error, traceback))


def _log_thread_exception(arguments: threading.ExceptHookArgs) -> None:
    if arguments.exc_value is not None and not isinstance(arguments.exc_value, SystemExit):
        exc_info = (arguments.exc_type, arguments.exc_value, arguments.exc_traceback)
        logging.getLogger(__name__).error("thread ends", exc_info=exc_info)
