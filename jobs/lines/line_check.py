"""Check a well-formed line's request before it is run: its parameters, and lengths that surely exceed the context.

Pure. The worker repeats the check, and also checks the exact number of tokens.
"""

from __future__ import annotations

from jobs.lines.bodies import ChatRequest, CompletionRequest
from jobs.lines.body_checks import BodyError
from jobs.lines.endpoints import Request, parse_request
from jobs.lines.input_estimate import estimate_input_tokens
from jobs.lines.reading import InputLine, LineProblem

LONGEST_TOKEN = 32
"""How many times fewer tokens than estimated a prompt may have: the estimate counts one for 4 bytes, and tokens of 128
spaces are common."""


def check_body(line: InputLine, content: bytes, *, endpoint: str, max_model_len: int | None) -> Request:
    """Return the parsed body; `content` is the whole line. Raises LineProblem where no worker will run it.

    `max_model_len` is the context of the line's model, prompt and answer together; None where it is unknown.
    """
    try:
        request = parse_request(endpoint, line.body)
        if max_model_len is not None and isinstance(request, (ChatRequest, CompletionRequest)):
            _check_length(request, line, content, max_model_len)
        return request
    except BodyError as error:
        param = "body" if error.param is None else f"body.{error.param}"
        raise LineProblem(
            error.code, error.message, line_no=line.line_no, param=param, custom_id=line.custom_id
        ) from None


def _check_length(
    request: ChatRequest | CompletionRequest, line: InputLine, content: bytes, max_model_len: int
) -> None:
    max_tokens = request.sampling.max_tokens
    if max_tokens is not None and max_tokens >= max_model_len:
        raise BodyError(
            "max_tokens",
            f"max_tokens is {max_tokens} and this model's context is {max_model_len}, of which at least one token is "
            f"for the prompt. Lower it to {max_model_len - 1} at most",
            code="context_length_exceeded",
        )
    if request.truncation is not None:
        return
    param = "messages" if isinstance(request, ChatRequest) else "prompt"
    most = LONGEST_TOKEN * max_model_len * (1 if isinstance(request, ChatRequest) else len(request.prompts))
    if len(content) < most:  # a byte is at most a token, whatever the estimate: most lines need none
        return
    estimate = estimate_input_tokens(content, line.body)
    if estimate > most:
        raise BodyError(
            param,
            f"{param} has about {estimate:,} tokens and this model's context is {max_model_len}. Shorten it",
            code="context_length_exceeded",
        )
