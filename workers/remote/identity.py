"""Asks a server what it is: the kind and version of its engine, its models, the context, its slots.

Reads only; servers of one kind answer at paths that the others do not have.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import httpx
import orjson

from jobs.errors import InputError, ServiceError
from workers.remote.dialects import (
    LLAMA_CPP_PYTHON,
    LLAMA_SERVER,
    LM_STUDIO,
    OLLAMA,
    OPENAI,
    OTHER,
    SGLANG,
    VLLM,
    Dialect,
)
from workers.remote.exchange import Address, is_refused_certificate
from workers.remote.statuses import error_message, is_passing

_SECONDS = 10.0
_MOST_BYTES = 4 * 2**20
_FEW = 5
_MOST_LISTED = 1000
"""Names of a server that are read: a vendor may list any number."""

log = logging.getLogger(__name__)


class AwayError(ServiceError):
    """The server gives no answer now, and may later: it is not there, loads its model, is busy or late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a server is."""

    dialect: Dialect
    version: str | None
    model: str
    """The model's name at the server."""
    max_model_len: int | None = None
    """Tokens of prompt and answer; None where the server does not tell."""
    num_slots: int | None = None
    """Requests that it computes at once; None where it does not tell."""
    others: frozenset[str] = frozenset()
    """The other names that the server lists: adapters, as vLLM serves them."""


def api_url(url: str) -> str:
    """Return the URL of a server's API for `--url`, with or without /v1. Raise InputError for one that is none."""
    try:
        parts = httpx.URL(url.strip())
    except httpx.InvalidURL as error:
        raise InputError(f"--url is {url!r}: {error}. Give one as http://host:8000/v1.") from None
    if parts.scheme not in ("http", "https") or not parts.host:
        raise InputError(f"--url is {url!r}; give one as http://host:8000/v1.")
    if parts.userinfo or parts.query or parts.fragment:
        raise InputError("--url has a user, a query or a fragment, which logs would show. Give a key with --key-file.")
    base = str(parts).rstrip("/")
    return base if base.rpartition("/")[2].startswith("v") and base[-1].isdigit() else f"{base}/v1"


def identify(address: Address, *, named: str | None, served: str | None) -> Identity:
    """Return what a server is; `named` is the model's name there, `served` the one that tenants use.

    Without a name it is the model that is served under the same name, or the only one. Raise AwayError if the server
    does not answer now, ServiceError if it denies an answer, InputError if it lacks the model.
    """
    headers = {} if address.key is None else {"Authorization": f"Bearer {address.key}"}
    with httpx.Client(headers=headers, timeout=_SECONDS, trust_env=False, follow_redirects=False) as client:
        offered = _models(client, address)
        own = _with_base(_chosen(offered, named, served), offered)
        others = frozenset(str(one["id"]) for one in offered[:_MOST_LISTED]) - {str(own["id"])}
        return replace(_identity(_Reader(client, address), own), others=others)


class _Reader:
    """Reads small JSON objects of a server."""

    def __init__(self, client: httpx.Client, address: Address) -> None:
        self._client = client
        self._root = address.url.rpartition("/")[0]
        self.host = httpx.URL(address.url).host

    def get(self, path: str) -> Mapping[str, Any]:
        """Return the object at a path below the server's root; an empty one where there is none."""
        try:
            response = self._client.get(f"{self._root}{path}")
            value = orjson.loads(response.content) if response.status_code == 200 else {}
        except (httpx.HTTPError, orjson.JSONDecodeError):
            return {}
        return value if isinstance(value, dict) and len(response.content) <= _MOST_BYTES else {}


def _models(client: httpx.Client, address: Address) -> Sequence[Mapping[str, Any]]:
    try:
        response = client.get(f"{address.url}/models")
    except httpx.HTTPError as error:
        reason = f"the server at {address.url} cannot be reached: {error or type(error).__name__}"
        raise (ServiceError(reason) if is_refused_certificate(error) else AwayError(reason)) from None
    if response.status_code != 200:
        reason = f"{address.url}/models answers {response.status_code}: {error_message(response.content)}"
        if is_passing(response.status_code):
            raise AwayError(reason)
        raise ServiceError(f"{reason}. Check --url and --key-file.")
    try:
        value = orjson.loads(response.content)
    except orjson.JSONDecodeError:
        value = None
    offered = value.get("data") if isinstance(value, dict) else None
    if not isinstance(offered, list):
        raise ServiceError(f"{address.url}/models is no list of models. Give the URL of an OpenAI-compatible API.")
    return [one for one in offered if isinstance(one, dict) and isinstance(one.get("id"), str)]


def _chosen(offered: Sequence[Mapping[str, Any]], named: str | None, served: str | None) -> Mapping[str, Any]:
    by_name = {one["id"]: one for one in offered}
    for name in (named,) if named is not None else (served, *(by_name if len(by_name) == 1 else ())):
        if name in by_name:
            return by_name[name]
    names = ", ".join(list(by_name)[:_FEW]) or "none"
    given = "no model of the server was named" if named is None else f"the server has no model {named!r}"
    raise InputError(f"{given}; it offers {names}. Name one of them with --server-model.")


def _with_base(own: Mapping[str, Any], offered: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return an adapter's entry with the context of its base model, which vLLM shows at the base alone."""
    base: Mapping[str, Any] = next((one for one in offered if one["id"] == own.get("parent")), {})
    return {**own, "max_model_len": _number(own, "max_model_len") or base.get("max_model_len")}


def _identity(reader: _Reader, own: Mapping[str, Any]) -> Identity:
    for tell in (_vllm, _sglang, _llama_server, _ollama, _lm_studio, _llama_cpp_python, _openai):
        if (identity := tell(reader, own, str(own["id"]))) is not None:
            return identity
    return Identity(dialect=OTHER, version=None, model=str(own["id"]), max_model_len=_number(own, "max_model_len"))


def _vllm(reader: _Reader, own: Mapping[str, Any], name: str) -> Identity | None:
    if own.get("owned_by") != "vllm":
        return None
    version = _text(reader.get("/version").get("version"))
    return Identity(dialect=VLLM, version=version, model=name, max_model_len=_number(own, "max_model_len"))


def _sglang(reader: _Reader, own: Mapping[str, Any], name: str) -> Identity | None:
    if own.get("owned_by") != "sglang":
        return None
    info = reader.get("/get_server_info") or reader.get("/server_info")
    context = _number(own, "max_model_len") or _number(info, "context_length")
    return Identity(dialect=SGLANG, version=_text(info.get("version")), model=name, max_model_len=context)


def _llama_server(reader: _Reader, own: Mapping[str, Any], name: str) -> Identity | None:
    props = reader.get("/props")
    if not props:
        return None
    context = _number(_inner(props, "default_generation_settings"), "n_ctx")
    return Identity(
        dialect=LLAMA_SERVER,
        version=_text(props.get("build_info")),
        model=name,
        max_model_len=context or _number(_inner(own, "meta"), "n_ctx_train"),
        num_slots=_number(props, "total_slots"),
    )


def _ollama(reader: _Reader, _own: Mapping[str, Any], name: str) -> Identity | None:
    version = _text(reader.get("/api/version").get("version"))
    return None if version is None else Identity(dialect=OLLAMA, version=version, model=name)


def _lm_studio(reader: _Reader, _own: Mapping[str, Any], name: str) -> Identity | None:
    models = reader.get("/api/v0/models").get("data")
    if not isinstance(models, list):
        return None
    listed: Mapping[str, Any] = next((one for one in models if isinstance(one, dict) and one.get("id") == name), {})
    context = _number(listed, "loaded_context_length") or _number(listed, "max_context_length")
    return Identity(dialect=LM_STUDIO, version=None, model=name, max_model_len=context)


def _llama_cpp_python(reader: _Reader, _own: Mapping[str, Any], name: str) -> Identity | None:
    info = _inner(reader.get("/openapi.json"), "info")
    if "llama.cpp Python" not in str(info.get("title")):
        return None
    return Identity(dialect=LLAMA_CPP_PYTHON, version=_text(info.get("version")), model=name)


def _openai(reader: _Reader, _own: Mapping[str, Any], name: str) -> Identity | None:
    return Identity(dialect=OPENAI, version=None, model=name) if reader.host.endswith("openai.com") else None


def _inner(source: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = source.get(name)
    return value if isinstance(value, dict) else {}


def _number(source: Mapping[str, Any], name: str) -> int | None:
    value = source.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _text(value: Any) -> str | None:
    return value[:80] if isinstance(value, str) and value else None
