"""Insert a query and a document into a model's chat template, and tokenize the result.

Only the template writes special tokens: in a query or a document the same words are text, and cannot forge a turn.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

from engine.errors import ModelLoadError, UnsupportedModelError
from engine.pooling.json_files import read_object
from engine.pooling.pair_tokens import TokenizedPair, check_query, read_documents
from engine.pooling.text_tokens import check_tokenizer, load_tokenizer
from engine.tokenizer import load_tokenizer as load_whole_tokenizer

_QUERY, _DOCUMENT = " \ue0f1query\ue0f1 ", " \ue0f1document\ue0f1 "
"""Placeholders for the template; one that changes texts, by trimming say, does not contain them unchanged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairTemplate:
    """The parts of a prompt before its query, between query and document, and after the document."""

    before: str
    between: str
    behind: str


def read_pair_template(path: Path) -> PairTemplate | None:
    """Return what a directory's chat template writes around a pair, None if it does not contain both.

    The pair is a message of role query and one of role document, as in sentence-transformers; the default prompt of
    config_sentence_transformers.json is one of role system. Raises ModelLoadError.
    """
    tokenizer = load_whole_tokenizer(path)
    if tokenizer is None or tokenizer.chat_template is None:
        return None
    messages = [{"role": "query", "content": _QUERY}, {"role": "document", "content": _DOCUMENT}]
    prompt = _default_prompt(path)
    if prompt is not None:
        messages.insert(0, {"role": "system", "content": prompt})
    try:
        prompt_text = str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=False))
    except Exception:  # noqa: BLE001 - a template is a program: one for other roles may raise anything
        return None
    before, has_query, rest = prompt_text.partition(_QUERY)
    between, has_document, behind = rest.partition(_DOCUMENT)
    if not (has_query and has_document):
        return None
    if prompt is not None and prompt not in before:
        raise UnsupportedModelError(f"{path}: its chat template does not show the prompt {prompt[:60]!r}, its default.")
    return PairTemplate(before=before, between=between, behind=behind)


def _default_prompt(path: Path) -> str | None:
    settings = read_object(path / "config_sentence_transformers.json")
    name, prompts = settings.get("default_prompt_name"), settings.get("prompts") or {}
    if name is None:
        return None
    if not isinstance(prompts.get(name), str):
        raise ModelLoadError(
            f"{path / 'config_sentence_transformers.json'} has the default prompt {name!r} but no prompt of that name."
        )
    return str(prompts[name])


class PairPrompts:
    """A tokenizer that keeps a query and the template whole, and as much of a document as fits."""

    def __init__(self, path: Path, template: PairTemplate, *, vocab_size: int, max_tokens: int) -> None:
        self._template = template
        self._max_tokens = max_tokens
        self._tokenizer = load_tokenizer(path)
        check_tokenizer(self._tokenizer, path, vocab_size=vocab_size, max_tokens=max_tokens, is_pair=True)
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        special = [token.content for token in self._tokenizer.get_added_tokens_decoder().values() if token.special]
        self._special = re.compile(f"({'|'.join(map(re.escape, special)) or '(?!)'})")
        whole = self._tokenizer.encode("".join(self._texts("a", "b")), add_special_tokens=False).ids
        self._tokenizer.encode_special_tokens = True
        if self._ids("a", "b") != whole:
            raise UnsupportedModelError(f"{path}: its tokenizer reads a text after a special token differently.")

    def __call__(self, query: str, documents: Iterable[str]) -> list[TokenizedPair]:
        """Tokenize the query with every document. Raises InvalidRequestError for an invalid text."""
        read = read_documents(query, documents)
        num_around = len(self._ids("", ""))
        check_query(len(self._ids(query, "")) - num_around, allowed=self._max_tokens - num_around - 1)
        return [self._tokenized(query, document) for document in read]

    def _tokenized(self, query: str, document: str) -> TokenizedPair:
        ids = self._ids(query, document)
        is_truncated = len(ids) > self._max_tokens
        if is_truncated:
            ends = [end for _, end in self._tokenizer.encode(document, add_special_tokens=False).offsets]
            num_kept = len(ends)
            while len(ids) > self._max_tokens:  # a shortened text may tokenize differently at its end
                num_kept -= len(ids) - self._max_tokens
                ids = self._ids(query, document[: ends[num_kept - 1]] if num_kept > 0 else "")
        types = torch.zeros(len(ids), dtype=torch.int64)
        return TokenizedPair(token_ids=torch.tensor(ids), types=types, is_truncated=is_truncated)

    def _texts(self, query: str, document: str) -> tuple[str, ...]:
        template = self._template
        return template.before, query, template.between, document, template.behind

    def _ids(self, query: str, document: str) -> list[int]:
        """Return a prompt's tokens: the template's special ones, and those of the texts between them."""
        pieces = [""]
        for index, text in enumerate(self._texts(query, document)):
            first, *others = [text] if index % 2 else self._special.split(text)
            pieces[-1] += first
            pieces.extend(others)
        ids: list[int] = []
        for index, piece in enumerate(pieces):
            ids.extend([self._tokenizer.token_to_id(piece)] if index % 2 else self._read(piece))
        return ids

    def _read(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids
