"""Count and estimate the requests of an input file while it streams in, so that a submit can be refused at once.

Never fails: an invalid line counts as a request, and validation reports its error later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from jobs.lines.bodies import COMPLETION_MAX_TOKENS
from jobs.lines.body_context import DEFAULT_TOKENS, DEFAULT_TOP_K, MAX_TOP_K, TOKENS_AROUND
from jobs.lines.reading import LineSplitter, RawLine
from protocol.sampling import MAX_INT, MAX_N

_MAX_HELD_BYTES = 8 * 1024 * 1024  # per line; a longer one is only counted
_BYTES_PER_TOKEN = 4
_TOKENS_PER_PROMPT = 8  # what a chat template adds around a conversation, and
_TOKENS_PER_MESSAGE = 8  # around each of its messages: roles and separators
# Per line: its answer is one value in Postgres, which holds 1 GB, so more than this is never written. Without a limit a
# file of lines with every parameter at its maximum would sum to more than a bigint holds.
_MAX_OUTPUT_TOKENS = 2**31
_MALFORMED = (ValueError, TypeError, KeyError, AttributeError, RecursionError)


@dataclass(frozen=True, slots=True, kw_only=True)
class InputEstimate:
    """Size of an input file in requests and tokens."""

    num_requests: int
    """Exact, without blank lines."""
    estimated_input_tokens: int
    """Prompt bytes ÷ 4, rounded up per text, plus 8 tokens a prompt and a message; tools and past tool calls count as
    JSON. Against a large vocabulary it is within ±40 % on prose and code; a small vocabulary, or a script with few
    bytes per token, gives up to four times as many. Token id prompts are exact. A query counts with each of its
    documents, the passages of a context with its max_tokens."""
    estimated_output_tokens: int
    """The line's own limit times n times its prompts, the most that it may generate. Without a limit a completion
    generates at most 16; a chat may continue to the end of the context, and counts with the default. Embeddings and
    scores have none."""

    def __add__(self, other: InputEstimate) -> InputEstimate:
        return InputEstimate(
            num_requests=self.num_requests + other.num_requests,
            estimated_input_tokens=self.estimated_input_tokens + other.estimated_input_tokens,
            estimated_output_tokens=self.estimated_output_tokens + other.estimated_output_tokens,
        )


class InputEstimator:
    """Feed the file in pieces of any size, then finish; holds one line of at most 8 MiB."""

    def __init__(self, *, default_max_tokens: int, first_line: int = 0) -> None:
        """`first_line`: only line 0 may have a byte order mark."""
        self._default_max_tokens = default_max_tokens
        self._splitter = LineSplitter(max_line_bytes=_MAX_HELD_BYTES, first_line=first_line)
        self._num_requests = 0
        self._input_tokens = 0
        self._output_tokens = 0

    def feed(self, piece: bytes) -> None:
        for line in self._splitter.feed(piece):
            self._add(line)

    def finish(self) -> InputEstimate:
        """Add the last line, which may lack a line end, and return the sums."""
        for line in self._splitter.finish():
            self._add(line)
        return self.so_far

    @property
    def so_far(self) -> InputEstimate:
        """Return the sums of the complete lines."""
        return InputEstimate(
            num_requests=self._num_requests,
            estimated_input_tokens=self._input_tokens,
            estimated_output_tokens=self._output_tokens,
        )

    def _add(self, line: RawLine) -> None:
        if line.content is None:
            input_tokens = (line.byte_end - line.byte_start) // _BYTES_PER_TOKEN
            output_tokens = self._default_max_tokens
        else:
            input_tokens, output_tokens = _estimate(line.content, _body_of(line.content), self._default_max_tokens)
        self._num_requests += 1
        self._input_tokens += input_tokens
        self._output_tokens += output_tokens


def estimate_tokens(line: bytes, body: Mapping[str, Any], *, default_max_tokens: int) -> int:
    """Estimate the tokens of one request line, input and output together, as the file's estimate does."""
    return sum(_estimate(line, body, default_max_tokens))


def estimate_input_tokens(line: bytes, body: Mapping[str, Any]) -> int:
    """Estimate the tokens of one request line's prompts."""
    return _estimate(line, body, 0)[0]


def _body_of(line: bytes) -> Mapping[str, Any]:
    """Return the body of a request line; empty where it cannot be parsed."""
    try:
        body = orjson.loads(line)["body"]
    except _MALFORMED:
        return {}
    return body if isinstance(body, dict) else {}


def _estimate(line: bytes, body: Mapping[str, Any], default_max_tokens: int) -> tuple[int, int]:
    """Return (input tokens, output tokens); where the prompt cannot be parsed, the bytes of the whole line count."""
    try:
        input_tokens, num_prompts = _input_of(body)
    except _MALFORMED:
        input_tokens, num_prompts = _tokens_of_bytes(len(line)), 1
    if _generates_nothing(body):
        return input_tokens, 0
    input_tokens += _tokens_of_context(body.get("context"))
    limit = COMPLETION_MAX_TOKENS if "prompt" in body else default_max_tokens
    for name in ("max_tokens", "max_completion_tokens"):
        limit = _allowed(body.get(name), MAX_INT, limit)
    output_tokens = limit * _allowed(body.get("n"), MAX_N, 1) * num_prompts
    return input_tokens, min(output_tokens, _MAX_OUTPUT_TOKENS)


def _input_of(body: Mapping[str, Any]) -> tuple[int, int]:
    """Return (tokens, number of prompts). Raises one of _MALFORMED where there is no readable prompt."""
    if _generates_nothing(body):
        return _tokens_of_prompt(body["input"]) if "input" in body else _tokens_of_pairs(body)
    messages = body.get("messages")
    if messages is None:
        return _tokens_of_prompt(body["prompt"])
    tools = None if body.get("tool_choice") == "none" else body.get("tools")  # that choice hides them from the model
    return sum(map(_tokens_of_message, messages)) + _tokens_of_json(tools) + _TOKENS_PER_PROMPT, 1


def _generates_nothing(body: Mapping[str, Any]) -> bool:
    """Return whether a body requests vectors or scores, and no generated tokens."""
    return bool(body.keys() & {"input", "documents"}) and not body.keys() & {"messages", "prompt"}


def _tokens_of_pairs(body: Mapping[str, Any]) -> tuple[int, int]:
    """Return (tokens, number of documents) of a query that is read once with each document."""
    texts = [each if isinstance(each, str) else each["text"] for each in body["documents"]]
    return sum(map(_tokens_of, texts)) + len(texts) * (_tokens_of(body["query"]) + _TOKENS_PER_PROMPT), len(texts)


def _tokens_of_context(context: Any) -> int:
    """Return the approximate tokens of the passages that a line requests."""
    if not isinstance(context, dict):
        return 0
    top_k = _allowed(context.get("top_k"), MAX_TOP_K, DEFAULT_TOP_K)
    return _allowed(context.get("max_tokens"), MAX_INT, DEFAULT_TOKENS) + TOKENS_AROUND * top_k


def _tokens_of_message(message: Mapping[str, Any]) -> int:
    thoughts = message.get("reasoning_content") or message.get("reasoning") or ""
    around = _tokens_of_json(message.get("tool_calls")) + _tokens_of(thoughts) + _TOKENS_PER_MESSAGE
    content = message.get("content")
    if content is None:
        return around
    if isinstance(content, str):
        return _tokens_of(content) + around
    return sum(_tokens_of(part["text"]) for part in content) + around


def _tokens_of_prompt(prompt: Any) -> tuple[int, int]:
    """Return (tokens, number of prompts) of a text, token ids, or a list of either."""
    if isinstance(prompt, str):
        return _tokens_of(prompt), 1
    if prompt and isinstance(prompt[0], int):
        return len(prompt), 1
    counts = [_tokens_of_prompt(item)[0] for item in prompt]
    return sum(counts), len(counts)


def _tokens_of_json(value: Any) -> int:
    return _tokens_of_bytes(len(orjson.dumps(value))) if value else 0


def _tokens_of(text: str) -> int:
    return _tokens_of_bytes(len(text) if text.isascii() else len(text.encode()))


def _tokens_of_bytes(size: int) -> int:
    return -(-size // _BYTES_PER_TOKEN)


def _allowed(value: Any, most: int, otherwise: int) -> int:
    """Return a parameter's value; an invalid one, which is refused when the line runs, counts as absent."""
    return value if type(value) is int and 0 <= value <= most else otherwise
