"""What a grammar adds to a sequence's output: tokens that must follow, and the end when a token is not allowed.

Forced tokens are appended without a forward pass of their own: the next step computes their keys and values together,
as it does for a prompt. Only where log-probabilities are asked for are they drafts, which the next step samples after.
"""

from __future__ import annotations

from engine.grammars.waiting import Compiled
from engine.outputs import NO_TOKEN, FinishReason, TokenDelta
from engine.scheduling.request import Sequence

MAX_FORCED_DRAFTS = 64
"""Rows of logits that forced tokens of one sequence may take in a step."""


def start(sequence: Sequence, compiled: Compiled) -> TokenDelta:
    """Give a new sequence its matcher; return the tokens that must come first, or why it cannot run."""
    delta = TokenDelta(request_id=sequence.request.request_id, index=sequence.index)
    if compiled.matcher is None:
        assert compiled.error is not None, "compiled, and neither a matcher nor a reason"
        _fail(delta, compiled.error)
        return delta
    sequence.matcher = compiled.matcher.copy()
    if not sequence.matcher.replay(sequence.request.output_token_ids):
        _fail(delta, "The output of the earlier run does not fit the grammar; run the request from its prompt.")
    elif sequence.request.params.prompt_logprobs is None:  # those come with the first sampled token
        append_forced(sequence, delta)
    return delta


def append_forced(sequence: Sequence, delta: TokenDelta) -> int:
    """Append the tokens that must follow, up to the sequence's end; return how many.

    None where logprobs are wanted, or where the request forbids tokens: then the sampler has to see each of them.
    Drafts of the sequence must be kept or dropped by now: what was computed for them is not what these tokens need.
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
    """Return the tokens that must follow as drafts for the next step, for a sequence that wants logprobs."""
    if sequence.matcher is None or sequence.request.params.logprobs is None:
        return []
    room = sequence.max_total_tokens - sequence.num_tokens - 1
    return sequence.matcher.forced_tokens()[: max(0, min(room, MAX_FORCED_DRAFTS))]


def accept(sequence: Sequence, token_id: int, delta: TokenDelta) -> bool:
    """Go on by a sampled token; where there is none, or the grammar does not allow it, end with the reason."""
    done = "1 token" if sequence.num_output_tokens == 1 else f"{sequence.num_output_tokens:,} tokens"
    if sequence.matcher is None:
        if token_id == NO_TOKEN:
            _fail(delta, f"No token is left after {done}; bad_words and allowed_token_ids forbid every one.")
        return token_id != NO_TOKEN
    if sequence.matcher.error is None and token_id != NO_TOKEN and sequence.matcher.accept(token_id):
        return True
    reason = sequence.matcher.error  # a limit of the library, that may be met by this very token
    if reason is not None:
        _fail(delta, f"The grammar cannot be followed after {done}: {reason}. Make it simpler.")
    else:
        _fail(
            delta,
            f"No token that the grammar allows after {done} could be taken; see whether bad_words, "
            "allowed_token_ids or logit_bias forbid them.",
        )
    return False


def _fail(delta: TokenDelta, error: str) -> None:
    """End the sequence of this delta with an error."""
    delta.finish_reason, delta.error = FinishReason.ERROR, error
