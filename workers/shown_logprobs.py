"""Log-probabilities in the form of an answer: token ids become text and bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine.detokenizer import REPLACEMENT, text_of_token
from engine.process.messages import TokenLogprobs
from jobs.lines.responses import PromptLogprobs, RankedToken, TokenLogprob


class ShownLogprobs:
    """One model's tokens as text; each is decoded once."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._pieces: dict[int, tuple[str, bytes]] = {}

    def of_tokens(
        self, token_ids: Sequence[int], entries: Sequence[TokenLogprobs], count: int | None = None
    ) -> list[TokenLogprob]:
        """Return each token with its first `count` alternatives; entries past the tokens are dropped."""
        pairs = zip(token_ids, entries, strict=False)
        return [self._one(token_id, entry.logprob, self._top(entry, count)) for token_id, entry in pairs]

    def of_prompt(self, token_ids: Sequence[int], entries: Sequence[TokenLogprobs], count: int) -> list[TokenLogprob]:
        """Return a prompt's tokens as an echo shows them; `entries` begin with the second token's."""
        return [self._one(token_ids[0], None), *self.of_tokens(token_ids[1:], entries, count)]

    def ranked(self, token_ids: Sequence[int], entries: Sequence[TokenLogprobs], count: int) -> PromptLogprobs:
        """Return, for each token of a prompt, the `count` likeliest tokens and the token itself."""
        pairs = zip(token_ids[1:], entries, strict=True)
        return [None, *(self._ranked(token_id, entry, count) for token_id, entry in pairs)]

    def _ranked(self, token_id: int, entry: TokenLogprobs, count: int) -> list[RankedToken]:
        top = zip(entry.top_token_ids[:count], entry.top_logprobs[:count], strict=True)
        ranked = [(other_id, logprob, rank) for rank, (other_id, logprob) in enumerate(top, start=1)]
        if token_id not in entry.top_token_ids[:count]:
            ranked.append((token_id, entry.logprob, entry.rank))
        return [
            RankedToken(token_id=other_id, token=self._piece(other_id)[0], logprob=logprob, rank=rank)
            for other_id, logprob, rank in ranked
        ]

    def _top(self, entry: TokenLogprobs, count: int | None) -> list[TokenLogprob]:
        pairs = zip(entry.top_token_ids[:count], entry.top_logprobs[:count], strict=True)
        return [self._one(token_id, logprob) for token_id, logprob in pairs]

    def _one(self, token_id: int, logprob: float | None, top: Sequence[TokenLogprob] = ()) -> TokenLogprob:
        text, token_bytes = self._piece(token_id)
        return TokenLogprob(token=text, logprob=logprob, token_bytes=token_bytes, top=top)

    def _piece(self, token_id: int) -> tuple[str, bytes]:
        piece = self._pieces.get(token_id)
        if piece is None:
            piece = self._pieces[token_id] = token_piece(self._tokenizer, token_id)
        return piece


def token_piece(tokenizer: Any, token_id: int) -> tuple[str, bytes]:
    """Return a token's text within a running text, and its bytes, which differ if it holds a part of a character.

    Handles both spellings of partial characters: byte-level BPE (GPT-2's table of 256 printable characters) and byte
    fallback (`<0x0A>`).
    """
    text = text_of_token(tokenizer, token_id)
    if REPLACEMENT not in text:
        return text, text.encode()
    spelled: str = tokenizer.convert_ids_to_tokens(token_id)
    if spelled.startswith("<0x") and spelled.endswith(">"):
        return text, bytes([int(spelled[3:-1], 16)])
    table = _byte_level_table()
    if all(character in table for character in spelled):
        return text, bytes(table[character] for character in spelled)
    return text, text.encode()


def _byte_level_table() -> dict[str, int]:
    """Return GPT-2's table inverted: printable Latin-1 stands for itself, U+0100 and up for the other bytes."""
    itself = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(256) if byte not in itself)
    return {chr(byte): byte for byte in itself} | {chr(0x100 + index): byte for index, byte in enumerate(others)}
