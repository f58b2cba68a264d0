"""Build a model's tokenizer from the metadata of its GGUF file: vocabulary, merges, special and added tokens.

It supports llama.cpp's two kinds of byte-pair encoding. The chat template is passed on unread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from engine.errors import ModelLoadError, UnsupportedModelError
from engine.gguf.container import GgufFile, Numbers
from engine.gguf.pre_tokenizers import PRE_TOKENIZERS, PreTokenizer

_SPACE = "▁"
_MAX_CHARACTERS = 2048
"""Longest token that is split at every place for its merges; sentencepiece's default limit is 16."""

_BYTE_LEVEL, _SENTENCEPIECE, _NONE = "gpt2", "llama", ("no_vocab", "none")
_SENTENCEPIECE_IDS = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}  # defaults if a file has none
_ALWAYS_SPECIAL = ("bos_token_id", "eos_token_id", "eot_token_id", "eom_token_id")


class _Kind(IntEnum):
    """Kinds of tokens (`llama_token_type`)."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufTokenizer:
    """A tokenizer and the related settings of a file."""

    backend: Any
    """A tokenizer of the `tokenizers` library."""
    named_tokens: dict[str, str]
    """The special tokens under transformers' names, such as bos_token."""
    chat_template: str | dict[str, str] | None
    """One template, or several by name."""


def read_tokenizer(file: GgufFile) -> GgufTokenizer | None:
    """Return the tokenizer that a file describes, None if it has none.

    Raises ModelLoadError if the description is broken, UnsupportedModelError for an unknown kind.
    """
    kind = file.metadata.get("tokenizer.ggml.model")
    if kind is None or kind in _NONE:
        return None
    if kind not in (_BYTE_LEVEL, _SENTENCEPIECE):
        raise UnsupportedModelError(
            f"{file.path} has the tokenizer {kind!r}; of GGUF files {_BYTE_LEVEL} and {_SENTENCEPIECE} are read."
        )
    vocabulary = _Vocabulary(file)
    try:
        backend = _byte_level(vocabulary) if kind == _BYTE_LEVEL else _sentencepiece(vocabulary)
    except ModelLoadError:
        raise
    except Exception as error:  # the library raises bare ones
        raise ModelLoadError(f"{file.path} has a tokenizer that cannot be built: {error}.") from error
    return GgufTokenizer(
        backend=backend, named_tokens=vocabulary.named_tokens(), chat_template=_chat_template(vocabulary)
    )


class _Vocabulary:
    """The keys under tokenizer.ggml, checked."""

    def __init__(self, file: GgufFile) -> None:
        self.path = file.path
        self.metadata = file.metadata
        self.is_sentencepiece = file.metadata["tokenizer.ggml.model"] == _SENTENCEPIECE
        self.tokens: list[str] = self.list_of("tokens", str)
        self.ids = {token: token_id for token_id, token in enumerate(self.tokens)}
        if len(self.ids) != len(self.tokens):
            raise self.broken("tokens", "has a token twice")
        self.kinds = self._kinds()

    def list_of(self, name: str, kind: type, *, length: int | None = None) -> list[Any]:
        value = self.metadata.get(f"tokenizer.ggml.{name}")
        if not isinstance(value, list | Numbers) or not len(value) or type(value[0]) is not kind:  # all are of one type
            raise self.broken(name, f"is not a list of {kind.__name__}")
        if length is not None and len(value) != length:
            raise self.broken(name, f"has {len(value)} entries for {length} tokens")
        return value if isinstance(value, list) else value.tolist()

    def flag(self, name: str, default: bool) -> bool:
        value = self.metadata.get(f"tokenizer.ggml.{name}", default)
        if type(value) is not bool:
            raise self.broken(name, "is not true or false")
        return value

    def special(self, name: str) -> str | None:
        """Return the token whose id is under a name."""
        default = _SENTENCEPIECE_IDS.get(name) if self.is_sentencepiece else None
        token_id = self.metadata.get(f"tokenizer.ggml.{name}", default)
        if token_id is None:
            return None
        if type(token_id) is not int or not 0 <= token_id < len(self.tokens):
            raise self.broken(name, f"is {token_id!r}, which is none of the {len(self.tokens)} tokens")
        return self.tokens[token_id]

    def added(self) -> Iterator[AddedToken]:
        """Yield the tokens that are matched in a text before any others: special ones and the author's own."""
        for token, kind in zip(self.tokens, self.kinds, strict=True):
            if token and kind in (_Kind.CONTROL, _Kind.UNKNOWN, _Kind.USER_DEFINED):
                yield AddedToken(token, special=kind != _Kind.USER_DEFINED, normalized=False)

    def named_tokens(self) -> dict[str, str]:
        names = {"bos": "bos_token_id", "eos": "eos_token_id", "unk": "unknown_token_id", "pad": "padding_token_id"}
        tokens = {f"{name}_token": self.special(key) for name, key in names.items()}
        special = {token for token, kind in zip(self.tokens, self.kinds, strict=True) if kind != _Kind.NORMAL}
        return {name: token for name, token in tokens.items() if token in special}

    def broken(self, name: str, reason: str) -> ModelLoadError:
        return ModelLoadError(f"{self.path}: tokenizer.ggml.{name} {reason}. Convert the model again.")

    def _kinds(self) -> list[int]:
        if "tokenizer.ggml.token_type" in self.metadata:
            kinds = list(self.list_of("token_type", int, length=len(self.tokens)))
        else:
            kinds = [int(_Kind.NORMAL)] * len(self.tokens)
        for name in _ALWAYS_SPECIAL:
            token = self.special(name)
            if token is not None:
                kinds[self.ids[token]] = _Kind.CONTROL
        return kinds


def _byte_level(vocabulary: _Vocabulary) -> Any:
    words = _pre_tokenizer(vocabulary)
    pairs = [merge.partition(" ") for merge in vocabulary.list_of("merges", str)]
    backend = Tokenizer(
        models.BPE(
            vocab=vocabulary.ids,
            merges=[(left, right) for left, _, right in pairs],
            ignore_merges=words.takes_whole_words,
        )
    )
    if words.is_composed:
        backend.normalizer = normalizers.NFC()
    cuts = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in words.patterns]
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*cuts, as_bytes])
    backend.decoder = decoders.ByteLevel()
    return _with_added(backend, vocabulary, adds_bos=words.adds_bos)


def _pre_tokenizer(vocabulary: _Vocabulary) -> PreTokenizer:
    name = vocabulary.metadata.get("tokenizer.ggml.pre")
    if not isinstance(name, str) or name not in PRE_TOKENIZERS:
        raise UnsupportedModelError(
            f"{vocabulary.path} has tokenizer.ggml.pre {name!r}; the engine supports {', '.join(PRE_TOKENIZERS)}. Give "
            "the model's folder with tokenizer.json instead."
        )
    return PRE_TOKENIZERS[name]


def _sentencepiece(vocabulary: _Vocabulary) -> Any:
    has_prefix = vocabulary.flag("add_space_prefix", True)
    unknown = vocabulary.special("unknown_token_id")
    model = models.BPE(
        vocab=vocabulary.ids, merges=_merges(vocabulary), unk_token=unknown, fuse_unk=True, byte_fallback=True
    )
    backend = Tokenizer(model)
    prefix = [normalizers.Prepend(_SPACE)] if has_prefix else []
    backend.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", _SPACE)])
    strip = [decoders.Strip(" ", 1, 0)] if has_prefix else []
    backend.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return _with_added(backend, vocabulary, adds_bos=True)


def _merges(vocabulary: _Vocabulary) -> list[tuple[str, str]]:
    """Return the pairs that form a token, best score first: sentencepiece has scores and no merges."""
    _check_lengths(vocabulary)
    scores = vocabulary.list_of("scores", float, length=len(vocabulary.tokens))
    outside = (_Kind.CONTROL, _Kind.UNKNOWN, _Kind.BYTE)
    texts = {token: token_id for token, token_id in vocabulary.ids.items() if vocabulary.kinds[token_id] not in outside}
    by_score = sorted(texts, key=lambda token: (-scores[texts[token]], texts[token]))
    return [
        (token[:cut], token[cut:])
        for token in by_score
        for cut in range(1, len(token))
        if token[:cut] in texts and token[cut:] in texts
    ]


def _check_lengths(vocabulary: _Vocabulary) -> None:
    for token_id, token in enumerate(vocabulary.tokens):
        if len(token) > _MAX_CHARACTERS:
            raise vocabulary.broken(
                "tokens", f"has {len(token)} characters in token {token_id}; at most {_MAX_CHARACTERS} are read"
            )


def _with_added(backend: Any, vocabulary: _Vocabulary, *, adds_bos: bool) -> Any:
    """Make special tokens match in texts, and add those that begin or end every prompt."""
    backend.add_tokens(list(vocabulary.added()))
    begin = _if_added(vocabulary, "bos_token_id", vocabulary.flag("add_bos_token", adds_bos))
    end = _if_added(vocabulary, "eos_token_id", vocabulary.flag("add_eos_token", False))
    if begin or end:
        special = {token: vocabulary.ids[token] for token in (*begin, *end)}
        backend.post_processor = processors.TemplateProcessing(
            single=[*begin, "$A", *end],
            pair=[*begin, "$A", *end, *begin, "$B:1", *end],
            special_tokens=list(special.items()),
        )
    return backend


def _if_added(vocabulary: _Vocabulary, name: str, is_added: bool) -> Sequence[str]:
    token = vocabulary.special(name)
    if is_added and token is None:
        raise vocabulary.broken(name, "is missing, and the tokenizer adds that token to every prompt")
    return [token] if is_added and token is not None else []


def _chat_template(vocabulary: _Vocabulary) -> str | dict[str, str] | None:
    metadata, key = vocabulary.metadata, "tokenizer.chat_template"
    candidates = {"default": metadata.get(key)}
    names = metadata.get("tokenizer.chat_templates", [])
    for name in names if isinstance(names, list) else []:
        candidates[str(name)] = metadata.get(f"{key}.{name}")
    templates = {name: template for name, template in candidates.items() if isinstance(template, str)}
    if list(templates) == ["default"]:
        return templates["default"]
    return templates or None
