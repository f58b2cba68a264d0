"""Requests every page repeatedly, as its viewers, and reports what each costs the database."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter

import httpx
from sqlalchemy import Engine, text

from lab.dashboard.rows import MODELS, Filled, beat, get_on
from lab.dashboard.spending import Meter, Spent
from lab.dashboard.stack import DashboardStack
from lab.work_queue.percentiles import percentile

_WARM_LOADS = 6
"""From its sixth execution on a statement is no longer planned."""
_LOOK_SECONDS = 1.0
"""Refresh interval of open pages."""
_MEASURED = (
    "statements",
    *(f"{what} ms, {share}" for what in ("Postgres", "elapsed", "API") for share in ("p50", "p95")),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Paths:
    """The pages that the two kinds of viewers may open."""

    operator: Sequence[str]
    tenant: Sequence[str]


def paths(engine: Engine) -> Paths:
    """Return every page that has content."""
    with engine.connect() as connection:
        ids = connection.execute(_IDS).one()
    lists = ("show=open", "show=ended", "show=failed", f"model={MODELS[2]}", "find=batch_a")
    both = ["/", "/batches", *(f"/batches?{chosen}" for chosen in lists), "/models", "/usage"]
    plots = [f"/plots?range={length}" for length in ("1h", "24h", "30d")]
    operator = [
        f"/batches?before={ids.middle}",
        f"/batches/{ids.largest}",
        "/tenants",
        f"/tenants/{ids.tenant_id}",
        "/log",
        "/health",
    ]
    tenant = [
        f"/batches/{ids.own}",
        "/submit",
        "/pipelines",
        f"/pipelines/schedules/{ids.schedule}",
        f"/pipelines/runs/{ids.run}",
        "/extractions",
        f"/extractions/{ids.extraction}",
        f"/reviews/{ids.reviewed}",
        "/indexes",
        f"/indexes/{ids.index}",
        *(f"/usage?by={what}" for what in ("model", "key", "batch")),
    ]
    return Paths(operator=[*both, *operator, *plots], tenant=[*both, *tenant, *plots])


def streams(engine: Engine) -> Paths:
    """Return the streams of the pages that have one."""
    with engine.connect() as connection:
        ids = connection.execute(_IDS).one()
    both = ["/live/overview", "/live/batches", "/live/models"]
    return Paths(
        operator=[*both, f"/live/batches/{ids.largest}"],
        tenant=[*both, f"/live/batches/{ids.own}", f"/live/extractions/{ids.extraction}"],
    )


def measure(stack: DashboardStack, filled: Filled, *, num_loads: int, num_looks: int) -> None:
    """Print the cost of every page, then of every stream."""
    with stack.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        assert stack.postgres.pid is not None
        assert stack.api.pid is not None
        meter = Meter(connection, postgres_pid=stack.postgres.pid, api_pid=stack.api.pid)
        _print_head("page", "bytes")
        _measure_all(
            stack,
            filled,
            paths(stack.engine),
            meter,
            load=_load,
            num_warm=min(_WARM_LOADS, num_loads),
            number=num_loads,
        )
        _print_head("first look of a stream, sign-in included", "bytes")
        _measure_all(stack, filled, streams(stack.engine), meter, load=_look, num_warm=0, number=num_looks)
        _print_head("a second of a stream after that, one look", "bytes")
        _measure_open(stack, filled, meter, number=num_looks)


def _measure_all(
    stack: DashboardStack,
    filled: Filled,
    opened: Paths,
    meter: Meter,
    *,
    load: Callable[[httpx.Client, str], int],
    num_warm: int,
    number: int,
) -> None:
    for who, key, own in (
        ("operator", filled.operator_key, opened.operator),
        ("tenant", filled.tenant_keys[0], opened.tenant),
    ):
        with signed_in(stack.url, key) as browser:
            for path in own:
                beat(stack.engine)
                for _ in range(num_warm):
                    load(browser, path)
                costs: list[Spent] = []
                for _ in range(number):
                    before = meter.read()
                    size = load(browser, path)
                    costs.append(meter.read() - before)
                _print_row(f"{who} {path}", costs, size)


def _measure_open(stack: DashboardStack, filled: Filled, meter: Meter, *, number: int) -> None:
    """Print the cost of the open Overview per second while batches progress; every fifth second costs more queries."""
    for who, key in (("operator", filled.operator_key), ("tenant", filled.tenant_keys[0])):
        with signed_in(stack.url, key) as browser, browser.stream("GET", "/live/overview") as answer:
            lines = answer.iter_lines()
            size = next(len(line) for line in lines if line.startswith("data: "))
            costs: list[Spent] = []
            for _ in range(number):
                beat(stack.engine)
                get_on(stack.engine)
                before = meter.read()
                time.sleep(_LOOK_SECONDS)
                costs.append(meter.read() - before)
        _print_row(f"{who} /live/overview", costs, size)


def _load(browser: httpx.Client, path: str) -> int:
    answer = browser.get(path)
    answer.raise_for_status()
    return len(answer.content)


def _look(browser: httpx.Client, path: str) -> int:
    """Open a stream until its first update."""
    with browser.stream("GET", path) as answer:
        answer.raise_for_status()
        return next(len(line) for line in answer.iter_lines() if line.startswith("data: "))


@contextmanager
def signed_in(url: str, key: str) -> Iterator[httpx.Client]:
    """Return a browser that is signed in with a key."""
    with httpx.Client(base_url=url, timeout=60) as browser:
        sign_in(browser.post("/sign-in", data={"key": key}))
        yield browser


def sign_in(answer: httpx.Response) -> None:
    """Check that the key was accepted."""
    assert answer.status_code == httpx.codes.SEE_OTHER, answer.text


def _print_head(what: str, size: str) -> None:
    columns = (what, *_MEASURED, size)
    print(f"\n| {' | '.join(columns)} |\n" + "|---" * len(columns) + "|")


def _print_row(name: str, costs: Sequence[Spent], size: int) -> None:
    columns = [name[:70], str(max(spent.statements for spent in costs))]
    for read in (attrgetter("processor_ms"), attrgetter("elapsed_ms"), attrgetter("api_ms")):
        values = sorted(map(read, costs))
        columns += [f"{percentile(values, share):.1f}" for share in (0.5, 0.95)]
    print(f"| {' | '.join(columns)} | {size:,} |", flush=True)


# Of the first tenant only what it owns; the largest batch is in progress, and has failed lines.
_IDS = text("""
    SELECT tenant.id AS tenant_id,
        (SELECT id FROM batch ORDER BY num_requests DESC LIMIT 1) AS largest,
        (SELECT id FROM batch ORDER BY created_at DESC OFFSET (SELECT count(*) / 2 FROM batch) LIMIT 1) AS middle,
        (SELECT id FROM batch WHERE tenant_id = tenant.id AND state = 'in_progress' ORDER BY id LIMIT 1) AS own,
        (SELECT id FROM schedule WHERE tenant_id = tenant.id ORDER BY id LIMIT 1) AS schedule,
        (SELECT id FROM flow WHERE recipe = 'run' AND tenant_id = tenant.id ORDER BY id LIMIT 1) AS run,
        (
            SELECT id FROM flow WHERE recipe = 'extraction' AND tenant_id = tenant.id ORDER BY created_at DESC LIMIT 1
        ) AS extraction,
        (SELECT min(extraction_id) FROM review WHERE tenant_id = tenant.id) AS reviewed,
        (
            SELECT id FROM flow WHERE recipe = 'index' AND tenant_id = tenant.id ORDER BY created_at DESC LIMIT 1
        ) AS index
    FROM tenant WHERE name = 'team 0'
""")
