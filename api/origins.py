"""Checks by its headers whether a browser's request was made by one of our pages."""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.datastructures import Headers

_SITE = "sec-fetch-site"


def is_sent_by(headers: Headers, *sites: str) -> bool:
    """Tell whether a request comes from one of `sites` (Fetch Metadata: `same-origin`, `none` …).

    If the browser does not send that header, `Origin` must name the request's host; its scheme may be that of a proxy.
    A request with neither is not from a page, as no browser lets a page omit both.
    """
    site = headers.get(_SITE)
    if site is not None:
        return site in sites
    origin = headers.get("origin")
    return origin is None or urlsplit(origin).netloc == headers.get("host", "")
