"""Write Grafana's board, and the chart's copy, of the declared meters: `python -m tests.deploy.grafana_board`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
BOARD = DEPLOY / "grafana" / "boards" / "tokenmill.json"
BOARD_OF_CHART = DEPLOY / "helm" / "tokenmill" / "files" / "board.json"
SCHEMA_VERSION = 41
"""Of Grafana 12's boards; later releases bring older ones up to date themselves."""
DATASOURCE = {"type": "prometheus", "uid": "prometheus"}
"""As deploy/grafana/provisioning/datasources/prometheus.yml names it."""
_COLUMNS, _HEIGHT = 3, 8
_WIDTH = 24 // _COLUMNS  # Grafana's grid has 24 units


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A plot: legends with their PromQL, and Grafana's name of the unit."""

    title: str
    unit: str
    queries: Mapping[str, str]


def _rate(name: str, *labels: str) -> str:
    return f"sum by ({', '.join(labels)}) (rate({name}[$__rate_interval]))"


def _quantile(share: float, name: str, *labels: str) -> str:
    return f"histogram_quantile({share}, {_rate(f'{name}_bucket', 'le', *labels)})"


ROWS: Mapping[str, tuple[Panel, ...]] = {
    "Service": (
        Panel(
            title="Dependencies answer",
            unit="bool_yes_no",
            queries={"Postgres": "min(tokenmill_database_up)", "object store": "min(tokenmill_storage_up)"},
        ),
        Panel(
            title="HTTP answers",
            unit="reqps",
            queries={"{{status}}": _rate("tokenmill_http_requests_total", "status")},
        ),
        Panel(
            title="HTTP answers, 99th percentile",
            unit="s",
            queries={"{{route}}": _quantile(0.99, "tokenmill_http_request_seconds", "route")},
        ),
    ),
    "Queue": (
        Panel(
            title="Age of the oldest chunk that is ready",
            unit="s",
            queries={
                "{{model}} {{priority}}": 'max by (model, priority) (tokenmill_chunk_oldest_seconds{state="ready"})'
            },
        ),
        Panel(
            title="Open lines",
            unit="short",
            queries={"{{model}} {{state}}": "max by (model, state) (tokenmill_chunk_lines)"},
        ),
        Panel(
            title="Time until the last batch ends",
            unit="s",
            queries={"{{model}} {{bound}}": "max by (model, bound) (tokenmill_queue_end_seconds)"},
        ),
    ),
    "Losses": (
        Panel(
            title="Lost leases",
            unit="short",
            queries={"{{outcome}}": "sum by (outcome) (increase(tokenmill_lost_leases_total[$__rate_interval]))"},
        ),
        Panel(
            title="Engine deaths",
            unit="short",
            queries={"engines": "sum(increase(tokenmill_engine_deaths_total[$__rate_interval]))"},
        ),
        Panel(
            title="Hints that were dropped",
            unit="short",
            queries={
                "{{kind}}": 'sum by (kind) (increase(tokenmill_hints_total{outcome="dropped"}[$__rate_interval]))'
            },
        ),
    ),
    "Workers": (
        Panel(title="Live workers", unit="short", queries={"{{model}}": "max by (model) (tokenmill_workers)"}),
        Panel(
            title="Results",
            unit="short",
            queries={"{{outcome}}": _rate("tokenmill_results_total", "outcome")},
        ),
        Panel(
            title="Writing results, 99th percentile",
            unit="s",
            queries={"all workers": _quantile(0.99, "tokenmill_flush_seconds")},
        ),
    ),
    "Engines": (
        Panel(
            title="Generated tokens per second",
            unit="short",
            queries={"{{model}}": _rate("tokenmill_engine_generation_tokens_total", "model")},
        ),
        Panel(
            title="Blocks of the KV cache that are held",
            unit="percentunit",
            queries={"{{worker}}": "max by (worker) (tokenmill_engine_kv_cache_usage_perc)"},
        ),
        Panel(
            title="Preemptions",
            unit="short",
            queries={"{{worker}}": _rate("tokenmill_engine_num_preemptions_total", "worker")},
        ),
    ),
    "Budgets": (
        Panel(
            title="Tokens of all tenants",
            unit="short",
            queries={"spent": "max(tokenmill_tokens_spent)", "reserved": "max(tokenmill_tokens_reserved)"},
        ),
        Panel(
            title="Billed tokens per second",
            unit="short",
            queries={"{{kind}}": _rate("tokenmill_billed_tokens_total", "kind")},
        ),
        Panel(title="Runs", unit="short", queries={"{{state}}": "max by (state) (tokenmill_runs)"}),
    ),
}


def board() -> dict[str, Any]:
    return {
        "uid": "tokenmill",
        "title": "Tokenmill",
        "schemaVersion": SCHEMA_VERSION,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "panels": [{"id": number, **panel} for number, panel in enumerate(_panels(), start=1)],
    }


def _panels() -> Iterator[dict[str, Any]]:
    for place, (title, panels) in enumerate(ROWS.items()):
        top = place * (_HEIGHT + 1)
        yield {"type": "row", "title": title, "collapsed": False, "gridPos": {"x": 0, "y": top, "w": 24, "h": 1}}
        for column, panel in enumerate(panels):
            yield _plot(panel, {"x": column * _WIDTH, "y": top + 1, "w": _WIDTH, "h": _HEIGHT})


def _plot(panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + number), "datasource": DATASOURCE, "expr": query, "legendFormat": legend}
        for number, (legend, query) in enumerate(panel.queries.items())
    ]
    return {
        "type": "timeseries",
        "title": panel.title,
        "datasource": DATASOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": targets,
    }


def board_file() -> str:
    return json.dumps(board(), indent=1) + "\n"


if __name__ == "__main__":
    for path in (BOARD, BOARD_OF_CHART):
        path.write_text(board_file(), encoding="utf-8")
