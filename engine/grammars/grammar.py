"""Grammars over one model's tokens, by llguidance: compile, match token by token, compute the allowed next tokens.

The only file that needs llguidance, which is imported on first use: an engine without it runs, and refuses requests
with a grammar.
"""

from __future__ import annotations

import functools
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.errors import InvalidRequestError, ModelLoadError
from engine.grammars.ascii_classes import ascii_lark, ascii_regex
from engine.grammars.deep_stack import on_deep_stack
from engine.grammars.ebnf import is_ebnf, lark_of
from engine.grammars.equivalents import clear_references, with_equivalents
from engine.grammars.json_schema import Schema, without_idle_keywords
from engine.grammars.limits import check_text, is_small
from engine.grammars.matcher import GrammarMatcher, shortened
from engine.grammars.refusals import TITLES, refusal
from engine.structured import StructuredOutput
from engine.tokenizer import load_tokenizer

_MAX_THREADS = 8
_PARALLEL_FROM = 16
"""Masks, at 2 to 5 µs each, that justify waking other threads (vocabulary of 1,024, EPYC Zen 4, 2026-11-21)."""

LEXER_FUEL = 100_000
"""Limit on building a grammar's regexes, in llguidance's measure; its own limit is 1,000,000.

Of the grammars below it, those with the most lexemes take longest: 2,000 properties with a pattern each 0.7 s, and
twice as many four times that (llguidance 1.9.1, an Intel Xeon with other work on it, 2026-11-22). Symbols and lexer
states have llguidance's own limits.
"""

FIRST_STEP_FUEL, FIRST_STEP_ITEMS = 20_000, 10_000
"""Limits per token, in llguidance's measures of regexes and of rules, while forced tokens are searched for.

Its own limits are 200,000 and 50,000. A forced byte of a long repetition takes 2 of the fuel and 2.5 µs, with no other
thread running: at most 10,000 are found at once. Grammars that need more continue without forced tokens: 8 of 990 JSON
schemas of public collections with a vocabulary of 1,024, and 7 of 72 of the largest with one of 64,000; most have
patterns that count words in a bounded string. None needs more items (llguidance 1.9.1, EPYC Zen 4 beside other work,
2026-11-23).
"""

MAX_STALL_SECONDS = 0.01
"""Processor time of compiling a grammar up to which its form without forced tokens is compiled only when needed.

All sequences then wait for it, once for each grammar: as long as the first form took, or 1 ms longer (13 grammars of
0.4 to 167 ms, llguidance 1.9.1, a Xeon beside other work, 2026-11-28). A slower grammar gets both forms before it
starts.
"""


def check_grammar(structured: StructuredOutput) -> None:
    """Raise InvalidRequestError with the reason, such as an unsupported keyword's name, if this cannot be compiled.

    Needs no model. Takes about a millisecond, with tens of thousands of choices seconds. Like `GrammarTokens.compile`
    it must run on a thread of the GrammarCompiler, which has the stack for it.
    """
    _check_size(structured)
    refusals: list[str] = []
    for source in _sources(structured):
        is_error, messages = _llguidance().LLMatcher.validate_grammar_with_warnings(source, limits=_limits())
        if not is_error:
            return
        refusals += messages[:1]
    raise refusal(structured, refusals[0])


class GrammarTokens:
    """One model's tokens in llguidance's form; loaded by the first `load`. Thread-safe."""

    def __init__(self, model_path: Path, *, vocab_size: int, eos_token_ids: tuple[int, ...]) -> None:
        self._path = model_path
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._lock = threading.Lock()
        self._tokens: Any = None

    def load(self) -> None:
        """Read the model's tokenizer once. Raises InvalidRequestError if there is none or it cannot be used."""
        with self._lock:
            if self._tokens is None:
                self._tokens = self._load()

    def compile(self, structured: StructuredOutput) -> GrammarMatcher:
        """Return a matcher at the start, with its first mask computed. Raises InvalidRequestError with the reason."""
        _check_size(structured)
        self.load()
        refusals: list[str] = []
        for source in _sources(structured):
            start = time.thread_time()
            matcher = self._matcher(source, _first_limits())
            if matcher.is_error():
                refusals.append(matcher.get_error())
                continue
            unforced = _Unforced(functools.partial(self._unforced, source))
            if time.thread_time() - start > MAX_STALL_SECONDS:
                unforced.prepare()
            compiled = GrammarMatcher(matcher, self._eos_token_ids, unforced=unforced)
            compiled.start()  # once, for every sequence that starts here
            if compiled.error is None:
                return compiled
            refusals.append(compiled.inner.get_error())
        raise refusal(structured, refusals[0])

    def _unforced(self, source: str) -> Any | None:
        matcher = self._matcher(_without_forcing(source), _limits())
        return None if matcher.is_error() else matcher

    def _matcher(self, source: str, limits: Any) -> Any:
        return _llguidance().LLMatcher(self._tokens, source, log_level=0, limits=limits)

    def _load(self) -> Any:
        llguidance = _llguidance()
        if not self._eos_token_ids:
            raise InvalidRequestError(
                f"Structured output needs the model's end-of-sequence token, and {self._path} names no eos_token_id."
            )
        try:
            tokenizer = load_tokenizer(self._path)
        except ModelLoadError as error:
            raise InvalidRequestError(str(error)) from error
        if tokenizer is None or not getattr(tokenizer, "is_fast", False):
            raise InvalidRequestError(
                f"Structured output needs a tokenizer.json in the model's directory, and {self._path} has none."
            )
        backend = tokenizer.backend_tokenizer
        backend.no_padding()
        backend.no_truncation()
        try:
            return llguidance.LLTokenizer(
                backend.to_str(), n_vocab=self._vocab_size, eos_token=list(self._eos_token_ids)
            )
        except ValueError as error:
            raise InvalidRequestError(
                f"Structured output cannot use this model's tokenizer: {shortened(str(error))}."
            ) from error


class _Unforced:
    """The form of a grammar without forced tokens, compiled when it is first needed: few grammars need it."""

    def __init__(self, compile_: Callable[[], Any | None]) -> None:
        self._compile = functools.cache(compile_)

    def prepare(self) -> None:
        """Compile it here, on a thread of the GrammarCompiler."""
        self._compile()

    def __call__(self) -> Any | None:
        """Return llguidance's matcher, None if it cannot be compiled.

        If it is not prepared, the first call compiles it, which takes about MAX_STALL_SECONDS at most.
        """
        return on_deep_stack(self._compile)


class MaskFiller:
    """Write the masks of many matchers at once, without the interpreter's lock; large numbers on its own threads."""

    def __init__(self) -> None:
        num_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self._num_threads = max(1, min(_MAX_THREADS, num_cores // 2))
        self._executor = _llguidance().LLExecutor(num_threads=self._num_threads)

    def fill(self, requests: Iterable[tuple[GrammarMatcher, int, list[int]]], words: npt.NDArray[np.int32]) -> None:
        """Write, for (matcher, row, drafts), the allowed tokens before each draft and after the last one.

        `words` is `[rows, ceil(vocab / 32)]`, contiguous; a matcher with k drafts fills the rows `row` to `row + k`.
        The drafts must be allowed (`GrammarMatcher.num_allowed`). A matcher that exceeds a limit of llguidance has an
        `error` afterwards, and its masks are meaningless.
        """
        requests = list(requests)
        self._fill(requests, words)
        overrun = [each for each in requests if each[0].inner.is_error() and each[0].fall_back()]
        if overrun:
            self._fill(overrun, words)

    def _fill(self, requests: list[tuple[GrammarMatcher, int, list[int]]], words: npt.NDArray[np.int32]) -> None:
        plain: list[tuple[Any, int]] = []
        drafted: list[tuple[Any, int, list[int]]] = []
        for matcher, row, drafts in requests:
            if drafts:
                drafted.append((matcher.inner, row, drafts))
            else:
                plain.append((matcher.inner, row))
        address, row_bytes = words.ctypes.data, words.shape[1] * words.itemsize
        words_at = (address, row_bytes, words.shape[0])
        if self._num_threads > 1 and len(plain) >= _PARALLEL_FROM:
            self._executor.unsafe_compute_mask_ptr(plain, *words_at)
        else:
            for inner, row in plain:
                inner.unsafe_compute_mask_ptr(address + row * row_bytes, row_bytes)
        if drafted:
            self._executor.unsafe_compute_mask_ptr_with_draft_token(drafted, *words_at)


def _check_size(structured: StructuredOutput) -> None:
    """Refuse a grammar that might need more stack than there is."""
    text = structured.json if structured.json is not None else structured.grammar
    if isinstance(text, str):
        check_text(text, title=TITLES[structured.kind])


def _limits() -> Any:
    return _llguidance().LLParserLimits(initial_lexer_fuel=LEXER_FUEL)


def _first_limits() -> Any:
    return _llguidance().LLParserLimits(
        initial_lexer_fuel=LEXER_FUEL, step_lexer_fuel=FIRST_STEP_FUEL, step_max_items=FIRST_STEP_ITEMS
    )


_UNFORCED = '%llguidance {"no_forcing": true}\n'


def _without_forcing(source: str) -> str:
    """Return a grammar of `_sources` changed to force no tokens: each is sampled."""
    if not source.startswith("{"):  # Lark: no Lark grammar begins with a brace
        return _UNFORCED + source
    written = json.loads(source)
    for grammar in written["grammars"]:
        schema = grammar.pop("json_schema", None)
        lark = grammar["lark_grammar"] if schema is None else f"start: %json {json.dumps(schema)}"
        grammar["lark_grammar"] = _UNFORCED + lark
    return json.dumps(written)


def kept_schema(text: str, *, one_of_as_any_of: bool) -> Schema:
    """Return a JSON schema in the form for llguidance."""
    return without_idle_keywords(text, is_kept_format=_is_kept_format, one_of_as_any_of=one_of_as_any_of)


@functools.lru_cache(maxsize=1024)
def _is_kept_format(name: str) -> bool:
    """Tell whether llguidance enforces a format; others are annotations."""
    write = _llguidance().LLMatcher
    schema = {"type": "string", "format": name}
    is_error, _ = write.validate_grammar_with_warnings(write.grammar_from_json_schema(schema), limits=_limits())
    return not is_error


def _sources(structured: StructuredOutput) -> Iterator[str]:
    """Yield the grammar in llguidance's own form, then in equivalent forms to try if one is refused."""
    write = _llguidance().LLMatcher
    if structured.json is not None or structured.json_object:
        text = structured.json if isinstance(structured.json, str) else '{"type": "object"}'
        # As defaults, so that a schema's own "x-guidance" wins.
        defaults = {"whitespace_flexible": structured.any_whitespace}
        for schema in _schemas(text, one_of_as_any_of=structured.one_of_as_any_of):
            yield str(write.grammar_from_json_schema(schema, defaults=defaults))
    elif structured.regex is not None:
        yield str(write.grammar_from_regex(ascii_regex(structured.regex)))
    elif structured.choice is not None:
        texts = " | ".join(json.dumps(text) for text in structured.choice)
        yield str(write.grammar_from_lark(f"start: {texts}"))
    elif structured.grammar is not None:
        yield str(write.grammar_from_lark(_lark(structured.grammar)))


def _schemas(text: str, *, one_of_as_any_of: bool) -> Iterator[Schema]:
    """Yield a JSON schema in the form for llguidance, then in other keywords, each to try if the last is refused."""
    schema = kept_schema(text, one_of_as_any_of=one_of_as_any_of)
    yield schema
    written = with_equivalents(schema)
    if written is not None and is_small(written):
        yield written
    cleared = kept_schema(text, one_of_as_any_of=one_of_as_any_of)
    if clear_references(cleared):
        written = with_equivalents(cleared)
        if written is not None and is_small(written):
            yield written


def _lark(grammar: str) -> str:
    """Return a grammar in Lark with ASCII classes. Raises InvalidRequestError if it is invalid or becomes too large."""
    if not is_ebnf(grammar):
        return ascii_lark(grammar)
    lark = lark_of(grammar)
    check_text(lark, title="grammar, written with a rule for each pair of parentheses,")
    return lark


def _llguidance() -> Any:
    try:
        import llguidance  # noqa: PLC0415 - an engine without it must run
    except ImportError:
        raise InvalidRequestError(
            "Structured output needs the package llguidance, which is not installed here; install it or leave out the "
            "grammar."
        ) from None
    return llguidance
