"""The report of a run, as JSON and as Markdown."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lab.chaos.faults import Fault
from lab.chaos.flows.place import FlowOutcome
from lab.chaos.plan import Kind
from lab.chaos.recoveries import OF_A_WORKER, OF_AN_ENGINE, Recovery, percentile
from lab.chaos.traffic import Outcome

_KILLS = (Kind.WORKER_KILL, Kind.ROLE_KILL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """All data of a run that the report uses."""

    seed: int
    started_at: float
    seconds: float
    num_workers: int
    outcomes: Sequence[Outcome]
    flows: Sequence[FlowOutcome]
    faults: Sequence[Fault]
    recoveries: Sequence[Recovery]
    num_repeated_webhooks: int
    audit: str
    """Output of `tokenmill audit` at the end."""
    findings: Sequence[str]
    """Each is something lost, repeated or billed wrongly."""


def as_json(run: Run) -> dict[str, Any]:
    """Return the whole report."""
    return {
        "seed": run.seed,
        "started_at": _shown(run.started_at),
        "seconds": round(run.seconds, 1),
        "workers": run.num_workers,
        "lines": sum(outcome.num_lines for outcome in run.outcomes),
        "answers": sum(outcome.found.num_answers for outcome in run.outcomes),
        "not_run": sum(outcome.found.num_not_run for outcome in run.outcomes),
        "batches": len(run.outcomes),
        "batches_by_end": dict(sorted(Counter(outcome.status for outcome in run.outcomes).items())),
        "batches_deleted": sum(outcome.fate == "deleted" for outcome in run.outcomes),
        "flows": {recipe: _of_recipe(recipe, run.flows) for recipe in sorted({flow.recipe for flow in run.flows})},
        "processes_killed": _processes_killed(run.faults),
        "repeated_webhook_requests": run.num_repeated_webhooks,
        "audit": run.audit.splitlines(),
        "findings": list(run.findings),
        "fault_counts": dict(Counter(fault.kind.value for fault in run.faults)),
        "recoveries": [row for kind in Kind for row in _recovery_rows(kind, run.recoveries)],
        "faults": [_fault(fault) for fault in run.faults],
    }


def as_markdown(run: Run) -> str:
    """Return a summary for readers, without the list of faults."""
    values = as_json(run)
    troubled = sum((fault.until or fault.at) - fault.at for fault in run.faults if fault.kind is Kind.STORE_TROUBLE)
    lines = [
        f"Seed {run.seed}, {values['started_at']}, {run.seconds / 60:.1f} minutes, {run.num_workers} workers.",
        "",
        *_load_lines(values),
        "",
        "| fault | times |",
        "|---|---|",
        *(f"| {kind} | {values['fault_counts'].get(kind.value, 0)}{_minutes(kind, troubled)} |" for kind in Kind),
        "",
        "| seconds until | faults | p50 | p99 | longest |",
        "|---|---|---|---|---|",
        *(
            f"| {row['until']} | {row['num']} | {row['p50']:.1f} | {row['p99']:.1f} | {row['longest']:.1f} |"
            for row in values["recoveries"]
        ),
        "",
        "`tokenmill audit` at the end:",
        "",
        *(f"    {line}" for line in values["audit"]),
        "",
        "Nothing lost, repeated or billed twice." if not run.findings else f"{len(run.findings)} findings:",
        *(f"- {finding}" for finding in run.findings),
    ]
    return "\n".join(lines) + "\n"


def _load_lines(values: Mapping[str, Any]) -> Iterator[str]:
    if not values["flows"]:
        yield (
            f"{values['lines']:,} lines in {values['batches']:,} batches ({_shown_counts(values['batches_by_end'])}; "
            f"{values['batches_deleted']} deleted afterwards): {values['answers']:,} answers, "
            f"{values['not_run']:,} not run as their batch ended early."
        )
        return
    yield f"{sum(each['flows'] for each in values['flows'].values()):,} flows:"
    yield ""
    yield "| recipe | flows | documents, rows or lines | ends |"
    yield "|---|---|---|---|"
    for recipe, each in values["flows"].items():
        yield f"| {recipe} | {each['flows']} | {each['items']:,} | {_shown_counts(each['ends'])} |"
    yield ""
    yield f"Killed: {_shown_counts(values['processes_killed'])}."


def _shown_counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{num} {name}" for name, num in counts.items())


def _of_recipe(recipe: str, flows: Sequence[FlowOutcome]) -> dict[str, Any]:
    own = [flow for flow in flows if flow.recipe == recipe]
    ends = dict(sorted(Counter(flow.status for flow in own).items()))
    return {"flows": len(own), "items": sum(flow.num_items for flow in own), "ends": ends}


def _processes_killed(faults: Sequence[Fault]) -> dict[str, int]:
    """Return how often each role was killed, as a whole process."""
    killed = (fault.what.rpartition("-")[0] or fault.what for fault in faults if fault.kind in _KILLS)
    return dict(sorted(Counter(killed).items()))


def write(run: Run, path: Path) -> None:
    """Write the report: JSON with every fault if the name ends in .json, otherwise Markdown."""
    is_json = path.suffix == ".json"
    path.write_text(json.dumps(as_json(run), indent=1) + "\n" if is_json else as_markdown(run), encoding="utf-8")


def _minutes(kind: Kind, troubled_seconds: float) -> str:
    return f", {troubled_seconds / 60:.1f} minutes" if kind is Kind.STORE_TROUBLE else ""


def _recovery_rows(kind: Kind, recoveries: Sequence[Recovery]) -> Iterator[dict[str, Any]]:
    what = {
        **dict.fromkeys(OF_A_WORKER, "next result of what it held"),
        **dict.fromkeys(OF_AN_ENGINE, "next result of what it ran"),
    }.get(kind, "results go on (longest pause)")
    of_kind = [one for one in recoveries if one.kind is kind]
    alone = [one.seconds for one in of_kind if one.is_alone]
    for values, suffix in ((alone, ", nothing else meanwhile"), ([one.seconds for one in of_kind], "")):
        if values and (suffix or len(alone) < len(values)):
            yield {
                "kind": kind.value,
                "until": f"{kind}: {what}{suffix}",
                "num": len(values),
                "p50": round(percentile(values, 0.5), 2),
                "p99": round(percentile(values, 0.99), 2),
                "longest": round(max(values), 2),
            }


def _fault(fault: Fault) -> dict[str, Any]:
    entry: dict[str, Any] = {"at": _shown(fault.at), "kind": fault.kind.value, "what": fault.what}
    if fault.until is not None:
        entry["seconds"] = round(fault.until - fault.at, 2)
    return entry | {"chunks": len(fault.held)}


def _shown(unix_seconds: float) -> str:
    return datetime.fromtimestamp(unix_seconds, UTC).isoformat(timespec="milliseconds")
