"""Tests of the committed demo model: small, loadable without the network, and able to do its task."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from examples.documents import Split, answer_text, chat_messages, make_documents
from examples.evaluate_demo_model import MODEL_DIRECTORY, answer_documents, load_demo_model, score_answers

SIZE_LIMIT_BYTES = 8_000_000
FRESH_SEED = 20_261_120


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def demo() -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    return load_demo_model()


@pytest.fixture(scope="module")
def tokenizer(demo: tuple[PreTrainedModel, PreTrainedTokenizerFast]) -> PreTrainedTokenizerFast:
    return demo[1]


def test_the_model_directory_is_small_and_holds_no_pickle() -> None:
    files = list(MODEL_DIRECTORY.iterdir())
    assert sum(path.stat().st_size for path in files) <= SIZE_LIMIT_BYTES
    assert {path.suffix for path in files} <= {".json", ".safetensors", ".jinja"}


def test_generation_stops_at_the_end_token(demo: tuple[PreTrainedModel, PreTrainedTokenizerFast]) -> None:
    model, tokenizer = demo
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    assert model.config.eos_token_id == tokenizer.eos_token_id


def test_the_chat_template_puts_one_bos_and_opens_the_answer(tokenizer: PreTrainedTokenizerFast) -> None:
    messages = chat_messages(next(make_documents(1, split=Split.DEMO)))
    for chat in (messages, messages[1:]):
        tokens = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
        text = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        assert tokens == tokenizer(text)["input_ids"]
        assert tokens.count(tokenizer.bos_token_id) == 1
        assert tokens[0] == tokenizer.bos_token_id
        assert tokens[-1] == tokenizer.convert_tokens_to_ids("<|assistant|>")


def test_a_role_that_the_template_does_not_know_is_refused_by_name(tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(Exception, match="role is tool; allowed: system, user, assistant"):
        tokenizer.apply_chat_template([{"role": "tool", "content": "x"}])


@pytest.mark.parametrize("text", ["Größe 12 €", "日本語 🙂", '{"a":"b","c":"d"}', "  two  spaces\n\n", "12345.67"])
def test_any_text_survives_encoding_and_decoding(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_prompts_and_answers_are_short(tokenizer: PreTrainedTokenizerFast) -> None:
    for document in make_documents(200, split=Split.EVALUATION, seed=FRESH_SEED):
        prompt = tokenizer.apply_chat_template(chat_messages(document), add_generation_prompt=True, return_dict=False)
        assert len(prompt) <= 150
        assert len(tokenizer(answer_text(document))["input_ids"]) < 64


def test_the_model_extracts_the_fields_of_fresh_documents(
    demo: tuple[PreTrainedModel, PreTrainedTokenizerFast],
) -> None:
    documents = list(make_documents(24, split=Split.EVALUATION, seed=FRESH_SEED))
    score = score_answers(documents, answer_documents(*demo, documents))
    assert score.exact_field_rate >= 0.95
