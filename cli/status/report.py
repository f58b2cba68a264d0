"""A report of roles, queue, workers and health, of the embedded stack here or of a server over HTTP."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from cli.client import client_from_environment, server_errors_as_sentences
from cli.data_dir import default_data_dir
from cli.embedded.note import StackNote, running_stack_of
from cli.embedded.processes import RoleProcess, role_processes
from cli.watching.progress import clock
from jobs.engines.names import label
from jobs.errors import InputError, ServiceError
from jobs.lines.document_bodies import shown_model

_TIMEOUT_SECONDS = 10.0
_QUEUE_STATES = ("leased", "ready", "waiting", "deferred")
WORDS = frozenset({"state", "class", "worker", "pid", "ends in"})
"""The columns without numbers, apart from the first of each table."""

Section = tuple[Sequence[str], Sequence[Sequence[object]]]
"""Header and rows of a table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One sample of the service's metrics."""

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceReport:
    """The state of the service at one moment."""

    title: str
    problems: Sequence[str]
    """Sentences about what does not work; empty if all is well."""
    roles: Sequence[RoleProcess] = ()
    samples: Sequence[Sample] = ()
    seen_at: float = field(default_factory=time.monotonic)

    def sections(self, before: ServiceReport | None = None) -> list[Section]:
        """Return the tables to show; with `before`, an earlier report, workers have their tokens per second."""
        tables = [_role_table(self.roles)] if self.roles else []
        if self.samples:
            tables += [_batch_table(self.samples), _queue_table(self.samples), _worker_table(self, before)]
        return [section for section in tables if section[1]]


def report_of_service(data_dir: Path | None) -> ServiceReport:
    """Report on the stack that runs on `data_dir`. Without it: on the server of TOKENMILL_BASE_URL, or on the stack of
    the default folder if that is the same one or the variable is not set.

    Raises InputError if there is none, ServiceError if the server cannot be reached.
    """
    folder = data_dir or default_data_dir()
    note = running_stack_of(folder)
    base_url = os.environ.get("TOKENMILL_BASE_URL")
    if note is not None and (data_dir is not None or base_url in (None, "", note.base_url)):
        return _report_of_stack(note, folder)
    if base_url and data_dir is None:
        return _report_of_server()
    if base_url:
        raise InputError(
            f"no `tokenmill up` runs on {folder}. Start it, or leave out --data-dir to report on {base_url}."
        )
    raise InputError(
        f"nothing runs on {folder}, and TOKENMILL_BASE_URL is not set. Start `tokenmill up`, name its folder with "
        "--data-dir, or set the variables that it printed."
    )


def _report_of_stack(note: StackNote, data_dir: Path) -> ServiceReport:
    from jobs import metrics
    from jobs.database import connect, sessions, transaction
    from jobs.telemetry import meters

    roles = role_processes(note)
    problems = [f"{role.name} does not run: tokenmill logs {role.name}" for role in roles if role.pid is None]
    problems += _api_problems(note.base_url)
    samples: list[Sample] = []
    engine = connect(note.environment["TOKENMILL_DATABASE_URL"])
    try:
        with transaction(sessions(engine)) as session:
            values = [one for one in metrics.read_samples(session) if isinstance(one, meters.Sample)]
        samples = [Sample(name=one.meter.name, labels=one.labels, value=one.value) for one in values]
        problems += _workers_out(samples)
    except ServiceError as error:
        problems.append(error.message)
    finally:
        engine.dispose()
    title = f"{note.base_url}, started {_ago(note.started_at)} ago, data and logs in {data_dir.absolute()}"
    return ServiceReport(title=title, problems=problems, roles=roles, samples=samples)


def _report_of_server() -> ServiceReport:
    client = client_from_environment()
    base_url = str(client.base_url).rstrip("/")
    with client, server_errors_as_sentences(client):
        models = ", ".join(model.id for model in client.models.list()) or "none"
    problems = _api_problems(base_url)
    samples = _metrics_of(base_url)
    if samples is None:
        problems.append("its metrics need a key: set TOKENMILL_API_OPERATOR_KEY to see queue and workers")
    problems += _workers_out(samples or ())
    return ServiceReport(title=f"{base_url}, models: {models}", problems=problems, samples=samples or [])


def _api_problems(base_url: str) -> list[str]:
    url = base_url.removesuffix("/v1") + "/readyz"
    try:
        answer = httpx.get(url, timeout=_TIMEOUT_SECONDS, trust_env=False)
    except httpx.HTTPError as error:
        return [f"{url} does not answer ({error})"]
    if answer.is_success:
        is_full = answer.json().get("storage") == "full"
        return ["the object store is full: uploads are refused, batches wait for their files"] if is_full else []
    try:
        reason = answer.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        reason = f"status {answer.status_code}"
    return [f"the API is not ready: {reason}"]


def _metrics_of(base_url: str) -> list[Sample] | None:
    """Return the server's metrics; None if it does not expose them."""
    from prometheus_client.parser import text_string_to_metric_families

    key = os.environ.get("TOKENMILL_API_OPERATOR_KEY")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    url = base_url.removesuffix("/v1") + "/metrics"
    try:
        answer = httpx.get(url, timeout=_TIMEOUT_SECONDS, headers=headers, trust_env=False)
    except httpx.HTTPError:
        return None
    if not answer.is_success:
        return None
    families = text_string_to_metric_families(answer.text)
    return [
        Sample(name=one.name, labels=one.labels, value=one.value)
        for family in families
        for one in family.samples
        if one.name.startswith("tokenmill_")
    ]


def _workers_out(samples: Iterable[Sample]) -> list[str]:
    return [
        "worker {worker} of {model} is out: {reason}. Check its device and the files of its model, then "
        "`tokenmill workers resume {worker}`.".format_map(one.labels)
        for one in samples
        if one.name == "tokenmill_workers_out"
    ]


def _role_table(roles: Iterable[RoleProcess]) -> Section:
    rows = [
        (role.name, "running", role.pid, _ago(role.started_at), f"{role.memory_bytes / 2**20:.0f}")
        if role.pid is not None
        else (role.name, "stopped", "", "", "")
        for role in roles
    ]
    return ("role", "state", "pid", "up", "memory MiB"), rows


def _batch_table(samples: Iterable[Sample]) -> Section:
    counts = {one.labels["state"]: int(one.value) for one in samples if one.name == "tokenmill_batches"}
    header = ("batches", *(state.replace("_", " ") for state in counts))
    return header, [("open", *counts.values())] if counts else []


def _queue_table(samples: Iterable[Sample]) -> Section:
    lines: dict[tuple[str, str], dict[str, int]] = defaultdict(dict)
    ends: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for one in samples:
        if one.name == "tokenmill_queue_end_seconds":
            ends[one.labels["model"], one.labels["priority"]][one.labels["bound"]] = one.value
        if one.name == "tokenmill_chunk_lines":
            key = (one.labels["model"], one.labels["priority"])
            lines[key][one.labels["state"]] = int(one.value)
    rows = [
        (shown_model(key[0]), key[1], *(counts.get(state, 0) for state in _QUEUE_STATES), _ends_in(ends.get(key, {})))
        for key, counts in sorted(lines.items())
    ]
    return ("queue of", "class", "lines with workers", "ready", "waiting", "deferred", "ends in"), rows


def _ends_in(seconds: Mapping[str, float]) -> str:
    """Return such as `0:09:00 to 0:20:00`; empty if not known."""
    return f"{clock(seconds['earliest'])} to {clock(seconds['latest'])}" if len(seconds) == 3 else ""


def _worker_table(report: ServiceReport, before: ServiceReport | None) -> Section:
    """Return the workers; their long ids come last, so that a narrow terminal wraps only those."""
    now, earlier = _by_worker(report.samples), _by_worker(before.samples if before else ())
    seconds = report.seen_at - before.seen_at if before else 0.0
    engines = {
        one.labels["worker"]: label(
            one.labels["engine"], one.labels["version"] or None, is_outside=one.labels.get("place") == "outside"
        )
        for one in report.samples
        if one.name == "tokenmill_worker_engine"
    }
    rows = []
    for (model, worker), numbers in sorted(now.items()):
        generated = numbers.get("generation_tokens_total", 0.0)
        grown = generated - earlier.get((model, worker), {}).get("generation_tokens_total", generated)
        speed = [f"{max(0.0, grown) / seconds:.0f}" if seconds else ""] if before else []
        running, waiting = (int(numbers.get(f"num_requests_{state}", 0)) for state in ("running", "waiting"))
        cache = f"{numbers.get('kv_cache_usage_perc', 0.0):.0%}"
        engine = engines.get(worker, "")
        rows.append((shown_model(model), engine, running, waiting, cache, int(generated), *speed, worker))
    speeds = ["tok/s"] if before else []
    return ("workers of", "engine", "running", "waiting", "KV", "tokens", *speeds, "worker"), rows


def _by_worker(samples: Iterable[Sample]) -> dict[tuple[str, str], dict[str, float]]:
    numbers: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for one in samples:
        if one.name.startswith("tokenmill_engine_") and "worker" in one.labels:
            key = (one.labels["model"], one.labels["worker"])
            numbers[key][one.name.removeprefix("tokenmill_engine_")] = one.value
    return numbers


def _ago(unix_seconds: float) -> str:

    return clock(max(0.0, time.time() - unix_seconds))
