"""The lines of a chunk for a pooling model: tokenised, measured, and divided into groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from engine.pooling.text_tokens import TokenizedText
from jobs.lines.endpoints import LineKind, Request

GROUP_TOKENS = 16_384
"""Tokens of the lines that are computed between two writes, unless a single line has more."""

Numbers = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolLine:
    """A line ready to be computed."""

    line_no: int
    custom_id: str
    request: Request
    inputs: Sequence[TokenizedText]
    """Its inputs, each computed by itself."""

    @property
    def most_tokens(self) -> int:
        """Return how many tokens the line uses, which is known beforehand."""
        return sum(len(one.token_ids) for one in self.inputs)

    @property
    def num_prompt_tokens(self) -> int:
        return self.most_tokens


Input = TypeVar("Input", bound=TokenizedText)


class PoolModel(Protocol[Input]):
    """A loaded model with the methods that lines need."""

    @property
    def kind(self) -> LineKind:
        """Return the kind of lines it answers."""
        ...

    @property
    def max_tokens(self) -> int:
        """Return how many tokens of an input it reads."""
        ...

    def tokenize(self, request: Request, *, is_wanted: Callable[[], bool]) -> Iterator[Input]:
        """Yield the inputs to compute. Raise BodyError for what this model does not accept, and Unwanted."""
        ...

    def compute(self, inputs: Sequence[Input]) -> Numbers:
        """Return the numbers of each input, in order: [inputs] or [inputs, numbers of each], perhaps NaN."""
        ...

    def reload(self) -> None:
        """Load the weights again, as those in memory are not to be trusted. Raise ModelLoadError."""
        ...

    def body(self, line: PoolLine, numbers: Numbers, *, response_id: str, name: str) -> Mapping[str, Any]:
        """Return the answer of a line whose inputs were computed, under the model's served name."""
        ...


def next_group(lines: Sequence[PoolLine], *, max_lines: int) -> Sequence[PoolLine]:
    """Return the first lines that are computed together; at least one."""
    num_tokens = 0
    for index, line in enumerate(lines[:max_lines]):
        num_tokens += line.most_tokens
        if index and num_tokens > GROUP_TOKENS:
            return lines[:index]
    return lines[:max_lines]
