"""The meters of the queue and of its roles. Features declare theirs, and `engine/stats.py` those of the engine.

Label values are states, classes, models, workers and routes: bounded. Tenants are labels only with
`TOKENMILL_METRICS_TENANTS`.
"""

from __future__ import annotations

from jobs.telemetry.meters import counter, gauge, timer

ALL_TENANTS = "all"
"""The value of the label `tenant` where tenants are not separated."""


HTTP_REQUESTS = counter(
    "http_requests",
    "Answered HTTP requests; 499 where the client disconnected.",
    "method",
    "route",
    "status",
)
HTTP_FAILURES = counter(
    "http_failures",
    "Of these, those with a status of 5xx.",
    alert="`increase(tokenmill_http_failures_total[5m]) > 0`: the API, Postgres or the object store fails",
)
HTTP_SECONDS = timer("http_request", "From a request's head to the end of its answer.", "method", "route")
UPLOAD_BYTES = counter("upload_bytes", "Bytes of uploaded file content.")

API = (HTTP_REQUESTS, HTTP_FAILURES, HTTP_SECONDS, UPLOAD_BYTES)

DATABASE_UP = gauge(
    "database_up",
    "1 where Postgres answers this process; else 0, without any other queue metric.",
    alert="`tokenmill_database_up == 0` for a minute: nothing is accepted",
)
STORAGE_UP = gauge(
    "storage_up",
    "1 where the object store answers this API with this database's marker, else 0.",
    alert="`tokenmill_storage_up == 0` for a minute: uploads and downloads fail, batches wait",
)
STORAGE_FULL = gauge(
    "storage_full",
    "1 where the object store of this API has no room, else 0.",
    alert="`tokenmill_storage_full == 1`: uploads are refused, and batches that have ended wait for their files",
)
BATCHES = gauge("batches", "Batches that have not ended.", "state")
CHUNKS = gauge("chunks", "Open chunks.", "model", "priority", "state")
CHUNK_LINES = gauge("chunk_lines", "Lines in open chunks.", "model", "priority", "state")
CHUNK_TOKENS = gauge(
    "chunk_tokens",
    "Estimated tokens of open chunks; of `:prepare`, milliseconds of reading.",
    "model",
    "priority",
    "state",
)
CHUNK_OLDEST = gauge(
    "chunk_oldest_seconds",
    "Age of the oldest open chunk. With state `ready` it is the age of the queue of a class.",
    "model",
    "priority",
    "state",
    alert='`max by (model) (tokenmill_chunk_oldest_seconds{priority="urgent",state="ready"}) > 300`: '
    "urgent work waits; start workers for the model, or see why the running ones do not claim",
)
QUEUE_END = gauge(
    "queue_end_seconds",
    "Seconds until the last batch in progress with a forecast ends, by `bound`: `expected`, and `earliest` and "
    "`latest`, between which 80 % end.",
    "model",
    "priority",
    "bound",
)
TOKENS_SPENT = gauge("tokens_spent", "Tokens billed to all tenants.")
TOKENS_RESERVED = gauge("tokens_reserved", "Tokens reserved for live batches.")
QUEUE_COUNTED = gauge(
    "queue_counted_seconds",
    "Age of the numbers of batches, chunks and runs.",
    alert="`max_over_time(tokenmill_queue_counted_seconds[10m]) > 280`: no dispatcher runs",
)
WORKERS = gauge(
    "workers",
    "Live workers.",
    "model",
    alert='`sum by (model) (tokenmill_chunks{state="ready"}) > 0 unless on (model) tokenmill_workers` '
    "for 10 minutes: work waits for a model without workers",
)
WORKERS_OUT = gauge(
    "workers_out",
    "Workers that have stopped claiming, by reason: the engine returned no numbers for line after line. Of a worker of "
    "several models, those that it could not load.",
    "model",
    "worker",
    "reason",
    alert="`tokenmill_workers_out > 0`: check its device and its model's files, then `tokenmill workers resume`",
)
WORKER_ENGINE = gauge(
    "worker_engine",
    "1 for each live worker, with the kind of its engine (`tokenmill` is ours), its version, and its place (`house` or "
    "`outside`).",
    "model",
    "worker",
    "engine",
    "version",
    "place",
)
WORKER_SLOTS = gauge("worker_slots", "Most chunks that the live workers keep open.", "model")

QUEUE = (
    *(DATABASE_UP, STORAGE_UP, STORAGE_FULL, BATCHES, CHUNKS, CHUNK_LINES, CHUNK_TOKENS, CHUNK_OLDEST, QUEUE_END),
    *(TOKENS_SPENT, TOKENS_RESERVED, QUEUE_COUNTED, WORKERS, WORKERS_OUT, WORKER_ENGINE, WORKER_SLOTS),
)

TICK_SECONDS = timer("tick", "Ticks led by this dispatcher, from the lock to the last hint.")
HINTS = counter(
    "hints",
    "Hints by kind (`validate`, `finalise`, `run`) and outcome: `sent`, or `dropped` where the broker took none or 100 "
    "wait in the queue.",
    "kind",
    "outcome",
    alert='`rate(tokenmill_hints_total{outcome="dropped"}[5m]) > 0`: the broker is away, or hints exceed what is '
    "claimed; work continues, more slowly",
    zeros=((kind, "dropped") for kind in ("validate", "finalise", "run")),
)
LOST_LEASES = counter(
    "lost_leases",
    "Leases that expired while their holder was silent, by outcome of the chunk: `ready` again, `split`, `failed`, "
    "`done`, `withdrawn`.",
    "outcome",
    alert='`increase(tokenmill_lost_leases_total{outcome=~"split|failed"}[15m]) > 0`: a line kills engines, or a '
    "machine does",
    zeros=(("split",), ("failed",)),
)

DISPATCHER = (TICK_SECONDS, HINTS, LOST_LEASES)

VALIDATION_SECONDS = timer("validation", "Validations of batches, by the state that the batch had then.", "state")
FINALISATION_SECONDS = timer(
    "finalisation", "Writing the files of batches, by the state that the batch had then.", "state"
)
CONTROL = (VALIDATION_SECONDS, FINALISATION_SECONDS)

CHUNKS_CLAIMED = counter("chunks_claimed", "Chunks claimed, by a `hint` or in `turn`.", "by")
CHUNKS_ENDED = counter(
    "chunks_ended",
    "Claims that ended: `done`, `abandoned` (given back or lost), `error`.",
    "outcome",
)
FLUSH_SECONDS = timer(
    "flush",
    "Flushes, their repetitions included.",
    alert="`histogram_quantile(0.99, rate(tokenmill_flush_seconds_bucket[5m])) > 5`: Postgres is slow, and leases of "
    "18 s end soon",
)
TRANSACTION_RETRIES = counter("transaction_retries", "Transactions of chunks repeated after a failure.")
ENGINE_DEATHS = counter(
    "engine_deaths",
    "Engines that died and were restarted.",
    alert="`increase(tokenmill_engine_deaths_total[15m]) > 0`: the worker's log has the cause",
)
RESULTS = counter("results", "Lines with a new result, `completed` or `failed`.", "outcome")
BILLED_TOKENS = counter(
    "billed_tokens",
    "Tokens of these: `input`, `cached` (part of the input) and `output`. `tenant` is `all`, or the tenant's id with "
    "`TOKENMILL_METRICS_TENANTS`.",
    "tenant",
    "kind",
)
BILLED_COST = counter(
    "billed_cost", "Cost of these, in units of the currency; `tenant` as above.", "tenant", "currency"
)

WORKER = (
    *(CHUNKS_CLAIMED, CHUNKS_ENDED, FLUSH_SECONDS, TRANSACTION_RETRIES, ENGINE_DEATHS),
    *(RESULTS, BILLED_TOKENS, BILLED_COST),
)
