"""Tests of deploy/grafana without Grafana: the board asks for declared meters, by labels that they have."""

from __future__ import annotations

import re

import pytest
import yaml

from jobs.telemetry.meters import Kind, Meter
from tests.deploy.grafana_board import BOARD, DATASOURCE, ROWS, Panel, board, board_file
from tests.jobs.telemetry.metrics_page import sections

METERS = {meter.name: meter for found in sections().values() for meter in found}
PANELS = [panel for panels in ROWS.values() for panel in panels]
_SERIES = re.compile(r"(?P<name>tokenmill_\w+)(\{(?P<chosen>[^}]*)\})?")


def meter_of(series: str) -> Meter:
    """Return the declared meter of a series; those of a histogram have a suffix."""
    histogram = series.removesuffix("_bucket")
    meter = METERS[histogram]
    assert (meter.kind is Kind.HISTOGRAM) == (histogram != series), series
    return meter


def test_the_file_is_what_the_generator_writes() -> None:
    assert BOARD.read_text(encoding="utf-8") == board_file(), "run: python -m tests.deploy.grafana_board"


@pytest.mark.parametrize("panel", PANELS, ids=[panel.title for panel in PANELS])
def test_a_panel_asks_for_declared_meters_by_their_labels(panel: Panel) -> None:
    for legend, query in panel.queries.items():
        series = list(_SERIES.finditer(query))
        assert series, query
        labels = {label for each in series for label in meter_of(each["name"]).labels} | {"le"}
        grouped = {word for found in re.findall(r"by \(([^)]*)\)", query) for word in found.split(", ") if word}
        chosen = {word for each in series for word in re.findall(r"(\w+)=", each["chosen"] or "")}
        assert grouped | chosen | set(re.findall(r"{{(\w+)}}", legend)) <= labels, query
        assert set(re.findall(r"{{(\w+)}}", legend)) <= grouped, "a legend shows what the query groups by"


def test_counters_are_asked_for_their_growth_and_gauges_for_their_value() -> None:
    for panel in PANELS:
        for query in panel.queries.values():
            kinds = {meter_of(each["name"]).kind for each in _SERIES.finditer(query)}
            assert ("$__rate_interval" in query) == (kinds <= {Kind.COUNTER, Kind.HISTOGRAM}), query


def test_panels_lie_beside_each_other_in_the_grid() -> None:
    taken = [
        (x, y)
        for panel in board()["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(taken) == len(set(taken)) > 0
    assert max(x for x, _ in taken) < 24


def test_what_is_provisioned_is_what_the_board_and_compose_name() -> None:
    provisioning = BOARD.parents[1] / "provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yml").read_text())["datasources"]
    assert {"type": source["type"], "uid": source["uid"]} == DATASOURCE
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "boards.yml").read_text())["providers"]
    grafana = yaml.safe_load((BOARD.parents[3] / "docker-compose.yml").read_text())["services"]["grafana"]
    assert f"./deploy/grafana/boards:{provider['options']['path']}:ro" in grafana["volumes"]
