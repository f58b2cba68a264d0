"""Parse the bodies of `/v1/embeddings`: each parameter is supported, ignored as harmless, or refused by name.

Pure: the parsed body in, a frozen request out; no SQL, no tokenizer, no model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from jobs.lines.body_checks import BodyError, Check, flag, only_known, prompts, text, whole, wrong

EMBEDDING_ENDPOINT = "/v1/embeddings"


class Encoding(StrEnum):
    """Format of a vector in an answer: a list of numbers, or its float32 in little endian as base64."""

    FLOAT = "float"
    BASE64 = "base64"


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingRequest:
    """Texts or token ids, one vector each."""

    inputs: tuple[str | tuple[int, ...], ...]
    dimensions: int | None = None
    """Number of leading dimensions returned; None: all."""
    encoding: Encoding = Encoding.FLOAT
    truncate: bool = False
    """Whether a text longer than the model reads is truncated instead of refused."""


def embedding_request(body: Mapping[str, Any]) -> EmbeddingRequest:
    """Parse the body of a line of EMBEDDING_ENDPOINT; a null means "not given". Raises BodyError."""
    values = only_known(body, _PARAMETERS)
    if "input" not in values:
        raise BodyError("input", "input is missing; give text or token ids", code="missing_required_parameter")
    return EmbeddingRequest(
        inputs=values["input"],
        dimensions=values.get("dimensions"),
        encoding=values.get("encoding_format", Encoding.FLOAT),
        truncate=values.get("truncate", False),
    )


def _inputs(name: str, value: Any) -> tuple[str | tuple[int, ...], ...]:
    inputs = prompts(name, value)
    for index, one in enumerate(inputs):
        if one == "":
            where = name if type(value) is str else f"{name}[{index}]"
            raise BodyError(name, f"{where} is an empty string; leave it out, or give it a text")
    return inputs


def _encoding(name: str, value: Any) -> Encoding:
    try:
        return Encoding(value)
    except ValueError:
        raise wrong(name, value, "float or base64") from None


_PARAMETERS: dict[str, Check] = {
    "model": text,  # matched with the batch by validation
    "input": _inputs,
    "dimensions": whole(1),
    "encoding_format": _encoding,
    "truncate": flag,
    "user": text,
}
