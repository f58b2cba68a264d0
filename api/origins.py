"""Whether a browser's request was made by a page of ours: by what the browser says of where it comes from."""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.datastructures import Headers

_SITE = "sec-fetch-site"


def is_sent_by(headers: Headers, *sites: str) -> bool:
    """Tell whether a request comes from one of `sites` (Fetch Metadata: `same-origin`, `none` …).

    Of a browser that does not say so, `Origin` must name the host that was asked; its scheme may be that of a proxy.
    What has neither is no page: no browser lets one leave out both.
    """
    site = headers.get(_SITE)
    if site is not None:
        return site in sites
    origin = headers.get("origin")
    return origin is None or urlsplit(origin).netloc == headers.get("host", "")
