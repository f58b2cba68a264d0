"""Settings of the queue, read from `TOKENMILL_*` variables together with those of the features.

Read by role starters only; all other code is handed the values it needs.
"""

from __future__ import annotations

from datetime import timedelta
from functools import cache
from importlib import import_module
from typing import Literal, Self, TypeVar
from urllib.parse import parse_qs, urlsplit

from pydantic import Field, ValidationError, create_model, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from jobs.errors import InputError

MIB = 1024 * 1024
GIB = 1024 * MIB
MAX_DAYS = 36_500
_EXAMPLE_PASSWORD = "change-me"
EXTENSIONS_A_LEASE = 3  # at least: one that is late, or fails, must not end it


Kind = TypeVar("Kind", bound="Settings")


class Settings(BaseSettings):
    """Limits are inclusive; sizes are bytes, durations are seconds. docs/configuration.md is made from these fields.

    A feature adds its own in a subclass, which its `Feature.settings` names. What `load_settings` returns is of all of
    these classes at once.
    """

    model_config = SettingsConfigDict(
        env_prefix="TOKENMILL_", frozen=True, extra="ignore", use_attribute_docstrings=True, defer_build=True
    )

    database_url: str = "postgresql://tokenmill@localhost:5432/tokenmill"
    """Postgres, which keeps the truth, as a role that owns nothing: `tokenmill_service`. See
    [docs/database_roles.md](database_roles.md)."""
    database_prepare_url: str = ""
    """The same for prepare workers, as `tokenmill_prepare`; without it they use TOKENMILL_DATABASE_URL."""
    database_owner_url: str = ""
    """The same for `tokenmill db upgrade`, `backup` and `restore` and no other process, as `tokenmill_owner` or as who
    may make the roles; without it they use TOKENMILL_DATABASE_URL."""
    api_connections: int = Field(default=12, ge=4)
    """Connections to Postgres of one API process, at most, and one more to hear of changed keys; a control worker opens
    12 at most and 2 for its claims, a GPU worker 4 and 2 for its leases, any other process 4."""
    database_scaler_url: str = ""
    """The same for `tokenmill autoscale`, as `tokenmill_scaler`; without it that uses TOKENMILL_DATABASE_URL."""
    redis_url: str = "redis://localhost:6379/0"
    """Redis or Valkey, which carries hints and counts the rates of tenants; a hint that it loses is sent again."""
    storage_url: str = "file:///var/lib/tokenmill/objects"
    """Where files are kept: `file:///absolute/directory` or `s3://bucket/prefix`. Two databases must not share one: a
    copy purges what the first still needs. Only one of them sweeps, `tokenmill db adopt-storage` says which; copies of
    a server's own files, such as a snapshot of its disk, are taken for it."""
    storage_timeout_seconds: float = Field(default=10.0, gt=0)
    """How long an object store may be silent before a request to it has failed."""
    storage_retries: int = Field(default=3, ge=0)
    """How often a request that the object store refused is sent again, within that time."""

    api_max_connections: int = Field(default=1000, gt=0)
    """Connections that one API process keeps; with more, the one that has waited longest for a request gives way."""
    api_header_seconds: float = Field(default=10.0, gt=0)
    """How long the head of a request may take to come."""
    api_idle_seconds: float = Field(default=30.0, gt=0)
    """How long a connection is kept for a next request."""
    api_stall_seconds: float = Field(default=30.0, gt=0)
    """How long an upload or the reader of an answer may pause, and a JSON body take."""
    api_operator_key: str = ""
    """If set, `/metrics` and `/openapi.json` ask for this key as `Authorization: Bearer …`; else they are open."""
    dashboard: bool = True
    """Serve the pages of the dashboard beside the API; they ask for a key before they show anything."""

    traces_url: str = ""
    """Where batches' traces go, if anywhere: OTLP over HTTP, such as `http://collector:4318/v1/traces`; needs the extra
    `otel` of the package. See [docs/metrics.md](metrics.md#traces)."""
    traces_lines: float = Field(default=0.01, ge=0, le=1)
    """The share of a traced batch's lines that have a span of their own."""
    log_format: Literal["text", "json"] = "text"
    """How roles write to stderr: `json` is one object a line, whoever writes it. The API's log is JSON in any case."""
    metrics_port: int = Field(default=0, ge=0, le=65_535)
    """Where control, dispatcher and GPU worker answer `/metrics`, each its own; 0: nowhere. The API answers at its own
    port. With `tokenmill up` it is the control worker's; the dispatcher has the next one, then come the workers."""
    metrics_host: str = "127.0.0.1"
    """The address that goes with it; it asks for no key."""
    metrics_tenants: bool = False
    """Whether billed tokens and costs are counted by tenant: some series for each of them, in each worker."""

    max_batch_lines: int = Field(default=1_000_000, gt=0)
    """Requests in one batch, at most."""
    max_file_bytes: int = Field(default=8 * GIB, gt=0)
    """Size of an uploaded file, at most."""
    max_line_bytes: int = Field(default=8 * MIB, gt=0)
    """Size of one line of an input file, at most."""
    max_custom_id_characters: int = Field(default=1024, ge=64)
    """Length of the `custom_id` of a line, at most: the answers of identical lines have that of the first one, too."""
    max_listed_errors: int = Field(default=100, gt=0)
    """Bad lines that a failed validation lists; it counts the rest."""
    max_invalid_lines: int = Field(default=1000, ge=0)
    """Bad lines that a batch which skips them may have, or a tenth of its lines where that is more; else it fails."""
    default_max_tokens: int = Field(default=1024, gt=0)
    """Output tokens estimated for a line that sets no limit of its own."""

    currency: str = Field(default="USD", pattern="^[A-Z]{3}$")
    """In which prices, costs and budgets are shown, as ISO 4217 writes it; nothing is converted."""

    reading_price: str = Field(default="0", pattern=r"^[0-9]{1,9}(\.[0-9]{1,6})?$")
    """What a second costs for which a reader of documents works, in units of the currency, as `0.0001`. Prepare workers
    read it; give all of them the same."""

    tenant_requests_per_minute: int = Field(default=6000, ge=0)
    """Requests of a tenant to the API; this and what follows is set for one by `tokenmill tenants limits`."""
    tenant_tokens_per_minute: int = Field(default=1_000_000_000, ge=0)
    """Estimated tokens of the batches that a tenant submits; one that is larger passes, and the next ones wait."""
    tenant_bytes_per_minute: int = Field(default=8 * GIB, ge=0)
    """Bytes that a tenant sends, uploads included; a request that is larger passes, and the next ones wait."""
    tenant_open_batches: int = Field(default=1000, ge=0)
    """Batches of a tenant that have not ended."""
    tenant_enqueued_tokens: int = Field(default=100_000_000_000, ge=0)
    """Estimated tokens of these batches."""
    tenant_files: int = Field(default=100_000, ge=0)
    """Files that are kept for a tenant, outputs included."""
    tenant_stored_bytes: int = Field(default=256 * GIB, ge=0)
    """Sizes of these files together."""
    tenant_uploads: int = Field(default=32, ge=0)
    """Uploads of a tenant at once, in each API process."""
    tenant_downloads: int = Field(default=32, ge=0)
    """Downloads of a tenant at once, in each API process."""
    tenant_urgent_tokens: int = Field(default=65_536, ge=0)
    """Estimated tokens of a tenant's urgent work that run first, per model; what is beyond counts as normal work."""
    tenant_reading_seconds_per_day: int | None = Field(default=None, ge=0)
    """Seconds of processor time for which readers of documents work for a tenant in a day of UTC; beyond it lines wait
    for the next one."""
    max_open_batches: int = Field(default=50_000, gt=0)
    """Batches of all tenants that have not ended: the depth of the queue."""

    chunk_lines: int = Field(default=512, gt=0)
    """Requests that a worker leases at once, at most; 64 unless they are very short or long."""
    chunk_tokens: int = Field(default=131_072, gt=0)
    """Tokens of the requests that a worker leases at once, at most, by estimate and unless one alone has more."""
    lease_seconds: float = Field(default=18.0, gt=0)
    """How long a chunk stays a worker's that does not extend its lease."""
    heartbeat_seconds: float = Field(default=2.0, gt=0)
    """How often a worker extends its leases and reports."""
    flush_seconds: float = Field(default=0.2, gt=0)
    """How long a finished line waits before it is written, at most."""
    flush_results: int = Field(default=64, gt=0)
    """Finished lines that are written at once, without waiting."""
    hint_again_seconds: float = Field(default=10.0, gt=0)
    """After how long an unanswered hint is sent again."""
    claim_alone_seconds: float = Field(default=3.0, gt=0)
    """How often a worker with a free slot, or a control worker, looks for work without a hint, at least."""
    dispatch_seconds: float = Field(default=0.25, gt=0)
    """How often the dispatcher looks for work; half as often while no batch is open."""
    drain_seconds: float = Field(default=20.0, ge=0)
    """What a stopping worker gives its open chunks to finish."""
    worker_chunks: int = Field(default=6, gt=0)
    """Chunks that one worker keeps open."""
    document_days: int = Field(default=30, gt=0, le=MAX_DAYS)
    """Days for which a read document is kept that no extraction used; then it is read anew."""
    leftover_hours: float = Field(default=24.0, ge=1, le=24 * MAX_DAYS)
    """After how long an object that no file names is deleted, and an upload under way gives up. A bucket needs a rule
    for the parts of unfinished uploads: see below."""
    retention_days: int = Field(default=30, gt=0, le=MAX_DAYS)
    """Days for which results can be read one by one; the files of a batch have an expiry of their own."""
    detail_days: int = Field(default=90, gt=0, le=MAX_DAYS)
    """Days after a batch's end, and at least until its results are gone, for which its chunks and each of its ledger
    entries are kept; then its entries become one a day, with the same sums."""
    run_days: int = Field(default=90, gt=0, le=MAX_DAYS)
    """Days after its end for which a run of a pipeline, or an extraction, is kept. The last run that succeeded stays,
    and so does what incremental sources have taken."""

    @model_validator(mode="after")
    def _check_lease(self) -> Self:
        """Raise InputError where a late extension could end a lease: its lines would run again and be given up."""
        # A worker looks whether an extension is due after each wait for finished lines, of `flush_seconds` at most.
        shortest = round(EXTENSIONS_A_LEASE * (self.heartbeat_seconds + self.flush_seconds), 3)
        if self.lease_seconds < shortest:
            raise InputError(
                f"TOKENMILL_LEASE_SECONDS is {self.lease_seconds:g}, and leases are extended every "
                f"TOKENMILL_HEARTBEAT_SECONDS {self.heartbeat_seconds:g} + TOKENMILL_FLUSH_SECONDS "
                f"{self.flush_seconds:g} s. Give a lease of {EXTENSIONS_A_LEASE} times that, at least {shortest:g} s, "
                "or extend more often."
            )
        return self

    @field_validator("database_url", "database_prepare_url", "database_owner_url", "database_scaler_url", "redis_url")
    @classmethod
    def _refuse_example_password(cls, given: str) -> str:
        if urlsplit(given).password == _EXAMPLE_PASSWORD:
            raise InputError(
                f"a password of this installation is {_EXAMPLE_PASSWORD!r}, which everybody knows. Set another in .env "
                "or in the URLs (`openssl rand -hex 24` makes one), and in the server that has it."
            )
        return given

    @property
    def redis_client_url(self) -> str:
        """The broker as Redis' own client names it; `redis_url` is for Celery, which names sockets in its own way."""
        parts = urlsplit(self.redis_url)
        if parts.scheme != "redis+socket":
            return self.redis_url
        database = parse_qs(parts.query).get("virtual_host", ["0"])[0]
        return f"unix://{parts.path}?db={database}"

    def of(self, kind: type[Kind]) -> Kind:
        """Return these settings as those of a feature."""
        assert isinstance(self, kind), f"{kind.__name__} were not loaded"
        return self

    def of_prepare(self) -> Self:
        """Return the settings of a prepare worker, whose login may do less."""
        return self.model_copy(update={"database_url": self.database_prepare_url or self.database_url})

    @property
    def lease(self) -> timedelta:
        return timedelta(seconds=self.lease_seconds)


@cache
def all_settings() -> type[Settings]:
    """Return the class of all settings: the queue's, and those of the features, which it finds by name."""
    kinds: list[type[Settings]] = import_module("features").settings_classes()
    return create_model("AllSettings", __base__=(*kinds, Settings))


def load_settings() -> Settings:
    """Read the environment. Raises InputError naming the variable that is wrong, or those that do not fit together."""
    try:
        return all_settings()()
    except ValidationError as error:
        first = error.errors()[0]
        variable = "TOKENMILL_" + "_".join(str(part) for part in first["loc"]).upper()
        raise InputError(f"{variable} is {first['input']!r}: {first['msg']}. Correct it and start again.") from None
