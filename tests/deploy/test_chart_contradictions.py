"""Tests of values that contradict each other: the chart fails, and its error names both."""

from __future__ import annotations

from typing import Any

import helm_python as helm
import pytest

from cli.stack import _WORKER_STOP_MARGIN_SECONDS
from jobs.settings import Settings
from tests.deploy.chart import rendered

SERVICES: dict[str, Any] = {
    "image": {"repository": "registry.example.com/tokenmill"},
    "database": {"existingSecret": "database"},
    "redis": {"existingSecret": "redis"},
    "storage": {"url": "s3://batches"},
}
HUB = {"path": "acme/a"}
INGRESS = {"enabled": True, "host": "tokenmill.example.com"}
ROUTE = {"enabled": True, "parentRefs": [{"name": "public"}]}
SERVER = {"url": "http://vllm:8000/v1"}
KEDA = {"enabled": True, "existingSecret": "scaler"}
RULE = {"ports": [{"port": 443}]}
PEER: dict[str, Any] = {"podSelector": {}}
AMOUNTS = {"spill-budget", "input-price", "output-price"}
DIGEST = "sha256:" + "0" * 64


def model(**values: object) -> dict[str, Any]:
    return {"models": {"a": HUB | values}}


def server(**values: object) -> dict[str, Any]:
    return {"models": {"a": SERVER | values}}


def env(*names: str) -> list[dict[str, str]]:
    return [{"name": name, "value": "1"} for name in names]


CONTRADICTIONS: list[tuple[dict[str, Any], str, str]] = [
    ({"image": {}}, "image.repository", "empty"),
    ({"database": {}}, "database.existingSecret", "empty"),
    ({"redis": {}}, "redis.existingSecret", "empty"),
    ({"storage": {}}, "storage.url", "storage.claim"),
    ({"storage": {"url": "s3://a", "claim": "b"}}, "storage.url", "storage.claim"),
    ({"storage": {"claim": "b", "existingSecret": "c"}}, "storage.existingSecret", "storage.claim"),
    ({"storage": {"claim": "b", "prepareExistingSecret": "c"}}, "storage.prepareExistingSecret", "storage.claim"),
    (
        {"image": SERVICES["image"] | {"server": {"tag": "1", "digest": DIGEST}}},
        "image.server.tag",
        "image.server.digest",
    ),
    (
        {"ingress": INGRESS | {"paths": ["/v1"]}, "httpRoute": ROUTE | {"paths": ["/v1"]}},
        "ingress.enabled",
        "httpRoute.enabled",
    ),
    ({"ingress": {"enabled": True, "paths": ["/v1"]}}, "ingress.enabled", "ingress.host"),
    ({"httpRoute": {"enabled": True, "paths": ["/v1"]}}, "httpRoute.enabled", "httpRoute.parentRefs"),
    ({"ingress": INGRESS}, "ingress.paths", "api.operatorKey.existingSecret"),
    ({"httpRoute": ROUTE}, "httpRoute.paths", "api.operatorKey.existingSecret"),
    ({"api": {"service": {"type": "LoadBalancer"}}}, "api.service.type", "api.operatorKey.existingSecret"),
    ({"api": {"service": {"type": "NodePort"}}}, "api.service.type", "api.operatorKey.existingSecret"),
    ({"api": {"env": env("FORWARDED_ALLOW_IPS")}}, "api.env", "api.trustedProxies"),
    (
        {"api": {"autoscaling": {"enabled": True, "minReplicas": 9}}},
        "api.autoscaling.minReplicas",
        "api.autoscaling.maxReplicas",
    ),
    (
        {"api": {"autoscaling": {"enabled": True}, "resources": {"requests": {"cpu": None}}}},
        "api.autoscaling.enabled",
        "api.resources.requests.cpu",
    ),
    ({"networkPolicy": {"enabled": False, "apiFrom": [PEER]}}, "networkPolicy.apiFrom", "networkPolicy.enabled"),
    (
        {"networkPolicy": {"enabled": False, "metricsFrom": [PEER]}},
        "networkPolicy.metricsFrom",
        "networkPolicy.enabled",
    ),
    ({"networkPolicy": {"enabled": False, "egress": [RULE]}}, "networkPolicy.egress", "networkPolicy.enabled"),
    ({"metrics": {"podMonitor": {"enabled": True}}}, "metrics.podMonitor.enabled", "networkPolicy.metricsFrom"),
    (
        {"settings": {"TOKENMILL_READER_ISOLATION": "required"}},
        "settings.TOKENMILL_READER_ISOLATION",
        "prepare.seccompProfile.type",
    ),
    ({"settings": {"TOKENMILL_DRAIN_SECONDS": 51}}, "prepare.graceSeconds", "settings.TOKENMILL_DRAIN_SECONDS"),
    (
        {"settings": {"TOKENMILL_DRAIN_SECONDS": 51}, "prepare": {"graceSeconds": 99}} | model(),
        "models.a.graceSeconds",
        "settings.TOKENMILL_DRAIN_SECONDS",
    ),
    (
        {"spot": {"nodeSelector": {"a": "b"}, "drainSeconds": 20}} | model(spot=True),
        "spot.graceSeconds",
        "spot.drainSeconds",
    ),
    (
        {"spot": {"nodeSelector": {"a": "b"}, "drainSeconds": 0, "graceSeconds": 9}} | model(spot=True),
        "spot.graceSeconds is 9",
        "spot.drainSeconds is 0",
    ),
    (model(spot=True), "models.a.spot", "spot.nodeSelector"),
    ({"api": {"env": env("TOKENMILL_REDIS_URL")}}, "api.env", "redis.existingSecret"),
    ({"migrations": {"env": env("TOKENMILL_DATABASE_OWNER_URL")}}, "migrations.env", "database.existingSecret"),
    (model(env=env("HF_TOKEN")), "models.a.env", "hub.existingSecret"),
    (model(env=env("A", "B", "A")), "models.a.env", "A twice"),
    ({"extraVolumes": [{"name": "tmp", "emptyDir": {}}]}, "extraVolumes", "tmp"),
    (model(path=""), "models.a.path", "models.a.url"),
    (model(path="folder"), "models.a.path", "models.a.claim"),
    (server(path="acme/a"), "models.a.path", "models.a.url"),
    (server(claim="models"), "models.a.claim", "models.a.url"),
    (server(chatTemplate="{{ messages }}"), "models.a.chatTemplate", "models.a.url"),
    (server(gpus=1), "models.a.gpus", "models.a.url"),
    (server(options={"dtype": "bfloat16"}), "models.a.options.dtype", "models.a.url"),
    (model(serverModel="b"), "models.a.serverModel", "models.a.url"),
    (model(tokenizer="acme/b"), "models.a.tokenizer", "models.a.url"),
    (model(keySecret={"existingSecret": "b"}), "models.a.keySecret.existingSecret", "models.a.url"),
    (model(options={"max-concurrency": 8}), "models.a.options.max-concurrency", "models.a.url"),
    (model(options={"spill": True}), "models.a.options.spill", "models.a.url"),
    (model(options={"spill-budget": 20}), "models.a.options.spill-budget", "models.a.url"),
    (model(options={"input-price": "0.1"}), "models.a.options.input-price", "models.a.url"),
    (model(options={"output-price": 0.3}), "models.a.options.output-price", "models.a.url"),
    *(
        (
            server(options={"spill": True} | dict.fromkeys(AMOUNTS - {missing}, 1)),
            "models.a.options.spill is",
            f"models.a.options.{missing}",
        )
        for missing in sorted(AMOUNTS)
    ),
    (server(options={"spill-budget": 20}), "models.a.options.spill-budget", "models.a.options.spill is"),
    (model(options={"device": "cuda"}), "models.a.options.device", "models.a.gpus"),
    (model(options={"device": "cpu"}, gpus=1), "models.a.options.device", "models.a.gpus"),
    (model(maxReplicas=3), "models.a.maxReplicas", "keda.enabled"),
    ({"keda": KEDA} | model(), "keda.enabled", "models.a.maxReplicas"),
    ({"keda": KEDA} | model(minReplicas=3, maxReplicas=2), "models.a.minReplicas", "models.a.maxReplicas"),
    ({"keda": {"enabled": True}} | model(maxReplicas=2), "keda.enabled", "keda.existingSecret"),
    ({"keda": KEDA}, "keda.enabled", "models"),
    (
        {"keda": KEDA, "models": {"a": {"maxReplicas": 1, **HUB}, "b": {"name": "a", "maxReplicas": 1, **HUB}}},
        "models.a.name",
        "models.b.name",
    ),
    (model(egress=[RULE]), "models.a.egress", "networkPolicy.egress"),
    ({"networkPolicy": {"egress": [RULE]}} | model(), "networkPolicy.egress", "models.a.egress"),
    ({"networkPolicy": {"egress": [RULE]}} | server(), "networkPolicy.egress", "models.a.egress"),
]


@pytest.mark.parametrize(("values", "one", "other"), CONTRADICTIONS)
def test_a_contradiction_is_an_error_that_names_both_values(values: dict[str, Any], one: str, other: str) -> None:
    with pytest.raises(helm.HelmRenderError) as refusal:
        rendered(SERVICES | values)
    (error,) = str(refusal.value).splitlines()[1:]
    assert one in error
    assert other in error


@pytest.mark.parametrize(
    ("release", "named"), [("tokenmill-of-" + "a" * 25, ""), ("tokenmill", "models.of-the-research-team-of-the-lab")]
)
def test_a_name_that_is_too_long_for_pods_is_refused(release: str, named: str) -> None:
    values = SERVICES | {"models": {named.removeprefix("models."): HUB}} if named else SERVICES
    with pytest.raises(helm.HelmRenderError, match=rf"46 are allowed.*{release}.*{named}"):
        rendered(values, release=release)


def test_all_contradictions_are_listed_at_once() -> None:
    with pytest.raises(helm.HelmRenderError) as refusal:
        rendered({})
    assert len(str(refusal.value).splitlines()[1:]) == 4


def test_a_stop_takes_what_the_supervisor_of_a_stack_gives() -> None:
    drain = Settings.model_fields["drain_seconds"].default
    enough = int(drain + _WORKER_STOP_MARGIN_SECONDS)
    rendered(SERVICES | model(graceSeconds=enough))
    with pytest.raises(helm.HelmRenderError, match=r"models\.a\.graceSeconds"):
        rendered(SERVICES | model(graceSeconds=enough - 1))
    rendered(SERVICES | {"settings": {"TOKENMILL_DRAIN_SECONDS": 0}} | model(graceSeconds=enough - 1))
