"""Export of spans to a collector, where one is set; loads the OpenTelemetry library only then."""

from __future__ import annotations

from jobs.errors import InputError
from jobs.telemetry.traces import NO_TRACES, Traces


def start_traces(url: str, *, role: str, share_of_lines: float) -> Traces:
    """Send spans to the collector at `url`, if any. Raises InputError where the package's extra is not installed."""
    if not url:
        return NO_TRACES
    try:
        from jobs.telemetry.opentelemetry_spans import exporting  # noqa: PLC0415 - an extra, loaded only where it is used
    except ModuleNotFoundError as error:
        raise InputError(
            f"TOKENMILL_TRACES_URL is set, and the package {error.name} is not installed. Run "
            "`pip install 'tokenmill[otel]'`, or unset it."
        ) from None
    return Traces(exporting(url, role=role), share_of_lines=share_of_lines)
