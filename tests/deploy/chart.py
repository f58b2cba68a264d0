"""The chart of deploy/helm, rendered by Helm's own library without a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import helm_python as helm
import yaml

from tests.deploy.chart_schema import CHART

Object = dict[str, Any]
Values = Mapping[str, Any]

FILES = {path.name.removesuffix("-values.yaml"): path for path in sorted((CHART / "ci").glob("*-values.yaml"))}
"""Files of values that every test renders, by name."""


@cache
def chart() -> helm.Chart:
    return helm.Chart.load(CHART)


def values_of(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(FILES[name].read_text(encoding="utf-8"))
    return found


def rendered(values: Values, *, release: str = "tokenmill") -> dict[str, str]:
    """Return the text of each template. Raise HelmError as an installation would: for the values' schema first."""
    texts: dict[str, str] = chart().render(dict(values), name=release, namespace="batches")
    return texts


def objects(values: Values, *, release: str = "tokenmill") -> list[Object]:
    """Return all objects of a release, its hooks included."""
    texts = rendered(values, release=release)
    manifests = [text for name, text in texts.items() if name.endswith(".yaml")]
    return [each for text in manifests for each in yaml.safe_load_all(text) if each is not None]


@cache
def objects_of(name: str) -> tuple[Object, ...]:
    """Return the objects of a file of values; nobody may change them."""
    return tuple(objects(values_of(name)))


def every_object() -> Iterator[tuple[str, Object]]:
    """Yield the objects of all files, with the file's name."""
    for name in FILES:
        yield from ((name, each) for each in objects_of(name))


def pod_of(manifest: Object) -> Object | None:
    """Return the metadata and the specification of an object's pods, None if it has none."""
    if manifest["kind"] == "Pod":
        return manifest
    template: Object | None = manifest.get("spec", {}).get("template")
    return template


def component_of(manifest: Object) -> str:
    return str(manifest["metadata"]["labels"]["app.kubernetes.io/component"])


def pods_of(name: str) -> dict[str, Object]:
    """Return the pods of a file of values, by component; of several workers the last one."""
    found = [(component_of(each), pod_of(each)) for each in objects_of(name)]
    return {component: pod for component, pod in found if pod is not None}


def container_of(pod: Object) -> Object:
    (container,) = pod["spec"]["containers"]
    found: Object = container
    return found
