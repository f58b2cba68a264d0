"""The official openai client for a Tokenmill server, and its errors as sentences."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from cli.loading import without_collections
from jobs.errors import AuthenticationError, InputError, NotFoundError, ServiceError, TokenmillError

if TYPE_CHECKING:
    from openai import APIStatusError, OpenAI

_TIMEOUT_SECONDS = 600.0  # one upload of some GB
_EXAMPLES = {"TOKENMILL_BASE_URL": "http://127.0.0.1:8000/v1", "TOKENMILL_API_KEY": "tm-…"}


def client_from_environment() -> OpenAI:
    """Return a client for TOKENMILL_BASE_URL and TOKENMILL_API_KEY. Raises InputError naming what is wrong."""
    missing = [name for name in _EXAMPLES if not os.environ.get(name)]
    if missing:
        raise InputError(
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set. Set what "
            f"`tokenmill up --show-key` prints, such as {' '.join(f'{name}={_EXAMPLES[name]}' for name in missing)}"
        )
    return client_for(os.environ["TOKENMILL_BASE_URL"], os.environ["TOKENMILL_API_KEY"])


def client_for(base_url: str, api_key: str | None) -> OpenAI:
    """Return a client for a server, with TOKENMILL_API_KEY by default. Raises InputError naming what is wrong."""
    if not base_url.startswith(("http://", "https://")):
        example = _EXAMPLES["TOKENMILL_BASE_URL"]
        raise InputError(f"TOKENMILL_BASE_URL is {base_url!r}; it must begin with http:// or https://, as {example}")
    api_key = api_key or os.environ.get("TOKENMILL_API_KEY")
    if not api_key:
        raise InputError(f"no API key was given for {base_url}. Give one, or set TOKENMILL_API_KEY.")
    return make_client(base_url, api_key)


def make_client(base_url: str, api_key: str) -> OpenAI:
    with without_collections():
        from openai import OpenAI

    return OpenAI(base_url=base_url, api_key=api_key, timeout=_TIMEOUT_SECONDS, max_retries=2)


@contextmanager
def server_errors_as_sentences(client: OpenAI) -> Iterator[None]:
    """Turn the client's exceptions into TokenmillError."""
    import httpx2  # openai's transport: its errors while a body is read are not wrapped
    from openai import APIConnectionError, APIError, APIStatusError

    try:
        yield
    except APIStatusError as error:
        raise _refusal(error) from None
    except (APIConnectionError, httpx2.TransportError) as error:
        raise ServiceError(
            f"cannot reach {client.base_url} ({cause(error)}). Start the server with `tokenmill up`, "
            "or correct TOKENMILL_BASE_URL."
        ) from None
    except APIError as error:
        raise ServiceError(f"{client.base_url} sent an answer that cannot be parsed: {error.message}") from None


def _refusal(error: APIStatusError) -> TokenmillError:
    body: Any = error.body
    reason = body.get("message") if isinstance(body, dict) else None
    message = str(reason or error.message)
    if error.status_code == 401:
        return AuthenticationError(f"{message}. Check TOKENMILL_API_KEY.")
    if error.status_code == 404 and not error.request.url.path.startswith("/v1/"):
        return NotFoundError(f"{error.request.url} does not exist. TOKENMILL_BASE_URL should end in /v1.")
    return ServiceError(message) if error.status_code >= 500 else InputError(message)


def cause(error: Exception) -> str:
    """Return the message of the root cause: the client's own says only that something went wrong."""
    deepest: BaseException = error
    while deepest.__cause__ is not None:
        deepest = deepest.__cause__
    return str(deepest) or type(deepest).__name__
