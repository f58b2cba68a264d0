"""Faults of Kubernetes objects that the validation of each one by its schema does not find."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tests.deploy.chart import Object, pod_of

_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]+)?)(m|k|[KMGTPE]i?)?")
_UNITS = {"m": 1e-3, "k": 1e3} | {
    letter + suffix: base**power
    for power, letter in enumerate("KMGTPE", start=1)
    for suffix, base in (("", 1000.0), ("i", 1024.0))
}
_LABEL = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?)?")
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
_LONGEST = 63
_SUFFIX_OF_PODS = 17
_HANDLERS = {"exec", "httpGet", "tcpSocket", "grpc"}


def faults(manifests: Sequence[Object]) -> Iterator[str]:
    """Yield a line for each fault of the objects of a release."""
    yield from _repeated("object", [f"{each['kind']} {each['metadata']['name']}" for each in manifests])
    for each in manifests:
        place = f"{each['kind']} {each['metadata']['name']}"
        yield from (
            f"{place}: {fault}" for fault in [*_names(each), *_selection(each, manifests), *_pods(each, manifests)]
        )


def _repeated(what: str, names: Iterable[str]) -> Iterator[str]:
    yield from (f"{what} {name} is there {count} times" for name, count in Counter(names).items() if count > 1)


def _names(manifest: Object) -> Iterator[str]:
    name = manifest["metadata"]["name"]
    suffix = _SUFFIX_OF_PODS if manifest["kind"] in {"Deployment", "Job"} else 0
    if len(name) + suffix > _LONGEST or not _NAME.fullmatch(name):
        yield f"the name has {len(name)} characters, or some that are not allowed"
    pod = pod_of(manifest) or {"metadata": {}}
    for labels in (manifest["metadata"].get("labels", {}), pod["metadata"].get("labels", {})):
        yield from (
            f"the label {label} is {value!r}"
            for label, value in labels.items()
            if len(str(value)) > _LONGEST or not _LABEL.fullmatch(str(value))
        )


def _selection(manifest: Object, manifests: Sequence[Object]) -> Iterator[str]:
    """Yield faults of selectors without pods, and of references to workloads that are not there."""
    spec = manifest.get("spec", {})
    labels = [pod["metadata"]["labels"] for pod in map(pod_of, manifests) if pod is not None]
    selectors = {"Service": spec.get("selector"), "NetworkPolicy": spec.get("podSelector", {}).get("matchLabels")}
    selector = selectors.get(manifest["kind"], (spec.get("selector") or {}).get("matchLabels"))
    if manifest["kind"] == "Deployment":
        labels = [spec["template"]["metadata"]["labels"]]
    if selector is not None and not any(selector.items() <= each.items() for each in labels):
        yield f"the selector {selector} selects no pod"
    target = spec.get("scaleTargetRef")
    if target is not None and not any(
        each["metadata"]["name"] == target["name"] for each in manifests if each["kind"] == "Deployment"
    ):
        yield f"there is no Deployment {target['name']} to scale"


def _pods(manifest: Object, manifests: Sequence[Object]) -> Iterator[str]:
    pod = pod_of(manifest)
    if pod is None:
        return
    spec = pod["spec"]
    volumes = [each["name"] for each in spec.get("volumes", [])]
    yield from _repeated("the volume", volumes)
    containers = [*spec.get("initContainers", []), *spec["containers"]]
    mounted = {each["name"] for container in containers for each in container.get("volumeMounts", [])}
    yield from (f"the volume {name} is unused" for name in volumes if name not in mounted)
    for container in containers:
        mounts = container.get("volumeMounts", [])
        yield from _repeated("the variable", (each["name"] for each in container.get("env", [])))
        yield from _repeated("the mount", (each["mountPath"] for each in mounts))
        yield from (f"there is no volume {each['name']}" for each in mounts if each["name"] not in volumes)
        yield from _quantities(container.get("resources", {}))
        yield from _probes(container, deadline=manifest["spec"].get("progressDeadlineSeconds", 600))
    yield from _references(manifest, spec, manifests)


def _quantities(resources: Object) -> Iterator[str]:
    amounts = {kind: dict(resources.get(kind, {})) for kind in ("requests", "limits")}
    for kind, each in amounts.items():
        yield from (f"{kind}.{name} is {value!r}" for name, value in each.items() if _amount(value) is None)
    for name in amounts["requests"].keys() & amounts["limits"].keys():
        request, limit = (_amount(amounts[kind][name]) for kind in ("requests", "limits"))
        if request is not None and limit is not None and request > limit:
            yield f"requests.{name} is above its limit"


def _amount(quantity: Any) -> float | None:
    match = _QUANTITY.fullmatch(str(quantity))
    return None if match is None else float(match[1]) * _UNITS.get(match[2], 1.0)


def _probes(container: Object, *, deadline: int) -> Iterator[str]:
    ports = {each["name"] for each in container.get("ports", [])}
    for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
        probe = container.get(kind)
        if probe is None:
            continue
        if len(probe.keys() & _HANDLERS) != 1:
            yield f"the {kind} has no handler, or several"
        port = probe.get("httpGet", {}).get("port")
        if port is not None and port not in ports:
            yield f"the {kind} asks port {port}"
        numbers = {name: value for name, value in probe.items() if name.endswith(("Seconds", "Threshold"))}
        yield from (f"the {kind} has {name} {value}" for name, value in numbers.items() if value < 1)
        if kind == "startupProbe" and numbers.get("periodSeconds", 10) * numbers.get("failureThreshold", 3) >= deadline:
            yield f"the startupProbe lasts longer than the {deadline} s after which a rollout has failed"


def _references(manifest: Object, spec: Object, manifests: Sequence[Object]) -> Iterator[str]:
    """Yield faults of references to ConfigMaps of the release, and of a hook's to what is made after it."""
    made = {each["metadata"]["name"] for each in manifests if each["kind"] == "ConfigMap"}
    sources = [each for container in spec["containers"] for each in container.get("envFrom", [])]
    references = [each.get("configMapRef", {}).get("name") for each in sources]
    references += [each.get("configMap", {}).get("name") for each in spec["volumes"]]
    prefix = manifest["metadata"]["labels"]["app.kubernetes.io/instance"]
    used = sorted({name for name in references if name is not None and name.startswith(prefix)})
    if "pre-install" in manifest["metadata"].get("annotations", {}).get("helm.sh/hook", ""):
        yield from (f"the hook uses {name}, which is made after it" for name in used)
    else:
        yield from (f"there is no ConfigMap {name}" for name in used if name not in made)
