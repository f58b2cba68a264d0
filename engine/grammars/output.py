"""Effects of a grammar on a sequence's output: forced tokens, and the end if a token is not allowed.

Forced tokens are appended without a forward pass of their own: the next step computes their keys and values together,
like those of a prompt. Only if log-probabilities are requested are they drafts, after which the next step samples.
"""

from __future__ import annotations

from engine.grammars.waiting import Compiled
from engine.outputs import NO_TOKEN, FinishReason, TokenDelta
from engine.scheduling.request import Sequence

MAX_FORCED_DRAFTS = 64
"""Rows of logits that forced tokens of one sequence may take in a step."""


def start(sequence: Sequence, compiled: Compiled) -> TokenDelta:
    """Give a new sequence its matcher; return its forced first tokens, or why it cannot run."""
    delta = TokenDelta(request_id=sequence.request.request_id, index=sequence.index)
    if compiled.matcher is None:
        assert compiled.error is not None, "compiled, but with neither a matcher nor an error"
        _fail(delta, compiled.error)
        return delta
    sequence.matcher = compiled.matcher.copy()
    if not sequence.matcher.replay(sequence.request.output_token_ids):
        _fail(delta, "The output of the earlier run does not fit the grammar; run the request from its prompt.")
    elif sequence.request.params.prompt_logprobs is None:  # those come with the first sampled token
        append_forced(sequence, delta)
    return delta


def append_forced(sequence: Sequence, delta: TokenDelta) -> int:
    """Append the forced tokens, up to the sequence's end; return how many.

    None if logprobs are requested or the request forbids tokens: the sampler then has to see each of them. Drafts of
    the sequence must be kept or dropped by now: what was computed for them does not fit these tokens.
    """
    params = sequence.request.params
    forbids = params.allowed_token_ids is not None or bool(params.bad_words_token_ids)
    if sequence.matcher is None or params.logprobs is not None or forbids:
        return 0
    count = 0
    while delta.finish_reason is None and (forced := sequence.matcher.forced_tokens()):
        for token_id in forced:
            if not accept(sequence, token_id, delta):
                return count
            end = sequence.append(token_id)
            delta.token_ids.append(token_id)
            count += 1
            if end is not None:
                delta.finish_reason, delta.stop_reason = end
                break
    return count


def forced_drafts(sequence: Sequence) -> list[int]:
    """Return the forced tokens as drafts for the next step, for a sequence that needs logprobs."""
    if sequence.matcher is None or sequence.request.params.logprobs is None:
        return []
    room = sequence.max_total_tokens - sequence.num_tokens - 1
    return sequence.matcher.forced_tokens()[: max(0, min(room, MAX_FORCED_DRAFTS))]


def accept(sequence: Sequence, token_id: int, delta: TokenDelta) -> bool:
    """Advance by a sampled token; if there is none or the grammar does not allow it, end with the reason."""
    matcher = sequence.matcher
    is_taken = token_id != NO_TOKEN
    if is_taken and matcher is not None:
        is_taken = matcher.error is None and matcher.accept(token_id)
    if not is_taken:
        _fail(delta, _refusal(sequence))
    return is_taken


def _refusal(sequence: Sequence) -> str:
    """Return why none of the tokens could be taken."""
    done = "1 token" if sequence.num_output_tokens == 1 else f"{sequence.num_output_tokens:,} tokens"
    if sequence.matcher is None:
        return f"No token is left after {done}; bad_words and allowed_token_ids forbid every one."
    reason = sequence.matcher.error  # a limit of the library, which this very token may exceed
    if reason is not None:
        return f"The grammar cannot be followed after {done}: {reason}. Make it simpler."
    return (
        f"No token that the grammar allows after {done} could be taken; check whether bad_words, "
        "allowed_token_ids or logit_bias forbid them."
    )


def _fail(delta: TokenDelta, error: str) -> None:
    """End the sequence of this delta with an error."""
    delta.finish_reason, delta.error = FinishReason.ERROR, error
