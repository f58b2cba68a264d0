"""Tests of the chart against the code and docker-compose.yml: variables, commands, ports, paths and rights."""

from __future__ import annotations

import ipaddress
import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from api.app import create_app
from jobs.settings import Settings
from jobs.storage.prepared import PREFIX
from tests.deploy.chart import (
    FILES,
    Object,
    component_of,
    container_of,
    every_object,
    objects,
    objects_of,
    pod_of,
    pods_of,
    rendered,
    values_of,
)
from tests.deploy.chart_schema import CHART, COMMANDS, SET_BY_VALUES, settings_names
from tests.jobs.configuration_page import MODELS, PROXIES

COMPOSE: Any = yaml.safe_load((CHART.parents[2] / "docker-compose.yml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
ROLES = {"api": "api", "control": "control", "dispatch": "dispatch", "prepare": "prepare", "worker": "worker-cpu"}
"""Services of docker-compose.yml by component of the chart."""
OBJECTS = "/var/lib/tokenmill/objects"


def every_pod() -> Iterator[tuple[str, str, Object]]:
    """Yield all pods with the file of values and their component."""
    for name, manifest in every_object():
        pod = pod_of(manifest)
        if pod is not None:
            yield name, component_of(manifest), pod


def pods_with(**model: object) -> list[tuple[str, Object]]:
    """Return the pods of a release with one model of these values."""
    made = objects(values_of("minimal") | {"models": {"demo": {"path": "acme/demo", **model}}})
    return [(component_of(each), pod) for each in made if (pod := pod_of(each)) is not None]


def environment(pod: Object) -> dict[str, str | None]:
    """Return the variables of a pod, None for one from a Secret."""
    return {each["name"]: each.get("value") for each in container_of(pod)["env"]}


def test_a_container_has_only_variables_that_something_reads() -> None:
    known = {*settings_names(), *SET_BY_VALUES, *MODELS, *PROXIES, *SERVICES["worker-gpu"]["environment"]}
    of_values = {"CUDA_MODULE_LOADING", "SSL_CERT_FILE"}
    unknown = {name for _, _, pod in every_pod() for name in environment(pod)} - known
    assert unknown == of_values
    maps = [each["data"] for _, each in every_object() if component_of(each) == "settings"]
    assert maps
    assert {name for each in maps for name in each} <= known


def test_a_container_runs_a_command_that_exists_with_options_that_it_accepts() -> None:
    for _, component, pod in every_pod():
        container = container_of(pod)
        words = list(container["args"])
        if "command" in container:
            assert component == "test"
            words = shlex.split(words[0].rpartition("tokenmill ")[2])
        command = COMMANDS
        while hasattr(command, "commands"):
            command = command.commands[words.pop(0)]
        command.make_context("", words)


def test_settings_come_from_the_values_as_the_code_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    (made,) = [each for each in objects_of("models") if component_of(each) == "settings"]
    for name, value in made["data"].items():
        monkeypatch.setenv(name, value)
    read = Settings()
    assert (read.max_file_bytes, read.retention_days, read.traces_lines) == (17179869184, 365, 0.5)
    hook = pods_of("models")["migrate"]
    overridden = {"TOKENMILL_LOG_FORMAT": "json"}
    of_hook = environment(hook).items()
    assert (made["data"] | overridden).items() <= of_hook, "an installation's hook runs before there is a map"


@pytest.mark.parametrize("role", [*ROLES, "migrate"])
def test_a_role_has_the_command_and_the_grace_of_compose(role: str) -> None:
    service, pod = SERVICES[ROLES.get(role, role)], pods_of("minimal")[role]
    ready = ["--ready-file", "/tmp/ready"] if role == "worker" else []
    if role == "worker":
        assert container_of(pod)["args"][: len(ready) + 2] == ["worker", *ready, "--model"]
    else:
        assert container_of(pod)["args"] == service["command"]
    if "stop_grace_period" in service:
        assert f"{pod['spec']['terminationGracePeriodSeconds']}s" == service["stop_grace_period"]


@pytest.mark.parametrize("role", [*ROLES, "migrate"])
def test_a_role_writes_where_it_does_in_compose_and_nowhere_else(role: str) -> None:
    pod = pods_of("minimal")[role]
    mounts = container_of(pod)["volumeMounts"]
    written = {each["mountPath"] for each in mounts if not each.get("readOnly")}
    service = SERVICES[ROLES.get(role, role)]
    volumes = [each for each in service["volumes"] if not each.endswith(":ro")]
    composed = {each.rpartition(":")[2] for each in volumes} | set(service["tmpfs"])
    composed -= {"/srv/stores"}  # files of pipelines: `extraVolumes`
    if OBJECTS in composed:  # one claim has both
        composed -= {f"{OBJECTS}/{PREFIX}"}
    assert written == composed
    assert {each.get("subPath", PREFIX) for each in mounts} == {PREFIX}
    assert (OBJECTS in written) is (role != "prepare")


def test_containers_have_no_right_that_they_do_not_need() -> None:
    dockerfile = (CHART.parents[1] / "Dockerfile").read_text()
    (user,) = re.findall(r"useradd --create-home --uid (\d+) tokenmill", dockerfile)
    for _, _, pod in every_pod():
        spec = pod["spec"]
        assert spec["securityContext"] == {
            "runAsNonRoot": True,
            "runAsUser": int(user),
            "runAsGroup": int(user),
            "fsGroup": int(user),
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        }
        for container in (*spec.get("initContainers", []), container_of(pod)):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
        assert spec["automountServiceAccountToken"] is False
        assert not spec.keys() & {"hostNetwork", "hostPID", "hostIPC"}


def test_names_of_services_set_no_variables() -> None:
    """For a Service tokenmill-metrics Kubernetes would set TOKENMILL_METRICS_PORT=tcp://…, and no role would start."""
    assert all(pod["spec"]["enableServiceLinks"] is False for _, _, pod in every_pod())


def test_only_migrations_have_the_owners_url_and_only_they_and_prepare_workers_that_of_prepare() -> None:
    keys = {
        (component, name): each["valueFrom"]["secretKeyRef"]["key"]
        for _, component, pod in every_pod()
        for each in container_of(pod)["env"]
        if (name := each["name"]).startswith("TOKENMILL_DATABASE")
    }
    of_prepare = {place for place, key in keys.items() if key == "TOKENMILL_DATABASE_PREPARE_URL"}
    of_owner = {place for place, key in keys.items() if key == "TOKENMILL_DATABASE_OWNER_URL"}
    assert of_prepare == {("migrate", "TOKENMILL_DATABASE_PREPARE_URL"), ("prepare", "TOKENMILL_DATABASE_URL")}
    assert keys["migrate", "TOKENMILL_DATABASE_SCALER_URL"] == "connection"
    assert of_owner == {("migrate", "TOKENMILL_DATABASE_OWNER_URL")}
    assert {component for component, _ in keys} == {*ROLES, "migrate", "test"}


def test_prepare_workers_may_have_credentials_of_their_own() -> None:
    def secrets(name: str, role: str) -> list[str]:
        sources = container_of(pods_of(name)[role])["envFrom"]
        return [each["secretRef"]["name"] for each in sources if "secretRef" in each]

    assert (secrets("s3", "prepare"), secrets("s3", "control")) == (["store-of-prepare"], ["store"])
    assert secrets("httproute", "prepare") == ["store"]


@pytest.mark.parametrize("name", FILES)
def test_ports_are_those_that_the_roles_listen_on(name: str) -> None:
    composed = str(COMPOSE["x-tokenmill"]["environment"]["TOKENMILL_METRICS_PORT"])
    for role, pod in pods_of(name).items():
        container = container_of(pod)
        ports = {each["name"]: str(each["containerPort"]) for each in container.get("ports", [])}
        if role == "api":
            words = container["args"]
            assert ports == {"http": words[words.index("--port") + 1]}
            assert "TOKENMILL_METRICS_PORT" not in environment(pod)
        elif role in ROLES:
            assert ports == {"metrics": environment(pod)["TOKENMILL_METRICS_PORT"]}
            assert f":-{ports['metrics']}}}" in composed
            assert environment(pod)["TOKENMILL_METRICS_HOST"] == "0.0.0.0", "the kubelet asks from outside of the pod"
        else:
            assert ports == {}


def test_probes_ask_paths_that_are_there_and_end_no_role_that_is_only_busy() -> None:
    seen = set()
    for _, component, pod in every_pod():
        container = container_of(pod)
        probes = [container[kind] for kind in ("startupProbe", "readinessProbe", "livenessProbe") if kind in container]
        seen |= {(component == "api", each["httpGet"]["path"]) for each in probes if "httpGet" in each}
        if component in ROLES:
            alive = container["livenessProbe"]
            assert alive["periodSeconds"] * alive["failureThreshold"] >= 120
            assert alive["timeoutSeconds"] == 5, "as deploy/answers"
    assert seen == {(True, "/healthz"), (True, "/readyz"), (False, "/metrics")}
    assert {path for is_api, path in seen if is_api} <= create_app(Settings()).openapi()["paths"].keys()


def test_a_worker_has_started_when_its_model_is_loaded_and_one_of_a_server_when_it_lives() -> None:
    """The first one's metrics are there before its model; the second one waits for its server as long as that takes."""
    seen = set()
    for _, component, pod in every_pod():
        container = container_of(pod)
        if component == "worker":
            file = container["args"][container["args"].index("--ready-file") + 1]
            started = container["startupProbe"]
            is_of_server = "--url" in container["args"]
            if is_of_server:
                assert started["httpGet"] == {"path": "/metrics", "port": "metrics"}
            else:
                assert started["exec"]["command"] == ["test", "-e", file]
            assert started["periodSeconds"] * started["failureThreshold"] == 30 * 60
            seen.add(is_of_server)
    assert seen == {True, False}


def test_only_an_api_with_trusted_proxies_believes_what_they_forward() -> None:
    found = {(name, component): environment(pod).get("FORWARDED_ALLOW_IPS") for name, component, pod in every_pod()}
    assert {place: value for place, value in found.items() if value} == {("httproute", "api"): "10.8.0.0/16,fd00::/8"}
    trusted = SERVICES["api"]["environment"]["FORWARDED_ALLOW_IPS"].removeprefix("${FORWARDED_ALLOW_IPS:-")
    networks = [ipaddress.ip_network(each) for each in trusted.removesuffix("}").split(",")]
    for address in ("172.17.0.1", "172.31.0.2", "192.168.0.2", "192.168.240.1"):  # of Docker's default pools
        assert any(ipaddress.ip_address(address) in network for network in networks)
    assert all("FORWARDED_ALLOW_IPS" not in SERVICES[name].get("environment", {}) for name in SERVICES.keys() - {"api"})


def test_a_workers_cache_begins_with_what_its_image_has_compiled() -> None:
    """An empty volume would hide it, and each start would compile for minutes; Docker fills a new volume by itself."""
    for _, component, pod in every_pod():
        if component == "worker":
            (prepares,) = pod["spec"]["initContainers"]
            (cache,) = [each for each in container_of(pod)["volumeMounts"] if each["name"] == "cache"]
            assert prepares["image"] == container_of(pod)["image"]
            assert prepares["command"][-2:] == [f"{cache['mountPath']}/.", prepares["volumeMounts"][0]["mountPath"]]


def test_a_worker_with_a_gpu_is_that_of_compose() -> None:
    (worker,) = [pod for component, pod in pods_with(gpus=1) if component == "worker"]
    composed = SERVICES["worker-gpu"]
    container = container_of(worker)
    own = {name: str(value) for name, value in composed["environment"].items()}
    of_all = COMPOSE["x-tokenmill"]["environment"].keys() | {"HF_TOKEN_PATH"}  # a Secret has the hub's token
    own = {name: value for name, value in own.items() if name not in of_all}
    assert own.items() <= environment(worker).items()
    assert container["image"].endswith(composed["image"].removeprefix("tokenmill:"))
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert all(name not in environment(pods_of("minimal")["worker"]) for name in own)


def test_a_model_overrides_each_default_with_nothing_too() -> None:
    defaults = {"gpus": 1, "spot": True, "minReplicas": 3, "claim": "models", "options": {"dtype": "float16"}}
    own = {"gpus": 0, "spot": False, "minReplicas": 0, "claim": "", "options": {"dtype": "auto"}, "path": "acme/a"}
    changed = {"defaults": defaults | {"tolerations": [{"key": "a"}]}, "models": {"a": own | {"tolerations": []}}}
    plain = {"models": {"a": {"path": "acme/a", "minReplicas": 0, "options": {"dtype": "auto"}}}}
    assert objects(values_of("minimal") | changed) == objects(values_of("minimal") | plain)


def test_images_are_the_targets_of_compose() -> None:
    targets = {service["image"].removeprefix("tokenmill:") for service in SERVICES.values() if "build" in service}
    tags = {
        container_of(pod)["image"].partition(":")[2].partition("-")[2]
        for name, _, pod in every_pod()
        if name != "s3"  # with a digest
    }
    assert tags == targets


def test_a_model_on_nodes_that_may_go_stops_within_their_notice() -> None:
    deployments = {
        each["metadata"]["name"]: pod_of(each) for each in objects_of("models") if each["kind"] == "Deployment"
    }
    pod = deployments["tokenmill-worker-small"]
    assert pod is not None
    assert pod["spec"]["terminationGracePeriodSeconds"] < 30
    assert float(str(environment(pod)["TOKENMILL_DRAIN_SECONDS"])) < Settings().drain_seconds
    assert pod["spec"]["nodeSelector"].keys() == {"cloud.google.com/gke-spot", "cloud.google.com/gke-accelerator"}
    assert pod["spec"]["tolerations"] == values_of("models")["spot"]["tolerations"]


def test_keda_asks_for_each_models_name_and_is_the_only_one_to_set_its_number() -> None:
    made = objects_of("keda")
    asked = {
        each["spec"]["scaleTargetRef"]["name"]: each["spec"]["triggers"][0]["metadata"]["query"]
        for each in made
        if each["kind"] == "ScaledObject"
    }
    assert asked == {
        "tokenmill-worker-day": "SELECT tokenmill_wanted_workers('d''accord')",
        "tokenmill-worker-night": "SELECT tokenmill_wanted_workers('Qwen/Qwen3-8B')",
    }
    replicas = {each["metadata"]["name"]: each["spec"].get("replicas") for each in made if each["kind"] == "Deployment"}
    assert {name: replicas[name] for name in asked} == dict.fromkeys(asked)
    assert replicas["tokenmill-api"] is None, "the autoscaler of the API sets it"


def test_the_object_for_keda_on_the_page_is_that_of_the_chart() -> None:
    (block,) = blocks_of("autoscaling")
    values = {"keda": {"enabled": True, "existingSecret": "scaler"}}
    model = {"path": "acme/small", "minReplicas": 0, "maxReplicas": 8}
    made = objects(values_of("minimal") | values | {"models": {"small": model}})
    (rendered_object,) = [each for each in made if each["kind"] == "ScaledObject"]
    assert block["metadata"]["name"] == rendered_object["metadata"]["name"]
    assert block["spec"] == rendered_object["spec"]


def test_the_values_on_the_page_are_accepted_with_and_without_keda() -> None:
    first, for_keda = blocks_of("kubernetes")
    assert [each["kind"] for each in objects(first)].count("ScaledObject") == 0
    assert [each["kind"] for each in objects(first | for_keda)].count("ScaledObject") == 1


def blocks_of(page: str) -> list[Any]:
    """Return the YAML of a page of docs."""
    text = (CHART.parents[2] / "docs" / f"{page}.md").read_text(encoding="utf-8")
    return [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", text, flags=re.DOTALL)]


def test_workers_have_no_disruption_budget_and_give_their_gpu_back_before_the_next_starts() -> None:
    budgets = {component_of(each) for _, each in every_object() if each["kind"] == "PodDisruptionBudget"}
    assert budgets == {"api", "dispatch"}
    for _, each in every_object():
        if each["kind"] == "Deployment":
            surge = each["spec"]["strategy"]["rollingUpdate"]["maxSurge"]
            assert surge == (0 if component_of(each) == "worker" else 1)


def test_pods_change_with_settings_and_templates_and_not_with_the_charts_version() -> None:
    def templates(**changes: object) -> dict[str, Object]:
        made = objects(values_of("models") | changes)
        return {each["metadata"]["name"]: each["spec"]["template"] for each in made if each["kind"] == "Deployment"}

    before, after = templates(), templates(settings={"TOKENMILL_RETENTION_DAYS": 7})
    assert all(before[name] != after[name] for name in before)
    models = values_of("models")["models"]
    models["instruct"]["chatTemplate"] = "another"
    after = templates(models=models)
    assert {name for name in before if before[name] != after[name]} == {"tokenmill-worker-instruct"}
    assert "tokenmill-0.1.0" not in str(before)


def test_the_publicly_reachable_paths_are_those_of_the_values() -> None:
    (ingress,) = [each for each in objects_of("keda") if each["kind"] == "Ingress"]
    assert [each["path"] for each in ingress["spec"]["rules"][0]["http"]["paths"]] == ["/v1"]
    (route,) = [each for each in objects_of("httproute") if each["kind"] == "HTTPRoute"]
    assert [each["path"]["value"] for each in route["spec"]["rules"][0]["matches"]] == ["/"]


def test_a_scrape_of_the_api_has_the_operators_key() -> None:
    (monitor,) = [each for each in objects_of("httproute") if each["kind"] == "PodMonitor"]
    (of_api, of_roles) = monitor["spec"]["podMetricsEndpoints"]
    variables = container_of(pods_of("httproute")["api"])["env"]
    (key,) = [each["valueFrom"] for each in variables if each["name"] == "TOKENMILL_API_OPERATOR_KEY"]
    assert of_api["authorization"]["credentials"] == key["secretKeyRef"]
    assert "authorization" not in of_roles


def test_what_is_switched_off_is_not_there() -> None:
    kinds = {each["kind"] for each in objects_of("off")}
    assert kinds == {"Deployment", "PodDisruptionBudget", "Pod", "Service"}
    assert rendered(values_of("off"))["tokenmill/templates/migrations.yaml"].strip() == ""
