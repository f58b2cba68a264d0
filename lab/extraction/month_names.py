"""Write `features/documents/extraction/fields/month_names.py` from the months of CLDR, which Babel has.

Run as `python -m lab.extraction.month_names`; a test compares the file with what this makes.
"""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Literal

from babel.dates import get_month_names

from features.documents.extraction.fields.dates import canonical

LOCALES = (
    *("en", "de", "de_AT", "nl", "sv", "da", "nb", "fr", "es", "it", "pt", "ca", "ro", "pl", "cs", "sk", "sl", "hr"),
    *("ru", "uk", "bg", "el", "fi", "et", "lv", "lt", "hu", "tr", "id", "ar", "ar_SY", "he", "hi", "bn", "th"),
)
TARGET = Path(__file__).parents[2] / "features/documents/extraction/fields/month_names.py"
_FORMS: tuple[tuple[Literal["wide", "abbreviated"], Literal["format", "stand-alone"]], ...] = (
    ("wide", "format"),
    ("wide", "stand-alone"),
    ("abbreviated", "format"),
    ("abbreviated", "stand-alone"),
)
_OTHERS = {2: ("feber",), 3: ("maerz", "mrz"), 6: ("jun",), 7: ("jul",), 9: ("sept",)}
"""Not in CLDR, and common on invoices."""
_LEAST_LATIN = 3
_HEADER = '''"""Names of the months in the languages of documents, casefolded and without final points; written by
`lab/extraction/month_names.py` from CLDR (Unicode License v3), with those of Babel's locales
{locales}.

A few name two months, as `listopad` does in Czech and in Croatian.
"""

from __future__ import annotations

MONTH_NAMES = (
'''


def names_of(month: int) -> list[str]:
    """Return every name of a month from 1 to 12."""
    names = set(_OTHERS.get(month, ()))
    for locale in LOCALES:
        for width, context in _FORMS:
            written = get_month_names(width, context, locale)[month].rstrip(".")
            name = canonical(written.removeprefix("de ").removeprefix("d’"))
            if len(name) >= _LEAST_LATIN or not name.isascii():
                names.add(name)
    return sorted(names)


def source() -> str:
    """Return the file's content."""
    locales = textwrap.fill(" ".join(LOCALES), 116)
    written = (" ".join(name.replace(" ", "_") for name in names_of(month)) for month in range(1, 13))
    months = (textwrap.wrap(names, 106) for names in written)
    rows = ("    " + "\n    ".join(_literals(lines)) + ",\n" for lines in months)
    tail = ')\n"""By month from January on, separated by blanks; a blank within a name is `_`."""\n'
    return _HEADER.format(locales=locales) + "".join(rows) + tail


def _literals(lines: list[str]) -> list[str]:
    return [f'"{line} "' if line is not lines[-1] else f'"{line}"' for line in lines]


if __name__ == "__main__":
    TARGET.write_text(source(), encoding="utf-8")
