"""The check request: one token, vector or score of a plain text, which any server that can answer lines answers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from jobs.errors import InputError, ServiceError
from jobs.lines.endpoints import LineKind
from workers.remote.calls.call import Call
from workers.remote.exchange import Address, Patience, exchange, open_client
from workers.remote.identity import AwayError, Identity
from workers.remote.pooled import EMBEDDINGS, RERANK, PoolExpected
from workers.remote.reading import Expected
from workers.remote.verdicts import Answered, Away, Busy, Denied, Refused, Spoilt, Verdict

_PROMPT = "Say ok."
_MOST_PROMPT_TOKENS = 4096
"""Of this prompt in any chat template: what is above is not a count."""
_SECONDS = 120.0
"""For its answer: a server may load a model first."""
_FIRST = (-1, 0, "", 0)


def chat_check(identity: Identity) -> Call:
    """Return the check of a server with a chat template."""
    body = {"model": identity.model, "messages": [{"role": "user", "content": _PROMPT}], "temperature": 0.0}
    return _check("chat/completions", body | {identity.dialect.token_limit: 1}, is_chat=True)


def completion_check(identity: Identity) -> Call:
    """Return the check of a server without one."""
    body = {"model": identity.model, "prompt": _PROMPT, "temperature": 0.0, "max_tokens": 1}
    return _check("completions", body, is_chat=False)


def embedding_check(identity: Identity) -> Call:
    """Return the check of a server that gives vectors."""
    expected = PoolExpected(num_items=1, is_rerank=False, most_prompt_tokens=_MOST_PROMPT_TOKENS)
    return _pool_check(EMBEDDINGS, {"model": identity.model, "input": [_PROMPT]}, expected)


def rerank_check(identity: Identity) -> Call:
    """Return the check of a server that gives scores."""
    expected = PoolExpected(num_items=1, is_rerank=True, most_prompt_tokens=_MOST_PROMPT_TOKENS)
    return _pool_check(RERANK, {"model": identity.model, "query": _PROMPT, "documents": [_PROMPT]}, expected)


def _pool_check(path: str, body: dict[str, object], expected: PoolExpected) -> Call:
    return Call(path=path, body=body, expected=expected, order=_FIRST, seconds_left=_SECONDS)


def _check(path: str, body: dict[str, object], *, is_chat: bool) -> Call:
    expected = Expected(
        is_chat=is_chat,
        num_choices=1,
        most_prompt_tokens=_MOST_PROMPT_TOKENS,
        most_completion_tokens=16,
    )
    return Call(path=path, body=body, expected=expected, order=_FIRST, seconds_left=_SECONDS)


def first_check(address: Address, identity: Identity, *, has_tokenizer: bool) -> tuple[Call, str]:
    """Ask a server once; return the check that it answers, and the model's name in its answers.

    Raise AwayError if it gives no answer now, ServiceError if it denies one, InputError if it refuses even this, or if
    nobody can count its tokens.
    """
    verdicts: list[Verdict] = []
    for make_check in (chat_check, completion_check, embedding_check, rerank_check):
        check = make_check(identity)
        verdict = ask(address, check)
        if isinstance(verdict, Answered):
            return _confirmed(check, verdict, has_tokenizer=has_tokenizer)
        verdicts.append(verdict)
        if not isinstance(verdict, Refused | Denied | Spoilt):  # 404, or 500: it may answer something else
            break
    raise _why_none(address, verdicts)


def _why_none(address: Address, verdicts: Sequence[Verdict]) -> InputError | ServiceError:
    """Return the error of a server that answers no check: it is away if it may answer one of them later."""
    last = next((one for one in verdicts if _is_passing(one)), verdicts[-1])
    if isinstance(last, Refused):
        return InputError(f"the server at {address.url} refuses even a plain request: {last.message}")
    reason = f"the server at {address.url} does not answer a plain request: {getattr(last, 'reason', '')}"
    return AwayError(reason) if _is_passing(last) else ServiceError(f"{reason}. Check --url and --server-model.")


def _is_passing(verdict: Verdict) -> bool:
    return isinstance(verdict, Away | Busy) or (isinstance(verdict, Spoilt) and not verdict.is_lasting)


def _confirmed(check: Call, answer: Answered, *, has_tokenizer: bool) -> tuple[Call, str]:
    if answer.counts is None and not has_tokenizer:
        raise InputError(
            "the server's answers have no `usage`, so their tokens cannot be billed. Give the model's tokenizer with "
            "--tokenizer DIR."
        )
    name = str(answer.body.get("model"))
    assert isinstance(check.expected, Expected | PoolExpected)
    return replace(check, expected=replace(check.expected, answers_as=name)), name


def kind_of(check: Call) -> LineKind:
    """Return the kind of lines of a server that answers this check."""
    return {EMBEDDINGS: LineKind.POOL, RERANK: LineKind.RERANK}.get(check.path, LineKind.GENERATE)


def ask(address: Address, call: Call) -> Verdict:
    """Ask once on a connection of its own; a busy server is asked again in a moment, a few times."""
    return asyncio.run(_ask(address, call))


async def _ask(address: Address, call: Call) -> Verdict:
    patience = Patience(answer_seconds=_SECONDS)
    async with open_client(address, patience=patience) as client:
        verdict = await exchange(client, call.path, call.body, expected=call.expected, patience=patience)
        for pause_seconds in (0.5, 1.0, 2.0):
            if not isinstance(verdict, Busy):
                break
            await asyncio.sleep(pause_seconds)
            verdict = await exchange(client, call.path, call.body, expected=call.expected, patience=patience)
        return verdict
