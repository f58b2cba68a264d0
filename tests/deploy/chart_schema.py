"""Write the chart's values.schema.json from settings and options of the code: `python -m tests.deploy.chart_schema`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from cli.app import app
from tests.jobs.configuration_page import STORES, settings_fields

CHART = Path(__file__).resolve().parents[2] / "deploy" / "helm" / "tokenmill"
SCHEMA = CHART / "values.schema.json"
COMMANDS: Any = typer.main.get_command(app)

SET_BY_VALUES = {
    "TOKENMILL_DATABASE_URL",
    "TOKENMILL_DATABASE_PREPARE_URL",
    "TOKENMILL_DATABASE_OWNER_URL",
    "TOKENMILL_DATABASE_SCALER_URL",
    "TOKENMILL_REDIS_URL",
    "TOKENMILL_STORAGE_URL",
    "TOKENMILL_METRICS_HOST",
    "TOKENMILL_METRICS_PORT",
    "TOKENMILL_API_OPERATOR_KEY",
}
"""Settings that the chart makes from other values."""
_SECRET = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"}
OPTIONS_OF_VALUES = {
    *("model", "engine", "url", "key-file", "server-model", "tokenizer", "path", "chat-template"),
    *("data-dir", "ready-file", "start-file", "models", "worker-id"),
}
"""Options of a worker that the chart makes from other values, or that a container of one model has no use for."""

Schema = dict[str, Any]


def settings_names() -> list[str]:
    """Return the variables that may be in `settings`."""
    own = {name for name, _ in settings_fields()} - SET_BY_VALUES
    return sorted(own | (STORES.keys() - _SECRET) | {"HF_HUB_OFFLINE"})


def worker_options() -> dict[str, Schema]:
    """Return the schema of each option of `tokenmill worker` that may be in a model's `options`."""
    options = {each.opts[0].removeprefix("--"): each for each in COMMANDS.commands["worker"].params if each.opts}
    return {name: _option(each) for name, each in sorted(options.items()) if name not in OPTIONS_OF_VALUES | {"help"}}


def _option(option: Any) -> Schema:
    if option.is_flag:
        return {"type": "boolean"} if option.secondary_opts else {"const": True}
    if option.metavar == "AMOUNT":
        return AMOUNT
    kind = {int: "integer", float: "number"}.get(option.type_descriptor.annotation, "string")
    return {"type": kind} | ({} if option.min is None else {"minimum": option.min})


def values(properties: Mapping[str, Schema]) -> Schema:
    """Return the schema of an object with only these properties."""
    return {"type": "object", "additionalProperties": False, "properties": dict(properties)}


TEXT: Schema = {"type": "string"}
BOOLEAN: Schema = {"type": "boolean"}
ANY: Schema = {"type": "object"}
SCALAR: Schema = {"type": ["string", "number", "boolean"]}
TEXTS: Schema = {"type": "object", "additionalProperties": TEXT}
OBJECTS: Schema = {"type": "array", "items": ANY}
PATHS: Schema = {"type": "array", "minItems": 1, "items": {"type": "string", "pattern": "^/"}}
PROXIES: Schema = {"type": "array", "items": {"type": "string", "pattern": "^[0-9a-fA-F.:]+(/[0-9]+)?$"}}
PORT: Schema = {"type": "integer", "minimum": 1, "maximum": 65535}
KEY: Schema = {"type": "string", "pattern": "^[A-Za-z0-9._-]+$"}
NAME: Schema = {"type": "string", "pattern": "^([a-z0-9]([a-z0-9.-]*[a-z0-9])?)?$"}
SECRET = values({"existingSecret": NAME, "key": KEY})
AMOUNT: Schema = {
    "anyOf": [
        {"type": "string", "pattern": "^[0-9]+(\\.[0-9]+)?$"},
        {"const": 0},
        {"type": "number", "minimum": 0.0001},
    ]
}
"""Of a currency. A smaller number has to be a string, as Helm would write it with an exponent."""
ENVIRONMENT: Schema = {
    "type": "array",
    "items": {"type": "object", "required": ["name"], "properties": {"name": KEY, "value": TEXT, "valueFrom": ANY}},
}
IMAGE = values({"tag": TEXT, "digest": {"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"}})
QUANTITY: Schema = {"type": ["string", "number"], "pattern": "^[0-9]+(\\.[0-9]+)?(m|k|[KMGTPE]i?)?$"}
QUANTITIES: Schema = {"type": "object", "additionalProperties": QUANTITY}
RESOURCES = values({"requests": QUANTITIES, "limits": QUANTITIES})
PLACED = {"resources": RESOURCES, "nodeSelector": TEXTS, "tolerations": OBJECTS, "env": ENVIRONMENT}
ROLE = PLACED | {"affinity": ANY, "podAnnotations": TEXTS}


def at_least(minimum: int) -> Schema:
    return {"type": "integer", "minimum": minimum}


def model() -> Schema:
    """Return the schema of a model, and of the defaults below all models."""
    return values(
        ROLE
        | {
            "name": {"type": "string", "pattern": "^([^\\s:-](.*\\S)?)?$"},
            "path": {"type": "string", "pattern": "^([^/].*)?$"},
            "claim": NAME,
            "cacheClaim": NAME,
            "chatTemplate": TEXT,
            "url": {"type": "string", "pattern": "^(https?://.+)?$"},
            "serverModel": TEXT,
            "tokenizer": TEXT,
            "keySecret": SECRET,
            "options": values(worker_options()),
            "gpus": {"type": "integer", "minimum": 0, "maximum": 1},
            "gpuResource": {"type": "string", "minLength": 1},
            "runtimeClassName": NAME,
            "spot": BOOLEAN,
            "minReplicas": at_least(0),
            "maxReplicas": at_least(1),
            "startupSeconds": at_least(10),
            "graceSeconds": at_least(1),
            "egress": OBJECTS,
        }
    )


def roles() -> dict[str, Schema]:
    scaling = {"enabled": BOOLEAN, "minReplicas": at_least(1), "maxReplicas": at_least(1), "cpuPercent": at_least(1)}
    service = {
        "type": {"enum": ["ClusterIP", "NodePort", "LoadBalancer"]},
        "port": PORT,
        "annotations": TEXTS,
    }
    return {
        "migrations": values(PLACED | {"enabled": BOOLEAN, "waitSeconds": at_least(0)}),
        "api": values(
            ROLE
            | {"replicas": at_least(1), "operatorKey": SECRET, "trustedProxies": PROXIES}
            | {"service": values(service), "autoscaling": values(scaling)}
        ),
        "control": values(ROLE | {"replicas": at_least(1)}),
        "dispatch": values(ROLE | {"replicas": at_least(1)}),
        "prepare": values(ROLE | {"replicas": at_least(0), "graceSeconds": at_least(1), "seccompProfile": ANY}),
    }


def services() -> dict[str, Schema]:
    policy = {"enum": ["Always", "IfNotPresent", "Never"]}
    image = {"repository": TEXT, "pullPolicy": policy, "pullSecrets": OBJECTS}
    keys = {"serviceKey": KEY, "prepareKey": KEY, "ownerKey": KEY}
    url = {"type": "string", "pattern": "^((s3|gs|az)://.+)?$"}
    return {
        "image": values(image | {"server": IMAGE, "workerCpu": IMAGE, "workerCuda": IMAGE}),
        "database": values({"existingSecret": NAME} | keys),
        "redis": SECRET,
        "storage": values({"url": url, "existingSecret": NAME, "prepareExistingSecret": NAME, "claim": NAME}),
        "settings": values(dict.fromkeys(settings_names(), SCALAR)),
        "serviceAccountName": NAME,
        "extraVolumes": OBJECTS,
        "extraVolumeMounts": OBJECTS,
    }


def reached() -> dict[str, Schema]:
    route = {"enabled": BOOLEAN, "annotations": TEXTS, "paths": PATHS}
    monitored = {"enabled": BOOLEAN, "labels": TEXTS}
    network = {"enabled": BOOLEAN, "apiFrom": OBJECTS, "metricsFrom": OBJECTS, "egress": OBJECTS}
    interval = {"type": "string", "pattern": "^[0-9]+(s|m)$"}
    return {
        "ingress": values(route | {"className": TEXT, "host": TEXT, "tlsSecret": NAME}),
        "httpRoute": values(route | {"parentRefs": OBJECTS, "hostnames": {"type": "array", "items": TEXT}}),
        "networkPolicy": values(network),
        "metrics": values(
            {"port": PORT, "podMonitor": values(monitored | {"interval": interval})}
            | {"rules": values(monitored), "board": values(monitored)}
        ),
    }


def schema() -> Schema:
    """Return the schema of the chart's values."""
    spot = {"nodeSelector": TEXTS, "tolerations": OBJECTS, "drainSeconds": at_least(0), "graceSeconds": at_least(1)}
    keda = {"enabled": BOOLEAN, "existingSecret": NAME, "key": KEY, "pollingSeconds": at_least(1)}
    models = {
        "type": "object",
        "propertyNames": {"pattern": "^[a-z0-9]([a-z0-9-]*[a-z0-9])?$"},
        "additionalProperties": {"$ref": "#/$defs/model"},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$comment": "Written by `python -m tests.deploy.chart_schema`.",
        "$defs": {"model": model()},
        **values(
            services()
            | roles()
            | {"models": models, "defaults": {"$ref": "#/$defs/model"}, "hub": SECRET}
            | {"spot": values(spot), "keda": values(keda)}
            | reached()
        ),
    }


def schema_file() -> str:
    return json.dumps(schema(), indent=1) + "\n"


if __name__ == "__main__":
    SCHEMA.write_text(schema_file(), encoding="utf-8")
