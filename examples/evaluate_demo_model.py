"""Measure the demo model on documents it was not trained on: `python -m examples.evaluate_demo_model`.

Answers greedily with transformers' own generate; a field counts when its value equals the gold exactly.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast

from examples.documents import Document, Split, chat_messages, exact_fields, make_documents

MAX_ANSWER_TOKENS = 64
MODEL_DIRECTORY = Path(__file__).parent / "demo_model"


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Counts of exact fields by name, and of documents with all their fields exact."""

    num_documents: int
    num_exact_documents: int
    num_fields: Counter[str]
    num_exact_fields: Counter[str]

    @property
    def exact_field_rate(self) -> float:
        return self.num_exact_fields.total() / self.num_fields.total()


def load_demo_model(
    directory: Path = MODEL_DIRECTORY, *, dtype: torch.dtype = torch.float32
) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """Load model and tokenizer from a directory, without the network."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype, local_files_only=True, trust_remote_code=False)
    return model.eval(), AutoTokenizer.from_pretrained(directory, local_files_only=True, trust_remote_code=False)


def answer_documents(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, documents: Sequence[Document]
) -> list[str]:
    """Return the greedy answers to documents, run as one left-padded batch."""
    prompts = [
        tokenizer.apply_chat_template(chat_messages(document), add_generation_prompt=True, tokenize=False)
        for document in documents
    ]
    encoded = tokenizer(prompts, padding=True, return_tensors="pt")
    with torch.inference_mode():
        tokens = model.generate(
            input_ids=encoded["input_ids"],
            attention_mask=encoded["attention_mask"],
            max_new_tokens=MAX_ANSWER_TOKENS,
            do_sample=False,
        )
    answers: list[str] = tokenizer.batch_decode(tokens[:, encoded["input_ids"].shape[1] :], skip_special_tokens=True)
    return answers


def score_answers(documents: Sequence[Document], answers: Sequence[str]) -> Score:
    """Compare answers with the gold fields."""
    exact = [exact_fields(document, answer) for document, answer in zip(documents, answers, strict=True)]
    return Score(
        num_documents=len(documents),
        num_exact_documents=sum(
            names == set(document.fields) for names, document in zip(exact, documents, strict=True)
        ),
        num_fields=Counter(name for document in documents for name in document.fields),
        num_exact_fields=Counter(name for names in exact for name in names),
    )


def _print_score(score: Score) -> None:
    for name, count in score.num_fields.items():
        right = score.num_exact_fields[name]
        print(f"{name:10} {right:6} of {count:6}  {right / count:8.2%}")
    print(f"fields exact {score.exact_field_rate:.2%} of {score.num_fields.total()}")
    print(f"documents with every field exact {score.num_exact_documents / score.num_documents:.2%}")


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--model", type=Path, default=MODEL_DIRECTORY)
    parser.add_argument("--documents", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch-size", type=int, default=100)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--show", type=int, default=0, help="number of wrong answers to print")
    return parser.parse_args()


def main() -> None:
    """Evaluate with the options of the command line."""
    arguments = _parse_arguments()
    torch.set_num_threads(arguments.threads)
    model, tokenizer = load_demo_model(arguments.model, dtype=getattr(torch, arguments.dtype))
    documents = list(make_documents(arguments.documents, split=Split.EVALUATION, seed=arguments.seed))
    started = time.monotonic()
    answers = [
        answer
        for start in range(0, len(documents), arguments.batch_size)
        for answer in answer_documents(model, tokenizer, documents[start : start + arguments.batch_size])
    ]
    print(f"{len(documents)} documents in {time.monotonic() - started:.1f} s")
    _print_score(score_answers(documents, answers))
    wrong = [pair for pair in zip(documents, answers, strict=True) if len(exact_fields(*pair)) < len(pair[0].fields)]
    for document, answer in wrong[: arguments.show]:
        print(f"---\n{document.text}\nanswer {answer}\ngold   {document.fields}")


if __name__ == "__main__":
    main()
