"""Train the demo model for `tokenmill extract`: `python -m examples.train_fields`.

Continues from a trained model with a longer context, on requests as the passes of an extraction make them; one in five
is a document as before, so that nothing is forgotten.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from engine.grammars.grammar import GrammarTokens
from engine.grammars.matcher import GrammarMatcher
from engine.structured import StructuredOutput
from examples import documents, field_requests
from examples.documents import Split
from examples.field_requests import FieldRequest
from examples.train_demo_model import (
    MAX_GRADIENT_NORM,
    REPORT_EVERY,
    Batch,
    Optimizers,
    Settings,
    token_batch,
    training_loss,
    write_model,
)
from examples.value_lists import list_text
from features.documents.extraction.fields.groups import Group, groups
from features.documents.extraction.fields.schema import FieldSchema
from features.documents.extraction.passes import asking_again
from features.documents.extraction.passes.hunter import hunter_request
from features.documents.extraction.passes.second_reading import second_reading_request

MAX_POSITIONS = 1024
BATCH_SIZE = 16
_POOL = 10
"""Batches whose requests are drawn together and sorted by length, for less padding."""
_PLAIN_EVERY = 5
_LIST_SHARE = 0.12
"""Share of second readings among the requests about documents."""
_HARMED_SHARE, _HARM_SHARE = 0.5, 0.25
"""Share of harmed documents, and of harmed values in these: inked over, with letters lost, or contradicted."""
_SOME_FIELDS_SHARE = 0.3
_AGAIN_SHARE = 0.12
_REASONS = (asking_again.MISSING, asking_again.UNGROUNDED, asking_again.CONTRADICTED)

_FREE_SHARE = 0.2
"""Share of the requests for fields that are answered without a grammar, in the tokenizer's own tokens."""

Chat = tuple[list[dict[str, str]], str, StructuredOutput | None]
"""Messages, the answer, and the constraint of its form."""


def chats(start: int, count: int, *, seed: int) -> Iterator[Chat]:
    """Yield the training examples; each depends only on its own number."""
    for index in range(start, start + count):
        yield _plain_chat(index, seed) if index % _PLAIN_EVERY == 0 else field_chat(index, seed=seed)


def field_chat(index: int, *, seed: int) -> Chat:
    """Return a request for all fields, some of them, one or two doubtful ones again, or a second reading."""
    rng = random.Random(f"field chat/{seed}/{index}")
    harm_share = _HARM_SHARE if rng.random() < _HARMED_SHARE else 0.0
    field_request = field_requests.make_request(Split.TRAINING, seed, index, harm_share=harm_share)
    names = list(field_request.fields)
    if rng.random() < _LIST_SHARE:
        return _list_chat(field_request, is_free=rng.random() < _FREE_SHARE)
    doubts: dict[tuple[str, ...], str] | None = None
    if rng.random() < _SOME_FIELDS_SHARE:
        rng.shuffle(names)
        names = names[: rng.randint(2, len(names))]
    if rng.random() < _AGAIN_SHARE:
        names = rng.sample(names, min(len(names), rng.randint(1, 2)))
        doubts = {(name,): rng.choice(_REASONS) for name in names}
    request = hunter_request(field_request.text, _group(tuple(names)), doubts=doubts)
    messages = [dict(message) for message in request.messages]
    answer = field_requests.answer_text({name: field_request.fields[name] for name in names})
    return messages, answer, None if rng.random() < _FREE_SHARE else _form(tuple(names))


def _list_chat(field_request: FieldRequest, *, is_free: bool) -> Chat:
    group = _group(tuple(field_request.fields))
    request = second_reading_request(field_request.text, group)
    answer = list_text(field_request, {leaf.kind for leaf in group.leaves if leaf.ground})
    form = StructuredOutput(json=request.response_format["json_schema"]["schema"])
    return [dict(message) for message in request.messages], answer, None if is_free else form


def _plain_chat(index: int, seed: int) -> Chat:
    document = next(documents.make_documents(1, split=Split.TRAINING, seed=seed, start=index))
    has_system = index % (4 * _PLAIN_EVERY) != 0
    return documents.chat_messages(document)[not has_system :], documents.answer_text(document), None


@cache
def _group(names: tuple[str, ...]) -> Group:
    schema = json.loads(field_requests.SCHEMA_PATH.read_text(encoding="utf-8"))
    properties = {name: schema["properties"][name] for name in names}
    (group,) = groups(FieldSchema.parse(schema | {"properties": properties, "required": list(names)}))
    return group


@cache
def _form(names: tuple[str, ...]) -> StructuredOutput:
    return StructuredOutput(json=_group(names).quoted_schema())


class AnswerTokens:
    """Tokenizes answers as the engine generates them: a grammar forces keys, with its own tokenization."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, source: Path) -> None:
        self._tokenizer = tokenizer
        eos = (int(tokenizer.eos_token_id),)
        self._grammars = GrammarTokens(source, vocab_size=len(tokenizer), eos_token_ids=eos)
        self._matchers: dict[StructuredOutput, GrammarMatcher] = {}

    def of(self, answer: str, form: StructuredOutput | None) -> list[int]:
        """Return the tokens of an answer and its end."""
        if form is None:
            return [*self._own(answer), int(self._tokenizer.eos_token_id)]
        if form not in self._matchers:
            self._matchers[form] = self._grammars.compile(form)
        matcher = self._matchers[form].copy()
        tokens: list[int] = []
        while len(self._text(tokens)) < len(answer):
            following = matcher.forced_tokens() or self._first(answer[len(self._text(tokens)) :])
            for token in following:
                assert matcher.accept(token), f"the grammar does not allow the answer: {answer}"
            tokens += following
        assert self._text(tokens) == answer, "forced text is part of the answer"
        return [*tokens, int(self._tokenizer.eos_token_id)]

    def _own(self, text: str) -> list[int]:
        tokens: list[int] = self._tokenizer(text)["input_ids"]
        return tokens

    def _text(self, tokens: list[int]) -> str:
        return str(self._tokenizer.decode(tokens))

    def _first(self, text: str) -> list[int]:
        """Return the text's first token, or all tokens of its first letter if it has several."""
        encoded = self._tokenizer(text, return_offsets_mapping=True)
        end = encoded["offset_mapping"][0][1]
        count = sum(start < end for start, _ in encoded["offset_mapping"])
        tokens: list[int] = encoded["input_ids"][:count]
        return tokens


def batches(tokenizer: PreTrainedTokenizerFast, tokens: AnswerTokens, *, seed: int) -> Iterator[Batch]:
    """Yield endless batches of chats of similar length."""
    start = 0
    while True:
        drawn = sorted(chats(start, _POOL * BATCH_SIZE, seed=seed), key=_length)
        parts = [drawn[first : first + BATCH_SIZE] for first in range(0, len(drawn), BATCH_SIZE)]
        random.Random(f"{seed}/{start}").shuffle(parts)
        for part in parts:
            yield token_batch([(messages, tokens.of(answer, form)) for messages, answer, form in part], tokenizer)
        start += len(drawn)


def _length(chat: Chat) -> int:
    return sum(len(message["content"]) for message in chat[0]) + len(chat[1])


def train(source: Path, output: Path, *, steps: int, rate: float, seed: int, minutes: float | None = None) -> None:
    """Train a model further, and write it; with `minutes` the schedule follows the clock and ends at the latest then.

    On a shared machine the number of steps per hour is unknown.
    """
    tokenizer = AutoTokenizer.from_pretrained(source, local_files_only=True, trust_remote_code=False)
    model = AutoModelForCausalLM.from_pretrained(
        source, dtype=torch.float32, local_files_only=True, trust_remote_code=False
    )
    model.config.max_position_embeddings = MAX_POSITIONS
    settings = Settings(
        steps=steps,
        copy_steps=0,
        batch_size=BATCH_SIZE,
        warmup_steps=30,
        matrix_rate=rate,
        other_rate=rate,
        seed=seed,
    )
    optimizers = Optimizers(model, settings)
    started = time.monotonic()
    for step, batch in zip(range(steps), batches(tokenizer, AnswerTokens(tokenizer, source), seed=seed), strict=False):
        passed = 0.0 if minutes is None else (time.monotonic() - started) / (60 * minutes)
        if passed >= 1:
            break
        loss, accuracy = training_loss(model, batch)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRADIENT_NORM)
        optimizers.step(max(step, int(passed * steps)))
        if (step + 1) % REPORT_EVERY == 0:
            seconds = (time.monotonic() - started) / (step + 1)
            print(f"step {step + 1}: loss {loss.item():.4f}, tokens right {accuracy:.4f}, {seconds:.3f} s/step")
    write_model(model, tokenizer, output)


def main(arguments: Sequence[str] | None = None) -> None:
    """Train with the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--source", type=Path, default=Path(__file__).parent / "demo_model")
    parser.add_argument("--output", type=Path, default=Path("build/demo_model/fields"))
    parser.add_argument("--steps", type=int, default=1100, help=f"steps of {BATCH_SIZE} requests each")
    parser.add_argument("--minutes", type=float, help="end after this time, at whichever step")
    parser.add_argument("--rate", type=float, default=2e-3, help="peak learning rate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args(arguments)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # a log shows progress as it happens
    torch.set_num_threads(options.threads)
    train(
        options.source,
        options.output,
        steps=options.steps,
        rate=options.rate,
        seed=options.seed,
        minutes=options.minutes,
    )


if __name__ == "__main__":
    main()
