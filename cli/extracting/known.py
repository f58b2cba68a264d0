"""Documents with known fields, and their use as examples in prompts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from cli.extracting.prepared import ParseCache, prepare
from cli.service.options import text_of
from features.documents.extraction.documents.layout import layout
from features.documents.extraction.errors import ExtractionError
from features.documents.extraction.evaluation.gold import GoldDocument, read_gold
from features.documents.extraction.fields.schema import FieldSchema
from features.documents.extraction.passes.examples import Example
from jobs.errors import InputError


def read_examples(gold: Path, schema: FieldSchema, cache: ParseCache) -> tuple[Example, ...]:
    """Return the documents of a gold file with their fields. Raises InputError if one is missing or unreadable."""
    known = read_known(gold, schema)
    paths = [Path(each.document) for each in known.values()]
    for path, times in Counter(paths).items():
        if times > 1:
            raise InputError(f"{gold} has {times:,} lines for the file {path}. Keep the one that is right.")
        if not path.is_file():
            raise InputError(
                f"{gold} names {path}, which is not a file here. Run in the folder of its paths, or remove it."
            )
    examples = []
    for one, document in zip(prepare(paths, cache, on_each=lambda: None), known.values(), strict=True):
        if one.error is not None:
            raise InputError(f"{one.name}, an example of {gold}: {one.error['message']} ({one.error['code']}).")
        text = layout(cache.load(one.sha256)).text
        examples.append(Example(document_text=text, fields=document.fields))
    return tuple(examples)


def read_known(gold: Path, schema: FieldSchema) -> dict[str, GoldDocument]:
    """Return the lines of a gold file by document. Raises InputError with the line that is wrong."""
    try:
        return read_gold(text_of(gold).split("\n"), schema)
    except ExtractionError as error:
        raise InputError(f"{gold}: {error}") from None
