"""Write docs/metrics.md from the declared meters: `python -m tests.jobs.telemetry.metrics_page`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path

from engine.stats import EngineStats, Histogram, SizeHistogram
from features import meters_of
from jobs.telemetry.declared import API, CONTROL, DISPATCHER, QUEUE, WORKER
from jobs.telemetry.meters import Kind, Meter

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "metrics.md"

HEAD = """# Metrics

For Prometheus, which asks each process for its own. `python -m tests.jobs.telemetry.metrics_page` writes this page from
what [jobs/telemetry/declared.py](../jobs/telemetry/declared.py), the features (`meters` in their `feature.py`) and
[engine/stats.py](../engine/stats.py) declare.

- **API**: `/metrics` at its own port, with a key where `TOKENMILL_API_OPERATOR_KEY` is set. It shows its requests, the
  queue, and each live worker's engine as the last heartbeat told it.
- **Control worker, dispatcher, GPU and prepare worker**: `/metrics` at
  `TOKENMILL_METRICS_HOST`:`TOKENMILL_METRICS_PORT`, without a key; off by default ([settings](configuration.md)). Each
  shows its own, the GPU worker also its engine as it is now.

Any number of each role may run. The queue is the same at every API process: take its `max`, no sum. An engine is
shown by the API and by its worker under one name: scrape workers, or the API alone where workers cannot be reached.

`…_total` grow until their process, or engine, starts anew. Labels are states, classes, models, workers and routes.
`tenant` is `all`, or ids with `TOKENMILL_METRICS_TENANTS=true`: some series for each tenant in each worker. The
exact bill is the ledger's (`tokenmill usage`). An engine counts steps and sequences; a scrape reads that.
"""

ALERTS = """[deploy/prometheus/rules.yml](../deploy/prometheus/rules.yml) has these as rules of Prometheus, and
`prometheus.yml` beside it scrapes the roles of docker-compose.yml.
"""

TRACES = """## Traces

With `TOKENMILL_TRACES_URL` and the extra `otel` (`pip install 'tokenmill[otel]'`) API, dispatcher, control and the workers
send spans to a collector, over OTLP/HTTP. A batch that an API with that setting accepts is one trace; where the caller
sends `traceparent`, it goes on in the caller's. A pipeline's batch begins its own, where control workers have the setting.

| span | from … to | attributes, events |
|---|---|---|
| `POST /v1/batches`, `POST /v1/batches/{batch_id}/retry` | request … answer | `http.response.status_code` |
| `step` | one transaction that makes the batch of a run's step | `run_id`, `step` |
| `validate`, `finalise` | claimed … done, by a control worker | `batch_id` |
| `hint` | sent for a chunk, by the dispatcher | `chunk_id`, `is_sent` |
| `chunk` | claimed … done or lost, by its worker | `batch_id`, `chunk_id`, `worker_id`, `tokens`, `is_done`; `claimed_by`: `hint`, after `hint_waited_seconds`, or `turn` |
| `flush` | one transaction, repetitions included | `results` |
| `line` | handed to what answers it … answer made | `line_no`; of an engine's sequences `arrived_at`, `started_at` … |

A line has a span for a share of all (`TOKENMILL_TRACES_LINES`, a hundredth), the same ones whichever worker runs them.
Prompts, outputs and the words of errors are in no span.
"""  # noqa: E501 - rows of a table are one line each

SHARES = {
    "slot_occupancy": "share (of one) of the seats that are taken",
    "kv_cache_usage_perc": "share (of one) of the blocks that sequences hold",
}
"""Metrics that workers report besides the counters that the engine declares."""

QUEUE_TEXT = "A dispatcher counts it every 15 s, seldomer where it is long; 5 minutes later, whoever asks.\n"
PREPARE_TEXT = "And those of a GPU worker, but for engines.\n"
ENGINE_TEXT = "Where vLLM has such a number, what follows `tokenmill_engine_` is its name.\n"


def engine_meters() -> Iterator[Meter]:
    """Yield the exported figures of an engine, as meters."""
    labels = ("model", "worker")
    for name, says in SHARES.items():
        yield Meter(name=f"tokenmill_engine_{name}", kind=Kind.GAUGE, says=says, labels=labels)
    for part in fields(EngineStats):
        values = getattr(EngineStats(), part.name)
        for one in fields(values):
            name = one.metadata["metric"]
            if name is not None:
                is_histogram = isinstance(getattr(values, one.name), Histogram | SizeHistogram)
                kind = Kind.COUNTER if name.endswith("_total") else Kind.GAUGE
                kind = Kind.HISTOGRAM if is_histogram else kind
                says = one.metadata["meaning"]
                yield Meter(name=f"tokenmill_engine_{name}", kind=kind, says=says, labels=labels)


def sections() -> dict[str, Sequence[Meter]]:
    """Return the meters of each section of the page."""
    return {
        "API": (*API, *meters_of("api")),
        "Queue": (*QUEUE, *meters_of("queue")),
        "Dispatcher": DISPATCHER,
        "Control worker": (*CONTROL, *meters_of("control")),
        "GPU worker": WORKER,
        "Prepare worker": meters_of("prepare"),
        "Engine": tuple(engine_meters()),
    }


def metrics_page() -> str:
    texts = {"Queue": QUEUE_TEXT, "Engine": ENGINE_TEXT, "Prepare worker": PREPARE_TEXT}
    meters = [meter for found in sections().values() for meter in found]
    parts = [HEAD, "## What to alert on\n", ALERTS, alerts(meters)]
    for title, found in sections().items():
        parts += [f"## {title}\n", *([texts[title]] if title in texts else []), table(found)]
    return "\n".join([*parts, TRACES])


def alerts(meters: Iterable[Meter]) -> str:
    lines = [f"- {meter.alert}" for meter in meters if meter.alert is not None]
    return ".\n".join(lines) + ".\n"


def table(meters: Iterable[Meter]) -> str:
    rows = [f"| `{meter.name}` | {meter.kind} | {labels(meter)} | {meter.says} |" for meter in meters]
    return "\n".join(["| name | type | labels | |", "|---|---|---|---|", *rows]) + "\n"


def labels(meter: Meter) -> str:
    return ", ".join(f"`{label}`" for label in meter.labels)


if __name__ == "__main__":
    PAGE.write_text(metrics_page(), encoding="utf-8")
