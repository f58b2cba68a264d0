"""The `/metrics` endpoint of a role without its own HTTP server, by prometheus_client.

Independent of the meters.
"""

from __future__ import annotations

import logging
import os
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server

from jobs.errors import InputError

log = logging.getLogger(__name__)


def serve(registry: CollectorRegistry, *, host: str, port: int) -> WSGIServer | None:
    """Answer scrapes until the process ends; return the server, None where `port` is 0 (off). Raises InputError."""
    if port == 0:
        return None
    try:
        server, _thread = start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise InputError(
            f"cannot show metrics on {host}:{port} ({reason}). Stop what uses it, or choose another with "
            "TOKENMILL_METRICS_PORT and TOKENMILL_METRICS_HOST."
        ) from None
    log.info("metrics shown host=%s port=%d", host, port)
    return server
