"""Tests that each role exposes exactly the metrics in docs/metrics.md."""

from __future__ import annotations

import re
import socket
import urllib.request
from collections.abc import Iterator, Sequence

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from engine.stats import Energy, EngineStats
from features import meters_of
from jobs.errors import InputError
from jobs.telemetry import declared, serving
from jobs.telemetry.meters import Meter, Meters
from tests.jobs.telemetry.metrics_page import PAGE, engine_meters, metrics_page, sections
from workers.engine_metrics import show_engine

Row = tuple[str, str, frozenset[str]]
"""Name, type, labels."""


def exposed(text: str) -> set[Row]:
    """Return what Prometheus would see; labels only of metrics with a value."""
    found = set()
    for family in text_string_to_metric_families(text):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        found.add((name, family.type, frozenset(labels)))
    return found


def documented(title: str) -> set[Row]:
    """Return the rows of one table of the page."""
    part = PAGE.read_text(encoding="utf-8").partition(f"## {title}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (.*?) \|", part, flags=re.MULTILINE)
    return {(name, kind, frozenset(re.findall(r"\w+", labels))) for name, kind, labels in rows}


def used(meters: Meters, role: Sequence[Meter]) -> CollectorRegistry:
    """Give each meter of a role a value."""
    for meter in role:
        values = [f"any {label}" for label in meter.labels]
        meters.observe(meter, 1.0, *values) if meter.kind == "histogram" else meters.count(meter, *values)
    return meters.registry


def test_the_page_is_what_the_generator_writes() -> None:
    assert PAGE.read_text(encoding="utf-8") == metrics_page(), "run: python -m tests.jobs.telemetry.metrics_page"


@pytest.mark.parametrize(
    ("title", "role"),
    [
        ("API", (*declared.API, *meters_of("api"))),
        ("Dispatcher", declared.DISPATCHER),
        ("Control worker", (*declared.CONTROL, *meters_of("control"))),
        ("GPU worker", declared.WORKER),
    ],
)
def test_a_role_exposes_what_the_page_says(title: str, role: Sequence[Meter]) -> None:
    assert exposed(generate_latest(used(Meters(role), role)).decode()) == documented(title)


def test_a_worker_exposes_its_engine_as_the_page_says() -> None:
    meters = Meters(declared.WORKER)
    show_engine(meters, lambda: EngineStats(energy=Energy(1.0)), model="m", worker_id="w")
    own = exposed(generate_latest(Meters(declared.WORKER).registry).decode())
    assert exposed(generate_latest(meters.registry).decode()) - own == documented("Engine")


def test_the_queue_on_the_page_is_what_is_declared() -> None:
    meters = (*declared.QUEUE, *meters_of("queue"))
    assert documented("Queue") == {(meter.name, meter.kind.value, frozenset(meter.labels)) for meter in meters}


def all_meters() -> Iterator[Meter]:
    for found in sections().values():
        yield from found


@pytest.mark.parametrize("meter", list(all_meters()), ids=lambda meter: meter.name)
def test_names_follow_the_conventions_of_prometheus(meter: Meter) -> None:
    assert re.fullmatch(r"tokenmill_[a-z][a-z0-9_]*", meter.name)
    assert meter.name.endswith("_total") == (meter.kind == "counter")
    assert not re.search(r"_(ms|milliseconds|minutes|kib|mib)(_|$)", meter.name), "base units"
    assert not {"batch", "batch_id", "chunk", "chunk_id", "line", "key", "path"} & set(meter.labels), "not bounded"


def test_no_name_is_declared_twice() -> None:
    names = [meter.name for meter in all_meters()]
    assert len(names) == len(set(names))
    assert {meter.name for meter in engine_meters()} <= set(names)


def test_what_an_alert_asks_for_is_declared() -> None:
    asked = [name for meter in all_meters() for name in re.findall(r"tokenmill_\w+", meter.alert or "")]
    names = {meter.name for meter in all_meters()}
    assert asked
    assert {name.removesuffix("_bucket") for name in asked} <= names


@pytest.mark.parametrize("meter", [each for each in all_meters() if each.alert and each.kind == "counter"])
def test_a_series_that_an_alert_expects_to_grow_is_there_from_the_start(meter: Meter) -> None:
    """One that is born with its first event is at 1 from its first scrape on: nothing grows."""
    (expected,) = re.findall(rf"{meter.name}(?:{{(\w+)=~?\"([^\"]+)\"}})?\[", meter.alert or "")
    label, values = expected
    families = Meters([meter]).registry.collect()
    found = {each.labels.get(label, "") for family in families for each in family.samples if each.value == 0}
    assert found >= set(values.split("|"))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
    return port


def test_a_role_answers_scrapes_at_its_port() -> None:
    meters = Meters(declared.DISPATCHER)
    meters.count(declared.HINTS, "run", "sent")
    server = serving.serve(meters.registry, host="127.0.0.1", port=(port := free_port()))
    assert server is not None
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            assert 'tokenmill_hints_total{kind="run",outcome="sent"} 1.0' in answer.read().decode()
    finally:
        server.shutdown()
        server.server_close()


def test_a_port_that_is_taken_is_said_with_the_variable_to_change() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        with pytest.raises(InputError, match=rf"127\.0\.0\.1:{port} .*TOKENMILL_METRICS_PORT"):
            serving.serve(CollectorRegistry(), host="127.0.0.1", port=port)


def test_no_port_is_opened_where_none_is_set() -> None:
    assert serving.serve(CollectorRegistry(), host="127.0.0.1", port=0) is None
