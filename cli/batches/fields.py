"""The fields of a batch or an estimate as text: times as dates, counts and amounts with units."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cli.table import when
from cli.watching.progress import money
from jobs.counted import counted
from jobs.outcomes import standing

_NOT_SHOWN = ("errors", "object")
_MOMENTS = ("eta", "eta_earliest", "eta_latest")
_ORDER = (
    *("status", "waits_for", "eta", "eta_earliest", "eta_latest", "position", "running_lines", "request_counts"),
    *("usage", "cost", "budget_warning"),
    *("name", "id", "model", "endpoint", "priority", "completion_window", "metadata"),
    *("created_at", "in_progress_at", "finalizing_at", "completed_at", "failed_at", "cancelling_at", "cancelled_at"),
    *("expired_at", "expires_at", "input_file_id", "output_file_id", "error_file_id"),
)
"""Status, identity, times, files; then fields that only some servers have."""


def batch_fields(batch: Mapping[str, Any]) -> dict[str, str]:
    """Return the fields of a Batch object as text, its status first; `errors` are left to the caller."""
    known = {name: value for name, value in batch.items() if value not in (None, {}) and name not in _NOT_SHOWN}
    ordered = {name: known[name] for name in _ORDER if name in known} | known
    currency = str(known.get("currency", ""))
    if counts := known.get("request_counts"):
        ordered["status"] = standing(known["status"], completed=counts["completed"], failed=counts["failed"])
    return {name: text for field, value in ordered.items() for name, text in _shown(field, value, currency=currency)}


def _shown(name: str, value: Any, *, currency: str) -> Iterator[tuple[str, str]]:
    """Yield the lines of one field; an unknown field is shown as is."""
    if name.endswith("_at") or name in _MOMENTS:
        yield name, when(value)
    elif name == "request_counts":
        yield "lines", f"{value['completed']:,} done, {value['failed']:,} failed of {value['total']:,}"
        if value.get("truncated"):  # other servers do not have it
            yield "truncated", f"{value['truncated']:,} of the done: an answer ended by max_tokens or the context"
    elif name == "usage":
        cached = value["input_tokens_details"]["cached_tokens"]
        yield "input", f"{counted(value['input_tokens'], 'token')}, {cached:,} of them cached"
        yield "output", counted(value["output_tokens"], "token") + _of_thoughts(value)
    elif name == "cost":
        yield name, f"{value} {currency}".rstrip()
    elif name in ("cost_micros", "currency"):
        pass  # part of `cost`
    elif name == "metadata":
        yield name, " ".join(f"{key}={word}" for key, word in value.items())
    else:
        yield name, str(value)


def _of_thoughts(usage: Mapping[str, Any]) -> str:
    num_tokens = (usage.get("output_tokens_details") or {}).get("reasoning_tokens")  # not every server has it
    return f", {num_tokens:,} of them thoughts" if num_tokens else ""


def estimate_fields(estimate: Mapping[str, Any]) -> dict[str, str]:
    """Return the fields of an estimate as text; `errors` are left to the caller."""
    seconds, available = estimate["worker_seconds"], estimate["available_tokens"]
    checked = "" if estimate["status"] == "counted" else "the first "
    room = "no limit" if available is None else f"{counted(available, 'token')} left"
    thoughts = estimate.get("reasoning_tokens_per_line")  # an older server has no such field
    return {
        "model": estimate["model"] or "unknown",
        "lines": f"{estimate['requests']:,}",
        "invalid": f"{estimate['invalid_lines']:,} of {checked}{counted(estimate['checked_lines'], 'line')}",
        "tokens": f"{estimate['input_tokens']:,} in, at most {estimate['output_tokens']:,} out",
        **({"thoughts": f"about {thoughts:,.0f} tokens of a line, if it thinks"} if thoughts else {}),
        "counted": estimate["tokens_basis"],
        "cost": f"at most {money(estimate['cost_micros'])} {estimate['currency']}",
        "worker time": "unknown" if seconds is None else f"{seconds:,.0f} s of one worker",
        "end": "unknown" if estimate["eta"] is None else f"{when(estimate['eta'])}, if submitted now",
        "basis": estimate["basis"],
        "budget": f"{room}: {'it fits' if estimate['fits_budget'] else 'it does not fit'}",
    }
