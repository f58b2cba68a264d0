"""Write an OpenAI batch input file of generated documents, and a file of their gold fields.

Run as `python -m examples.make_batch`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from examples.documents import Document, Split, chat_messages, make_documents

MODEL_NAME = "demo"
MAX_TOKENS = 64


def batch_line(custom_id: str, document: Document) -> dict[str, object]:
    """Return one line of the input file: a greedy chat completion."""
    body = {"model": MODEL_NAME, "messages": chat_messages(document), "max_tokens": MAX_TOKENS, "temperature": 0}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}


def write_batch(count: int, *, seed: int, batch_path: Path, gold_path: Path) -> None:
    """Write both files, one line for each document."""
    with batch_path.open("w", encoding="utf-8") as batch_file, gold_path.open("w", encoding="utf-8") as gold_file:
        for index, document in enumerate(make_documents(count, split=Split.DEMO, seed=seed)):
            custom_id = f"document-{index:04d}"
            batch_file.write(json.dumps(batch_line(custom_id, document), ensure_ascii=False) + "\n")
            gold_file.write(json.dumps({"custom_id": custom_id, "fields": document.fields}, ensure_ascii=False) + "\n")


def _parse_arguments() -> argparse.Namespace:
    here = Path(__file__).parent
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=here / "documents.jsonl")
    parser.add_argument("--gold", type=Path, default=here / "documents_gold.jsonl")
    return parser.parse_args()


def main() -> None:
    """Write the files named on the command line."""
    arguments = _parse_arguments()
    write_batch(arguments.count, seed=arguments.seed, batch_path=arguments.output, gold_path=arguments.gold)


if __name__ == "__main__":
    main()
