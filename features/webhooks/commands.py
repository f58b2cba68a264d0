"""`tokenmill webhooks …`: endpoints on a running server and their deliveries, through the official client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer

from cli.client import client_from_environment, server_errors_as_sentences
from cli.ids import require_id
from cli.options import AsJson
from cli.table import print_fields, print_table, when
from features.webhooks.states import PayloadFormat
from jobs.errors import ServiceError
from jobs.states import EventType

if TYPE_CHECKING:
    from openai import OpenAI

app = typer.Typer(help="Notify URLs when batches end or runs fail, and list what was sent.", no_args_is_help=True)

EndpointId = Annotated[str, typer.Argument(metavar="ENDPOINT_ID", callback=require_id)]
DeliveryId = Annotated[str, typer.Argument(metavar="DELIVERY_ID", callback=require_id)]


@app.command()
def add(
    url: Annotated[str, typer.Argument(metavar="URL", help="https, at a public address.")],
    *,
    event: Annotated[list[EventType] | None, typer.Option(help="May be given again [default: all]")] = None,
    name: Annotated[str | None, typer.Option(help="For lists [default: the URL's host]")] = None,
    form: Annotated[
        PayloadFormat, typer.Option("--format", help="slack: a text, for incoming webhooks of chats.")
    ] = PayloadFormat.EVENT,
    as_json: AsJson = False,
) -> None:
    """Add an endpoint; print its id and its secret, which is shown only once."""
    with _client() as client:
        endpoint = client.webhooks.create(
            url=url,
            name=name or _host(url),
            event_types=[kind.value for kind in event or EventType],  # type: ignore[misc]  # we have more
            extra_body={"format": form.value},
        )
    _print_secret(endpoint, as_json=as_json)


@app.command("list")
def list_(as_json: AsJson = False) -> None:
    """List endpoints, newest first."""
    with _client() as client:
        endpoints = [endpoint.to_dict() for endpoint in client.webhooks.list(limit=100)]
    if as_json:
        print(json.dumps(endpoints, indent=2))
        return
    print_table(
        ("id", "name", "url", "events", "secret", "state"),
        [
            (*(one[field] for field in ("id", "name", "url")), " ".join(one["event_types"]),
             one["signing_secret_hint"], _state(one, when(one["failing_since"] or 0)))
            for one in map(_known, endpoints)
        ],
    )  # fmt: skip


@app.command()
def remove(endpoint_id: EndpointId) -> None:
    """Remove an endpoint and its log; pending events are not sent."""
    with _client() as client:
        client.webhooks.delete(endpoint_id)
    print(f"removed {endpoint_id}")


@app.command()
def enable(endpoint_id: EndpointId) -> None:
    """Enable an endpoint that was disabled."""
    _change(endpoint_id, enabled=True)
    print(f"enabled {endpoint_id}")


@app.command()
def disable(endpoint_id: EndpointId) -> None:
    """Disable an endpoint: until it is enabled nothing is sent to it; pending events are dropped."""
    _change(endpoint_id, enabled=False)
    print(f"disabled {endpoint_id}")


@app.command()
def rotate(
    endpoint_id: EndpointId,
    keep_old: Annotated[bool, typer.Option("--keep-old", help="Sign with the old secret too for 24 hours.")] = False,
    as_json: AsJson = False,
) -> None:
    """Give an endpoint a new secret, which is shown only once."""
    with _client() as client:
        endpoint = client.webhooks.rotate_secret(endpoint_id, keep_old_secret_active_for_24_hours=keep_old)
    _print_secret(endpoint, as_json=as_json)


@app.command()
def deliveries(
    endpoint_id: EndpointId,
    limit: Annotated[int, typer.Option(min=1, max=100, help="Number of deliveries, newest first.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List deliveries of an endpoint: sent, pending and given up."""
    with _client() as client:
        path = f"/webhook_endpoints/{endpoint_id}/deliveries?limit={limit}"
        sent = client.get(path, cast_to=dict[str, Any])["data"]
    if as_json:
        print(json.dumps(sent, indent=2))
        return
    print_table(
        ("id", "event", "about", "at", "status", "tries", "last answer", "next"),
        [
            (
                one["id"], one["event"]["type"], one["event"]["data"].get("id", ""), when(one["event"]["created_at"]),
                one["status"], len(one["attempts"]), _last_answer(one),
                "" if one["next_attempt_at"] is None else when(one["next_attempt_at"]),
            )
            for one in sent
        ],
    )  # fmt: skip


@app.command()
def replay(endpoint_id: EndpointId, delivery_id: DeliveryId) -> None:
    """Send an event again, whatever its status; the receiver recognizes it by its id."""
    with _client() as client:
        client.post(f"/webhook_endpoints/{endpoint_id}/deliveries/{delivery_id}/replay", cast_to=dict[str, Any])
    print(f"{delivery_id} is sent again; see tokenmill webhooks deliveries {endpoint_id}")


@app.command("test")
def try_out(endpoint_id: EndpointId, event: Annotated[EventType, typer.Option()] = EventType.BATCH_COMPLETED) -> None:
    """Send a sample event now and show the answer; exit status 1 unless it is a 2xx."""
    with _client() as client:
        path, body = f"/webhook_endpoints/{endpoint_id}/test", {"event_type": event.value}
        status = client.post(path, body=body, cast_to=dict[str, Any])["status_code"]
    if not 200 <= status < 300:
        raise ServiceError(f"the endpoint answered {status}; an event counts as received with a status of 2xx")
    print(f"the endpoint answered {status}")


@contextmanager
def _client() -> Iterator[OpenAI]:

    client = client_from_environment()
    with client, server_errors_as_sentences(client):
        yield client


def _change(endpoint_id: str, *, enabled: bool) -> None:
    with _client() as client:
        client.post(f"/webhook_endpoints/{endpoint_id}", body={"enabled": enabled}, cast_to=dict[str, Any])


def _host(url: str) -> str:

    try:
        return urlsplit(url).hostname or "webhook"
    except ValueError:
        return "webhook"  # the server says what is wrong with it


def _print_secret(endpoint: Any, *, as_json: bool) -> None:

    if as_json:
        print(endpoint.to_json())
        return
    print_fields({"id": endpoint.id, "secret": endpoint.signing_secret})
    print("Store the secret: it is not shown again. client.webhooks.unwrap(body, headers, secret=…) verifies with it.")


def _known(endpoint: dict[str, Any]) -> dict[str, Any]:
    """Add the fields that other servers do not have."""
    return dict.fromkeys(("signing_secret_hint", "disabled_at", "disabled_reason", "failing_since")) | endpoint


def _state(endpoint: dict[str, Any], failing_since: str) -> str:
    if endpoint["disabled_at"] is not None:
        return f"disabled: {endpoint['disabled_reason']}"
    return f"failing since {failing_since}" if endpoint["failing_since"] is not None else "ok"


def _last_answer(delivery: dict[str, Any]) -> str:
    if delivery["problem"] is not None:
        return str(delivery["problem"])
    if not delivery["attempts"]:
        return ""
    last = delivery["attempts"][-1]
    if last["status_code"] is None:
        return str(last["error"])
    return f"{last['status_code']} in {last['milliseconds']} ms"
