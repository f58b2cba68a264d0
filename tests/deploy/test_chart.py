"""Tests of the chart without a cluster: values, objects, and what validation of single objects does not find."""

from __future__ import annotations

import copy
import json
import re
import tomllib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import helm_python as helm
import jsonschema
import kubernetes_validate
import pytest

from tests.deploy.chart import (
    FILES,
    Object,
    chart,
    container_of,
    every_object,
    objects,
    objects_of,
    pod_of,
    rendered,
    values_of,
)
from tests.deploy.chart_schema import CHART, SCHEMA, schema, schema_file
from tests.deploy.grafana_board import BOARD_OF_CHART, board, board_file
from tests.deploy.object_faults import faults
from tests.deploy.prometheus_rules import RULES_OF_CHART, rules, rules_file

KUBERNETES = "1.37"
CRDS = Path(__file__).parent / "crds"


def test_the_schema_is_what_the_generator_writes() -> None:
    assert SCHEMA.read_text(encoding="utf-8") == schema_file(), "run: python -m tests.deploy.chart_schema"
    assert chart().schema == schema(), "it is part of the chart, not in .helmignore"


def test_every_value_of_the_schema_has_a_default() -> None:
    def without_default(described: Object, given: Any, place: str = "") -> list[str]:
        described = schema()["$defs"]["model"] if "$ref" in described else described
        properties = described.get("properties", {})
        if not properties or place in {"settings", "defaults.options"}:
            return []
        places = {name: f"{place}.{name}".strip(".") for name in properties}
        below = [each for name in given for each in without_default(properties[name], given[name], places[name])]
        return [places[name] for name in properties if name not in given] + below

    assert without_default(schema(), chart().values) == ["defaults.maxReplicas"]


def test_the_chart_has_the_version_of_the_code() -> None:
    project = tomllib.loads((CHART.parents[2] / "pyproject.toml").read_text())["project"]
    assert chart().metadata["appVersion"] == project["version"]
    assert chart().dependencies == []


@pytest.mark.parametrize("name", FILES)
def test_lint_finds_nothing_but_the_missing_icon(name: str) -> None:
    report = helm.lint(CHART, values_of(name), strict=True)
    assert [each["error"] for each in report["messages"]] == ["icon is recommended"]
    assert report["errors"] == []


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"apii": {}}, "apii"),
        ({"settings": {"TOKENMILL_RETENTON_DAYS": 1}}, "TOKENMILL_RETENTON_DAYS"),
        ({"settings": {"TOKENMILL_DATABASE_URL": "postgresql://"}}, "TOKENMILL_DATABASE_URL"),
        ({"models": {"a": {"options": {"max-seqs": 1}}}}, "max-seqs"),
        ({"models": {"a": {"options": {"max-num-seqs": 0}}}}, "max-num-seqs"),
        ({"models": {"a": {"options": {"enforce-eager": False}}}}, "enforce-eager"),
        ({"models": {"a": {"options": {"input-price": 0.00001}}}}, "input-price"),
        ({"models": {"a": {"options": {"spill-budget": "20 €"}}}}, "spill-budget"),
        ({"api": {"trustedProxies": ["proxy.internal"]}}, "trustedProxies"),
        ({"models": {"a": {"gpus": 2}}}, "gpus"),
        ({"models": {"a": {"name": ":prepare"}}}, "name"),
        ({"models": {"A/B": {}}}, "A/B"),
        ({"storage": {"url": "file:///objects"}}, "storage"),
        ({"api": {"resources": {"limits": {"memory": "4Gigs"}}}}, "memory"),
        ({"api": {"replicas": 0}}, "replicas"),
        ({"image": {"server": {"digest": "latest"}}}, "digest"),
    ],
)
def test_a_value_that_is_not_allowed_is_refused_by_its_name(values: Object, named: str) -> None:
    with pytest.raises(helm.HelmValuesError, match=named):
        rendered(values)


@cache
def accepted(manifest: str) -> None:
    """Raise an error of validation for an object, which is text so that equal ones are validated once."""
    read = json.loads(manifest)
    own = CRDS / f"{read['kind'].lower()}.json"
    if own.exists():
        jsonschema.Draft202012Validator(json.loads(own.read_text(encoding="utf-8"))).validate(read)
    else:
        kubernetes_validate.validate(read, KUBERNETES, strict=True)


@pytest.mark.parametrize("name", FILES)
def test_kubernetes_and_operators_know_every_field(name: str) -> None:
    for manifest in objects_of(name):
        accepted(json.dumps(manifest, sort_keys=True))


def test_all_kinds_of_objects_are_validated() -> None:
    kinds = {manifest["kind"] for _, manifest in every_object()}
    assert {path.stem for path in CRDS.glob("*.json")} <= {kind.lower() for kind in kinds}
    assert kinds >= {
        "Deployment",
        "Job",
        "Pod",
        "NetworkPolicy",
        "PodDisruptionBudget",
        "HorizontalPodAutoscaler",
        "Ingress",
    }


@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        ("Deployment", ("spec", "replica"), 1),
        ("ScaledObject", ("spec", "pollingIntervall"), 1),
        ("PodMonitor", ("spec", "podMetricsEndpoints"), [{"ports": "metrics"}]),
        ("PrometheusRule", ("spec", "groups"), [{"rules": []}]),
        ("HTTPRoute", ("spec", "rules"), [{"backendRefs": [{"port": 80}]}]),
        ("TriggerAuthentication", ("spec", "secretTargetRef"), [{"parameter": "connection"}]),
    ],
)
def test_validation_refuses_an_unknown_or_missing_field(kind: str, path: tuple[str, str], value: object) -> None:
    manifest = copy.deepcopy(next(each for _, each in every_object() if each["kind"] == kind))
    manifest[path[0]][path[1]] = value
    with pytest.raises((jsonschema.ValidationError, kubernetes_validate.ValidationError)):
        accepted(json.dumps(manifest))


@pytest.mark.parametrize("name", FILES)
def test_no_object_has_a_fault(name: str) -> None:
    assert list(faults(objects_of(name))) == []


@pytest.mark.parametrize("release", ["prod", "tokenmill-of-the-research-team"])
def test_no_object_has_a_fault_under_another_name(release: str) -> None:
    values = values_of("keda") | {"models": {"a": {"path": "acme/a", "maxReplicas": 1}}}
    found = objects(values, release=release)
    assert list(faults(found)) == []
    assert all("tokenmill" in each["metadata"]["name"] for each in found)


def _container(manifest: Object) -> Object:
    pod = pod_of(manifest)
    assert pod is not None
    return container_of(pod)


BROKEN: dict[str, tuple[str, Callable[[Object], object]]] = {
    "selects no pod": ("Deployment", lambda each: each["spec"]["selector"]["matchLabels"].update(a="b")),
    "Service tokenmill-api: the selector": ("Service", lambda each: each["spec"]["selector"].update(a="b")),
    "to scale": ("ScaledObject", lambda each: each["spec"]["scaleTargetRef"].update(name="a")),
    "requests.memory is '4Gigs'": (
        "Deployment",
        lambda each: _container(each)["resources"]["requests"].update(memory="4Gigs"),
    ),
    "above its limit": ("Deployment", lambda each: _container(each)["resources"]["requests"].update(memory="1Ti")),
    "no handler": ("Deployment", lambda each: _container(each)["livenessProbe"].pop("httpGet")),
    "periodSeconds 0": ("Deployment", lambda each: _container(each)["readinessProbe"].update(periodSeconds=0)),
    "asks port web": ("Deployment", lambda each: _container(each)["readinessProbe"]["httpGet"].update(port="web")),
    "lasts longer": ("Deployment", lambda each: _container(each)["startupProbe"].update(failureThreshold=1000)),
    "63 characters": ("Job", lambda each: each["metadata"].update(name="a" * 63)),
    "the label a": ("Service", lambda each: each["metadata"]["labels"].update(a="b" * 64)),
    "variable TOKENMILL_REDIS_URL is there 2": (
        "Deployment",
        lambda each: _container(each)["env"].append({"name": "TOKENMILL_REDIS_URL"}),
    ),
    "mount /tmp is there 2": (
        "Job",
        lambda each: _container(each)["volumeMounts"].append({"name": "tmp", "mountPath": "/tmp"}),
    ),
    "no volume a": ("Job", lambda each: _container(each)["volumeMounts"].append({"name": "a", "mountPath": "/a"})),
    "volume a is unused": ("Job", lambda each: each["spec"]["template"]["spec"]["volumes"].append({"name": "a"})),
    "no ConfigMap tokenmill-a": (
        "Deployment",
        lambda each: _container(each)["envFrom"].append({"configMapRef": {"name": "tokenmill-a"}}),
    ),
    "made after it": (
        "Job",
        lambda each: _container(each)["envFrom"].append({"configMapRef": {"name": "tokenmill-settings"}}),
    ),
    "Service tokenmill-api is there 2": ("Ingress", lambda each: each.update(kind="Service", spec={})),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_fault_is_found(fault: str) -> None:
    kind, break_it = BROKEN[fault]
    manifests = copy.deepcopy(list(objects_of("keda")))
    break_it(next(each for each in manifests if each["kind"] == kind))
    assert [line for line in faults(manifests) if fault in line] != []


def test_alerts_are_those_of_the_declared_meters() -> None:
    assert RULES_OF_CHART.read_text(encoding="utf-8") == rules_file(), "run: python -m tests.deploy.prometheus_rules"
    (made,) = [each for each in objects_of("httproute") if each["kind"] == "PrometheusRule"]
    assert made["spec"] == rules()


def test_the_board_is_that_of_compose() -> None:
    assert BOARD_OF_CHART.read_text(encoding="utf-8") == board_file(), "run: python -m tests.deploy.grafana_board"
    (made,) = [each for each in objects_of("httproute") if each["metadata"]["name"] == "tokenmill-board"]
    assert json.loads(made["data"]["tokenmill.json"]) == board()


def test_notes_have_the_first_three_commands() -> None:
    notes = rendered(values_of("off"))["tokenmill/templates/NOTES.txt"]
    commands = re.findall(r"^  (\S+ \S+).*?(?:-- (.+))?$", notes, flags=re.MULTILINE)
    assert commands == [
        ("kubectl exec", "tokenmill tenants create acme"),
        ("kubectl exec", "tokenmill keys create acme"),
        ("kubectl port-forward", ""),
    ]
    assert "models" in notes
    assert "db upgrade" in notes
