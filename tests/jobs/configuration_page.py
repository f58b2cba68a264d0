"""Write docs/configuration.md from the fields of the settings: `python -m tests.jobs.configuration_page`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pydantic.fields import FieldInfo

from features import settings_classes
from jobs.settings import GIB, MIB, Settings

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "configuration.md"
PREFIX = "TOKENMILL_"

CLIENT = {
    "TOKENMILL_BASE_URL": "Where the commands for users find the API, as `http://127.0.0.1:8000/v1`; "
    "`tokenmill up` prints it.",
    "TOKENMILL_API_KEY": "The key of the tenant that they work for.",
}
STACK = {
    "TOKENMILL_DATA_DIR": "Folder in which `tokenmill up` keeps everything; without it `$XDG_DATA_HOME/tokenmill` "
    "(`~/.local/share/tokenmill`).",
    "TOKENMILL_EXTERNAL_SERVERS": "1: `tokenmill up` uses what the three URLs name and starts only the rest, as with "
    "`--external-servers`.",
    "TOKENMILL_EMBEDDED_SERVERS": "`wheels`, the default: Postgres and Valkey out of their pinned packages; `path`: "
    "what stands on `PATH` comes first.",
    "TOKENMILL_TORCH": "Which build of PyTorch `scripts/setup` takes, `cpu` or `cuda`; without it the CPU's where no "
    "`nvidia-smi` is.",
}
COMPOSE = {
    "COMPOSE_PROFILES": "What else is started, with commas between them: `observability`, `tls`, `gpu`, `model-2` to "
    "`model-4` ([operations](operations.md#profiles)).",
    "TOKENMILL_BIND": "Address of the host on which the API is published; 127.0.0.1 without it.",
    "TOKENMILL_PORT": "Port of the host on which the API listens; 8000 without it.",
    "TOKENMILL_MODEL_NAME": "Name under which batches ask for the model; `demo` without it.",
    "TOKENMILL_MODEL_DIR": "The model's folder on the host; the demo model's without it.",
    "TOKENMILL_MODELS_DIR": "Folder on the host of further models, `/models/of` in their containers.",
    **{
        f"TOKENMILL_MODEL_{number}": f"Options of the worker of the profile `model-{number}`, such as `--model small "
        "--path /models/of/small`."
        for number in (2, 3, 4)
    },
    "ENGINE_KEY_FILE": "File with the API key of a server that one of these asks, `/run/secrets/engine_key` in their "
    "containers.",
    "HF_TOKEN_FILE": "File with a token of the hub, which only workers get; none without it.",
    "TOKENMILL_STORES": "Folder on the host that pipelines use as `file:///srv/stores`; a volume without it.",
    "TOKENMILL_ROLE_MEMORY": "Memory of a container of the API, control, dispatch; no limit without it.",
    "TOKENMILL_PREPARE_MEMORY": "Memory of a prepare worker's container, 2 GiB × (`TOKENMILL_PREPARE_PROCESSES` + 1); "
    "no limit without it.",
    "TOKENMILL_WORKER_MEMORY": "Memory of a worker's container; no limit without it.",
    "TOKENMILL_WORKER_SHM": "Of it, shared memory at most; 1g without it.",
    "TOKENMILL_DOMAIN": "Name for which the profile `tls` obtains a certificate; `localhost`, with one of its own "
    "authority, without it.",
    "TOKENMILL_HTTP_PORT": "Port of the host on which the profile `tls` redirects to HTTPS; 80 without it.",
    "TOKENMILL_TLS_PORT": "Port of the host on which the profile `tls` listens; 443 without it.",
    "PROMETHEUS_PORT": "Port of 127.0.0.1 on which the profile `observability` publishes Prometheus; 9090 without it.",
    "GRAFANA_PORT": "Port of 127.0.0.1 on which the profile `observability` publishes Grafana; 3000 without it.",
}
PROXIES = {
    "FORWARDED_ALLOW_IPS": "Addresses and networks of these proxies, with commas between them; 127.0.0.1 without it, "
    "and with docker compose the networks of Docker, 172.16.0.0/12 and 192.168.0.0/16.",
}

STORES = {
    "AWS_ACCESS_KEY_ID": "The id of the key for `s3://`; without it the role of the machine or container.",
    "AWS_SECRET_ACCESS_KEY": "The secret that goes with it.",
    "AWS_SESSION_TOKEN": "The token that goes with both where they are temporary.",
    "AWS_REGION": "The region of the bucket, also read as `AWS_DEFAULT_REGION`.",
    "AWS_ENDPOINT_URL": "Where another S3 than Amazon's listens, as `https://minio.internal:9000`.",
    "AWS_ALLOW_HTTP": "`true`: that endpoint may be `http://`.",
    "AWS_ALLOW_INVALID_CERTIFICATES": "`true`: its certificate is not verified.",
    "AWS_PROXY_URL": "The proxy to the store.",
    "AWS_PROXY_EXCLUDES": "Hosts that are asked without it, with commas between them.",
    "AWS_USER_AGENT": "What requests to the store call themselves.",
}
MODELS = {
    "HF_HOME": "Folder of the hub's cache, `~/.cache/huggingface` without it: `tokenmill models pull` puts models into "
    "`hub` there, where workers look for them.",
    "HF_TOKEN": "Sent to the hub where it is set; gated and private models need it.",
    "HF_HUB_OFFLINE": "1: nothing is fetched; models that are in the cache are served.",
}

HEAD = """# Configuration

Every variable that Tokenmill reads. `python -m tests.jobs.configuration_page` writes this page from
[jobs/settings.py](../jobs/settings.py) and the `settings.py` of each feature. How a model runs (dtype, memory,
sequences) is no variable but an option of its worker: `tokenmill worker --help`.
"""

ROLES = """## Roles

What `tokenmill api`, `control`, `dispatch` and `worker` read. `tokenmill up` has a Postgres, a Valkey and a folder of
objects of its own and hands all the rest on; with `--external-servers` it uses what the URLs name. Limits are
inclusive, sizes are bytes, durations are seconds.
"""

BUCKET = """## The rule that a bucket needs

A killed process leaves the parts of its unfinished multipart uploads in the bucket. They are no objects, so no sweep
sees them, and they are paid for until they are aborted. For `s3://BUCKET/PREFIX`, `rule.json` is

```json
{"Rules": [{"ID": "tokenmill-unfinished-uploads", "Status": "Enabled", "Filter": {"Prefix": "PREFIX/"},
            "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 2}}]}
```

and is set by `aws s3api put-bucket-lifecycle-configuration --bucket BUCKET --lifecycle-configuration file://rule.json`,
which replaces the rules that the bucket has: add them to the file. Without a prefix in the URL it is
`{"Prefix": ""}`. With a longer `TOKENMILL_LEFTOVER_HOURS` the days are more than that: no upload under way may be
aborted. For `gs://` the same is a rule with the action `AbortIncompleteMultipartUpload`, `age` 2 and `matchesPrefix`.
A local directory needs nothing, nor does Azure, which drops such parts after a week. The control worker names bucket
and prefix in its log whenever it sweeps (`parts of unfinished uploads are not swept`).
"""

CREDENTIALS = """## Object stores

What roles need beside a `TOKENMILL_STORAGE_URL` of `s3://`. For `gs://` and `az://` it is what their clouds call their
credentials, and the last five with `GOOGLE_` and `AZURE_` for `AWS_`.
"""

CACHE = """## Models

What `tokenmill models pull` and workers read. `smollm2` is no model of the hub: it goes to `models` of the data folder
(`TOKENMILL_DATA_DIR`, `--data-dir`).
"""

PROXIED = """## A proxy before the API

The API believes `X-Forwarded-Proto` and `X-Forwarded-For` of proxies that it trusts
([operations](operations.md#a-proxy-with-tls)).
"""

COMPOSED = """## docker compose

Read from `.env` by `docker-compose.yml`, beside four passwords: `POSTGRES_PASSWORD` of the superuser, which only
migrations and backups have, `POSTGRES_SERVICE_PASSWORD`, `POSTGRES_PREPARE_PASSWORD` ([database
roles](database_roles.md)) and `REDIS_PASSWORD`. Every other setting in `.env` reaches all containers, but for the
URLs, which compose sets itself; `TOKENMILL_DATABASE_SCALER_URL` reaches `migrate` alone.
"""


def settings_fields() -> Iterator[tuple[str, FieldInfo]]:
    """Yield the variables of the queue's settings, then those of each feature's own."""
    for kind in (Settings, *settings_classes()):
        own = [name for name in kind.model_fields if name in kind.__annotations__]
        yield from ((PREFIX + name.upper(), kind.model_fields[name]) for name in own)


def variables() -> dict[str, str]:
    """Return every variable with its description."""
    settings = {name: " ".join((field.description or "").split()) for name, field in settings_fields()}
    return settings | STORES | MODELS | STACK | CLIENT | PROXIES | COMPOSE


def configuration_page() -> str:
    meanings = variables()
    defaults = {name: shown(field.default) for name, field in settings_fields()}
    rows = [f"| `{name}` | `{default}` | {meanings[name]} |" for name, default in defaults.items()]
    parts = [
        HEAD,
        ROLES,
        "\n".join(["| variable | default | |", "|---|---|---|", *rows]) + "\n",
        BUCKET,
        CREDENTIALS,
        table(STORES),
        CACHE,
        table(MODELS),
        "## The embedded stack\n",
        table(STACK),
        "## Commands for users\n",
        table(CLIENT),
        PROXIED,
        table(PROXIES),
        COMPOSED,
        table(COMPOSE),
    ]
    return "\n".join(parts)


def table(meanings: dict[str, str]) -> str:
    rows = [f"| `{name}` | {meaning} |" for name, meaning in meanings.items()]
    return "\n".join(["| variable | |", "|---|---|", *rows]) + "\n"


def shown(value: object) -> str:
    """Return a default in the form in which it is set, a size also in words."""
    if isinstance(value, int) and value >= MIB and value % MIB == 0:
        size = f"{value // GIB} GiB" if value % GIB == 0 else f"{value // MIB} MiB"
        return f"{value} ({size})"
    return f"{value:g}" if isinstance(value, float) else str(value) or "(none)"


if __name__ == "__main__":
    PAGE.write_text(configuration_page(), encoding="utf-8")
