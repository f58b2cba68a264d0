"""A create call for a batch, and the checks that need no database."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import orjson

from jobs.call_limits import MAX_IDEMPOTENCY_KEY, parse_window
from jobs.errors import InputError, TooLargeError
from jobs.files import MAX_EXPIRY_SECONDS, MIN_EXPIRY_SECONDS, Purpose
from jobs.lines.endpoints import require_endpoint
from jobs.settings import Settings
from jobs.states import AskedPriority, EngineChoice, InvalidLines, UncoveredLines
from jobs.tables import File

MAX_NAME = 200
NAME_PATTERN = r"^[^\u0000-\u001f\u007f-\u009f\u2028\u2029]+$"
MAX_METADATA_PAIRS = 16
MAX_METADATA_KEY = 64
MAX_METADATA_VALUE = 512

# How this attempt reached us, not what it asks for; what `made_from` says; its run, and what that has left.
_NOT_IN_FINGERPRINT = frozenset(
    {
        *("idempotency_key", "retry_count", "made_from", "retry_of", "run_id", "cap_tokens", "cap_picos"),
        *("is_ours", "is_growing", "trace_context", "stage_of"),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateBatch:
    """A create call."""

    input_file_id: str
    endpoint: str
    completion_window: str
    name: str | None = None
    """What its owner calls it, not unique; None: it is shown by the name of its input file."""
    metadata: Mapping[str, str] | None = None
    output_expires_after_seconds: int | None = None
    priority: AskedPriority = AskedPriority.NORMAL
    invalid_lines: InvalidLines = InvalidLines.FAIL
    uncovered_lines: UncoveredLines = UncoveredLines.WAIT
    made_from: str | None = None
    """What the input was made from where it was not uploaded, or its digest: it replaces the file in `fingerprint`."""
    engine: EngineChoice = EngineChoice.SAME
    is_reproducible: bool = False
    """Whether only an engine may answer that promises the same bits for the same line."""
    retry_of: str | None = None
    """The id of the batch whose failed lines these are."""
    after: str | None = None
    """The id of the batch that must complete before this one starts."""
    run_id: str | None = None
    """The id of the run that creates it. The metadata has it too, but its owner may write that anywhere."""
    stage_of: str | None = None
    """The id of the batch that it serves: that one was accepted, so neither a right nor a full queue refuses this
    one."""
    cap_tokens: int | None = None
    """The most that it may use beside the tenant's budget; None: no cap."""
    cap_picos: int | None = None
    """The same in money."""
    is_growing: bool = False
    """Whether the service may add lines to it (`jobs.batches.growth.adding`)."""
    is_ours: bool = False
    """Whether the service creates it, not a user: only then may its lines use an endpoint that is not public."""
    idempotency_key: str | None = None
    trace_context: str | None = None
    """Trace context of the request's span, if traced."""
    retry_count: int = 0
    """The client's retry count (x-stainless-retry-count): 0 for a first try."""

    def fingerprint(self) -> str:
        """Return a hash of the request, equal for a repeated call."""
        values = {name: value for name, value in asdict(self).items() if name not in _NOT_IN_FINGERPRINT}
        # An absent field is left out, so that new fields leave other calls' hashes unchanged.
        absent = {"after": None, "name": None, "engine": EngineChoice.SAME, "is_reproducible": False}
        values = {name: value for name, value in values.items() if name not in absent or value != absent[name]}
        if self.made_from is not None:
            values["input_file_id"] = self.made_from
        return hashlib.sha256(orjson.dumps(values, option=orjson.OPT_SORT_KEYS)).hexdigest()


def check_request(request: CreateBatch) -> None:
    """Raise InputError where a field of the call is not allowed; `check_file` checks the file."""
    parse_window(request.completion_window)
    require_endpoint(request.endpoint, is_ours=request.is_ours)
    seconds = request.output_expires_after_seconds
    if seconds is not None and not MIN_EXPIRY_SECONDS <= seconds <= MAX_EXPIRY_SECONDS:
        raise InputError(
            f"Invalid output_expires_after: {seconds} seconds. Give {MIN_EXPIRY_SECONDS} to {MAX_EXPIRY_SECONDS}.",
            param="output_expires_after.seconds",
            code="invalid_value",
        )
    if request.is_reproducible and request.engine is EngineChoice.ANY:
        raise InputError(
            "A batch that is to be reproducible has one engine, and engine is 'any'. Leave one of them out.",
            param="engine",
            code="invalid_value",
        )
    key = request.idempotency_key
    if key is not None and not 0 < len(key) <= MAX_IDEMPOTENCY_KEY:
        raise InputError(f"The Idempotency-Key has {len(key)} characters; give 1 to {MAX_IDEMPOTENCY_KEY}.")
    if request.name is not None:
        check_name(request.name)
    check_metadata(request.metadata)


def check_name(name: str) -> None:
    """Raise InputError for a name that lists cannot show on one line."""
    if not 0 < len(name) <= MAX_NAME or not re.fullmatch(NAME_PATTERN, name):
        raise InputError(
            f"name is {name[:100]!r}, of {len(name):,} characters; give 1 to {MAX_NAME} on one line, without control "
            "characters.",
            param="name",
            code="invalid_value",
        )


def check_metadata(metadata: Mapping[Any, Any] | None) -> None:
    """Raise InputError where metadata exceeds the API's limits."""
    if metadata is None:
        return
    if len(metadata) > MAX_METADATA_PAIRS:
        raise _metadata_error(f"it has {len(metadata)} pairs and {MAX_METADATA_PAIRS} are allowed")
    for key, value in metadata.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise _metadata_error(f"keys and values must be strings, and {key!r} has {value!r}")
        if len(key) > MAX_METADATA_KEY:
            raise _metadata_error(f"the key {key[:40]!r}… has {len(key)} characters and {MAX_METADATA_KEY} are allowed")
        if len(value) > MAX_METADATA_VALUE:
            raise _metadata_error(
                f"the value of {key!r} has {len(value)} characters and {MAX_METADATA_VALUE} are allowed"
            )


def check_file(file: File, settings: Settings) -> None:
    """Raise InputError or TooLargeError where the file cannot be a batch's input.

    An empty file passes: it fails validation, as with OpenAI.
    """
    if file.purpose != Purpose.BATCH:
        raise InputError(
            f"File {file.id!r} has purpose {file.purpose!r}; upload it with purpose 'batch'.",
            param="input_file_id",
            code="invalid_file_purpose",
        )
    if file.size_bytes > settings.max_file_bytes:
        raise TooLargeError(
            f"The file has {file.size_bytes:,} bytes and a batch may have {settings.max_file_bytes:,}. "
            "Split it into several batches.",
            param="input_file_id",
            code="file_too_large",
        )
    assert file.num_requests is not None, "a batch input has an estimate"
    if file.num_requests > settings.max_batch_lines:
        raise TooLargeError(
            f"The file has {file.num_requests:,} requests and a batch may have {settings.max_batch_lines:,}. "
            "Split it into several batches.",
            param="input_file_id",
            code="too_many_tasks",
        )


def _metadata_error(problem: str) -> InputError:
    return InputError(f"Invalid metadata: {problem}.", param="metadata", code="invalid_value")
