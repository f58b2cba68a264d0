"""The parts of the feature lines."""

from __future__ import annotations

from features.feature import Feature, Scopes

FEATURE = Feature(
    name="lines",
    routers=("features.lines.http.lines:router",),
    lines=("features.lines.schemas:SearchRow",),
    services={"lines": "features.lines.http.threads:open_threads"},
    templates="features.lines",
    pages=("features.lines.pages.lines:router",),
    scopes=Scopes(read=("listLines", "retrieveLine", "searchLines")),
)
