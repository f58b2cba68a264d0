"""Train the demo model's tokenizer: byte-level BPE with a chat template, in the Hugging Face fast format.

A word includes the space after it, never the one before it, so a value has the same tokens in a document and in
the JSON of its answer: the model copies tokens instead of learning which spellings match.
"""

from __future__ import annotations

from collections.abc import Iterator

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from examples.documents import INSTRUCTION, Split, answer_text, make_documents

VOCABULARY_SIZE = 1024
BOS, EOS, PAD = "<|bos|>", "<|end|>", "<|pad|>"
ROLES = ("<|system|>", "<|user|>", "<|assistant|>")

# JSON between two values · up to two digits · a word with the space that joins it to the next word · anything else
_PIECES = r'(?:\{|",)"[a-z]+":"|\p{N}{1,2}|\p{L}+(?: (?=\p{L}))?|[^\p{L}\p{N}]+?(?=",")|[^\p{L}\p{N}]+'

CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{% if message['role'] not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('role is ' + message['role'] + '; allowed: system, user, assistant') }}"
    "{% endif %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + eos_token }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def train_tokenizer(*, seed: int, num_documents: int = 20_000) -> PreTrainedTokenizerFast:
    """Train on generated documents and their answers; only the template adds the BOS."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=[PAD, BOS, EOS, *ROLES],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_tokenizer_texts(num_documents, seed), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        additional_special_tokens=list(ROLES),
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )


def _tokenizer_texts(num_documents: int, seed: int) -> Iterator[str]:
    for document in make_documents(num_documents, split=Split.TRAINING, seed=seed):
        yield INSTRUCTION
        yield document.text
        yield answer_text(document)
