"""What a line of `/v1/embeddings` may ask for: each parameter supported, harmless or refused by name.

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
    """How an answer writes a vector: a list of numbers, or its float32 in little endian as base64."""

    FLOAT = "float"
    BASE64 = "base64"


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingRequest:
    """Texts or token ids, each answered with a vector."""

    inputs: tuple[str | tuple[int, ...], ...]
    dimensions: int | None = None
    """How many of the first numbers of a vector are wanted; None: all."""
    encoding: Encoding = Encoding.FLOAT
    truncate: bool = False
    """A text that is longer than the model reads at once is read as far as it does, and not refused."""


def embedding_request(body: Mapping[str, Any]) -> EmbeddingRequest:
    """Read the body of a line of EMBEDDING_ENDPOINT; a null means "not given". Raises BodyError."""
    given = only_known(body, _PARAMETERS)
    if "input" not in given:
        raise BodyError("input", "input is missing; give text or token ids", code="missing_required_parameter")
    return EmbeddingRequest(
        inputs=given["input"],
        dimensions=given.get("dimensions"),
        encoding=given.get("encoding_format", Encoding.FLOAT),
        truncate=given.get("truncate", False),
    )


def _inputs(name: str, value: Any) -> tuple[str | tuple[int, ...], ...]:
    found = prompts(name, value)
    for index, one in enumerate(found):
        if one == "":
            where = name if type(value) is str else f"{name}[{index}]"
            raise BodyError(name, f"{where} is an empty string; leave it out, or give it a text")
    return found


def _encoding(name: str, value: Any) -> Encoding:
    try:
        return Encoding(value)
    except ValueError:
        raise wrong(name, value, "float or base64") from None


_PARAMETERS: dict[str, Check] = {
    "model": text,  # validation has matched it with the batch
    "input": _inputs,
    "dimensions": whole(1),
    "encoding_format": _encoding,
    "truncate": flag,
    "user": text,
}
