"""The files that a reading process reads before its first fork."""

from __future__ import annotations

import subprocess
import sys

import pytest

from features.documents.extraction.documents.formats import Format
from features.documents.extraction.documents.limits import Limits
from features.documents.extraction.documents.parsing import parse
from features.documents.extraction.documents.process.rehearsal import files
from features.documents.extraction.documents.readers import images

_IMPORTED_BY_READING = """
import sys
from features.documents.extraction.documents.limits import Limits
from features.documents.extraction.documents.parsing import parse
from features.documents.extraction.documents.process import child, rehearsal
child.rehearse()
before = set(sys.modules)
for name, content in rehearsal.files().items():
    parse(content, name, Limits())
print(sorted(set(sys.modules) - before))
"""


def test_there_is_a_file_of_every_format_but_images() -> None:
    assert {parse(content, name, Limits()).format for name, content in files().items()} == {*Format} - images.FORMATS


@pytest.mark.parametrize("name", sorted(files()))
def test_every_file_has_text(name: str) -> None:
    assert "12" in parse(files()[name], name, Limits()).text.replace("Bill 7", "12")


def test_a_reading_imports_nothing_after_the_rehearsal() -> None:
    done = subprocess.run([sys.executable, "-c", _IMPORTED_BY_READING], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
