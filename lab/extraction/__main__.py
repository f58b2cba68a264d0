"""Measure a part of extraction on generated documents and texts.

python -m lab.extraction alignment [--texts 200] [--seed 0]
python -m lab.extraction corpus [--documents 50000] [--processes 2] [--seed 0]
python -m lab.extraction documents [--pages 300] [--turns 5] [--files 10000] [--seed 0]
python -m lab.extraction embeddings --model FOLDER [--documents FILE] [--texts 400] [--dtypes float32,bfloat16]
    [--turns 5] [--num-threads 2] [--seed 0]
python -m lab.extraction fields [--documents 200] [--known 400] [--harmed 0.2] [--seed 0] [options of extract]
python -m lab.extraction first_records [--documents 100,1000] [--slow 0.01]
python -m lab.extraction kills [--documents 2000] [--broken 0.05] [--kills 5] [--run server] [--seed 0]
python -m lab.extraction long_documents [--documents 3] [--pages 300] [--seed 0] [options of extract]
python -m lab.extraction made_up [--receipts 200] [--seed 0]
python -m lab.extraction pictures [--files 2] [--seed 0]
python -m lab.extraction reading_order [--files 20] [--seed 0]
python -m lab.extraction retrieval FILE [--model FOLDER] [--dtype float32] [--language english] [--num-threads 1]
python -m lab.extraction simulated_answers [--layouts 40] [--papers 10] [--seed 0]
python -m lab.extraction titled_sections FOLDER
python -m lab.extraction uploads [--files 1204] [--bytes 2000] [--together 200]
python -m lab.extraction wide [--documents 3] [--fields 369] [--max-tokens 384] [--seed 0] [options of extract]
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

_PARTS = (
    *("alignment", "corpus", "documents", "embeddings", "fields", "first_records", "kills", "long_documents"),
    *("made_up", "pictures", "reading_order", "retrieval", "simulated_answers", "titled_sections", "uploads", "wide"),
)
"""Modules, loaded on demand: two of them need torch, and the memory of documents is measured without it."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the selected part with the options that follow; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="tokenmill bench extraction", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=_PARTS)
    arguments = list(sys.argv[1:] if argv is None else argv)
    part = importlib.import_module(f"lab.extraction.{parser.parse_args(arguments[:1]).part}")
    exit_code: int = part.main(arguments[1:])
    return exit_code


if __name__ == "__main__":
    raise SystemExit(main())
