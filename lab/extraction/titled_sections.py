"""Make a collection of questions from manuals or messages of a language: a section is asked for by its title.

    python -m lab.extraction titled_sections FOLDER > FILE
    python -m lab.extraction retrieval FILE --language simple

FOLDER holds HTML, whose sections are the texts below headings, or `.mo` files, whose messages are asked for by their
middle half. Debian has such: `debian-reference-ja`, `-zh-cn`, `-de`, and for Thai `evolution-common`.
"""

from __future__ import annotations

import argparse
import json
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

from selectolax.lexbor import LexborHTMLParser

_HEADINGS = ("h1", "h2", "h3", "h4")
_LEAST_CHARACTERS = 40
"""Of a text; a shorter one is hardly more than its question."""


def main(argv: Sequence[str] | None = None) -> int:
    """Print a document and a query for each text."""
    parser = argparse.ArgumentParser(prog="tokenmill bench extraction titled_sections", description=__doc__)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args(argv).folder
    for number, (question, text) in enumerate(sorted(set(_texts(folder)))):
        print(json.dumps({"kind": "document", "id": str(number), "text": text}))
        print(json.dumps({"kind": "query", "id": str(number), "text": question, "relevant": [str(number)]}))
    return 0


def _texts(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield questions and texts."""
    pairs = [*_sections(folder), *_messages(folder)]
    yield from ((question, text) for question, text in pairs if question and len(text) >= _LEAST_CHARACTERS)


def _sections(folder: Path) -> Iterator[tuple[str, str]]:
    for path in folder.rglob("*.html"):
        title, paragraphs = "", list[str]()
        for node in LexborHTMLParser(path.read_bytes()).css(", ".join((*_HEADINGS, "p", "li", "td"))):
            if node.tag in _HEADINGS:
                yield title, " ".join(paragraphs)
                title, paragraphs = node.text(strip=True).lstrip("0123456789.第章 \u00a0"), []
            else:
                paragraphs.append(node.text(strip=True))
        yield title, " ".join(paragraphs)


def _messages(folder: Path) -> Iterator[tuple[str, str]]:
    for path in folder.rglob("*.mo"):
        texts = [text for text in _strings(path.read_bytes()) if "\n" not in text]
        yield from ((text[len(text) // 4 : -(len(text) // 4)], text) for text in texts)


def _strings(catalog: bytes) -> Iterator[str]:
    """Yield the translations of GNU's `.mo`: their number and the place of their table stand behind two words."""
    count, _, table = struct.unpack_from("<III", catalog, 8)
    for entry in range(count):
        length, start = struct.unpack_from("<II", catalog, table + 8 * entry)
        yield catalog[start : start + length].split(b"\0")[0].decode()


if __name__ == "__main__":
    raise SystemExit(main())
