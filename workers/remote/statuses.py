"""What an HTTP status other than 200 means for a line: one table, and the words of a context that is too long. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import orjson

from workers.remote.verdicts import Busy, Denied, Refused, Spoilt, Verdict

TOO_LONG = "context_length_exceeded"
"""The code of a line that does not fit into the context, together with the limit of its answer."""
MAX_MESSAGE = 500
"""Characters of a server's message that a result quotes."""

_REFUSALS = frozenset({400, 413, 422})
_BUSY = frozenset({408, 409, 425, 429, 502, 503, 504, 529})
_LATE = frozenset({408, 502, 504})
"""Those of them after which an answer may have been computed."""
_SETTINGS = frozenset({401, 402, 403, 404, 405, 407, 410})
_ADVICE: Mapping[int, str] = {
    401: "give a valid key with --key-file",
    402: "the account behind the key has no credit",
    403: "the key may not use this model",
    404: "check --url, and the model's name at the server",
}

_WORDS_OF_TOO_LONG = re.compile(
    r"maximum context length|max_model_len|longer than the model's context|exceeds? the (maximum|available|model)"
    r"[\w ]*(length|context)|exceed_context_size|exceed context window|context[_ ]length[_ ]exceeded|context overflow"
    r"|greater than the context length|input length exceeds|prompt is too long|exceeds the maximum allowed"
    r"|inputs?`? tokens .*must be <=|context (window|size|length) (is )?(exceeded|too small)",
    re.IGNORECASE,
)
"""Each engine's own words: vLLM, SGLang, llama-server, llama-cpp-python, OpenAI, LM Studio, Ollama, Anthropic, TGI."""


def verdict_of_status(status: int, headers: Mapping[str, str], content: bytes, *, now: datetime) -> Verdict:
    """Return what a status other than 200 means; `content` is the body, or its beginning."""
    said = error_message(content)
    if status in _REFUSALS:
        return _refusal(status, said)
    if status in _BUSY:
        return Busy(
            reason=f"the server answers {status}: {said}",
            retry_after_seconds=retry_after(headers.get("retry-after"), now=now),
            may_have_computed=status in _LATE,
        )
    if 300 <= status < 400:
        to = headers.get("location", "nowhere")[:200]
        reason = f"the server redirects ({status}) to {to}, which is not followed; give its own URL as --url"
        return Denied(status=status, reason=reason)
    if status in _SETTINGS:
        advice = _ADVICE.get(status, "check --url")
        return Denied(status=status, reason=f"the server answers {status}: {said}; {advice}")
    return Spoilt(reason=f"the server answered {status}: {said}", is_lasting=status < 500)


def is_passing(status: int) -> bool:
    """Return whether a server that gives this status may give another one to the same request later."""
    return status in _BUSY or status >= 500


def _refusal(status: int, said: str) -> Refused:
    is_too_long = _WORDS_OF_TOO_LONG.search(said) is not None
    code = TOO_LONG if is_too_long else "refused_by_engine"
    return Refused(status_code=400, message=f"the engine refused this line ({status}): {said}", code=code)


def error_message(content: bytes) -> str:
    """Return the message of an error in any server's form, shortened; a page or a binary only by its size."""
    try:
        value = orjson.loads(content)
    except orjson.JSONDecodeError:
        return f"{len(content):,} bytes that are no JSON"
    message = _message(value)
    return message if len(message) <= MAX_MESSAGE else message[:MAX_MESSAGE] + "…"


def _message(value: Any) -> str:
    """Look where servers put it: OpenAI's error.message, FastAPI's detail, a bare message, or all of it."""
    if isinstance(value, dict):
        for name in ("error", "detail", "message"):
            if value.get(name):
                return _message(value[name])
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def retry_after(header: str | None, *, now: datetime) -> float | None:
    """Return the seconds of a Retry-After, a number or a date; None for one that is missing, past or not to be read."""
    if header is None:
        return None
    try:
        seconds = float(header)
    except ValueError:
        try:
            until = parsedate_to_datetime(header)
        except ValueError:
            return None
        seconds = (until if until.tzinfo else until.replace(tzinfo=UTC)).timestamp() - now.timestamp()
    return seconds if math.isfinite(seconds) and seconds > 0 else None
