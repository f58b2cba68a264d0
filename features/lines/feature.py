"""The parts of the feature lines."""

from __future__ import annotations

from features.feature import Feature, Scopes

FEATURE = Feature(
    name="lines",
    routers=("features.lines.http.lines:router",),
    lines=("features.lines.schemas:SearchRow",),
    services={"lines": "features.lines.http.threads:open_threads"},
    scopes=Scopes(read=("listLines", "retrieveLine", "searchLines")),
)
