"""Small files that take minutes or gigabytes to read without limits.

python -m lab.extraction.worst_files [NAME]

Reads each of them, or one, with the default limits, and prints the result, the time and the peak memory of a process.
"""

from __future__ import annotations

import io
import resource
import subprocess
import sys
import time
import zipfile
import zlib
from collections.abc import Callable, Mapping

from features.documents.extraction.documents.process.document_reader import DocumentReader
from features.documents.extraction.errors import DocumentError
from lab.extraction.pdf_writer import PdfPage, frame, pdf_objects

_MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
_OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_TYPES = "http://schemas.openxmlformats.org/package/2006/content-types"
_BOOK = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet.main+xml"
_RELATIONS = '<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">{}</Relationships>'
_PARTS = {
    "[Content_Types].xml": (
        f'<Types xmlns="{_TYPES}"><Default Extension="xml" ContentType="application/xml"/>'
        f'<Override PartName="/xl/workbook.xml" ContentType="{_BOOK}"/></Types>'
    ),
    "_rels/.rels": _RELATIONS.format(
        f'<Relationship Id="r" Type="{_OFFICE}/officeDocument" Target="xl/workbook.xml"/>'
    ),
    "xl/workbook.xml": (
        f'<workbook xmlns="{_MAIN}" xmlns:r="{_OFFICE}">'
        '<sheets><sheet name="Costs" sheetId="1" r:id="s"/></sheets></workbook>'
    ),
    "xl/_rels/workbook.xml.rels": _RELATIONS.format(
        f'<Relationship Id="s" Type="{_OFFICE}/worksheet" Target="worksheets/sheet1.xml"/>'
        f'<Relationship Id="t" Type="{_OFFICE}/sharedStrings" Target="sharedStrings.xml"/>'
    ),
}


def form_of_itself() -> bytes:
    """Return a PDF whose page draws a form that draws itself twice."""
    objects = pdf_objects([PdfPage()])
    form = len(objects) + 1
    objects[-2] = objects[-2].replace(b"/XObject <<", b"/XObject << /X %d 0 R" % form)
    objects[-1] = b"<< /Length 5 >>\nstream\n/X Do\nendstream"
    head = b"<< /Type /XObject /Subtype /Form /BBox [0 0 9 9] /Resources << /XObject << /X %d 0 R >> >> /Length 11 >>"
    objects.append(head % form + b"\nstream\n/X Do /X Do\nendstream")
    return frame(objects)


def packed_three_times(num_bytes: int) -> bytes:
    """Return a PDF whose page has `num_bytes` of operators, compressed with Flate three times."""
    objects = pdf_objects([PdfPage()])
    packer, piece = zlib.compressobj(9), b"q Q " * (1 << 18)
    content = b"".join(packer.compress(piece) for _ in range(num_bytes // len(piece))) + packer.flush()
    content = zlib.compress(zlib.compress(content, 9), 9)
    head = b"<< /Length %d /Filter [/FlateDecode /FlateDecode /FlateDecode] >>" % len(content)
    objects[-1] = b"%s\nstream\n%s\nendstream" % (head, content)
    return frame(objects)


def far_cell() -> bytes:
    """Return a workbook with one cell, in a column and a row that no sheet has."""
    return _workbook('<row><c r="ZZZZZZZZZ999999999999"><v>1</v></c></row>')


def long_text_in_many_cells(num_bytes: int = 20 << 20, num_cells: int = 2000) -> bytes:
    """Return a workbook whose cells all have the same long text."""
    rows = (f'<row r="{row}"><c r="A{row}" t="s"><v>0</v></c></row>' for row in range(1, num_cells + 1))
    return _workbook("".join(rows), text="a" * num_bytes)


def _workbook(rows: str, *, text: str = "a") -> bytes:
    parts = {
        **_PARTS,
        "xl/worksheets/sheet1.xml": f'<worksheet xmlns="{_MAIN}"><sheetData>{rows}</sheetData></worksheet>',
        "xl/sharedStrings.xml": f'<sst xmlns="{_MAIN}"><si><t>{text}</t></si></sst>',
    }
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as package:
        for name, content in parts.items():
            package.writestr(name, content)
    return stream.getvalue()


_FILES: Mapping[str, Callable[[], bytes]] = {
    "form.pdf": form_of_itself,
    "layers128.pdf": lambda: packed_three_times(128 << 20),
    "layers256.pdf": lambda: packed_three_times(256 << 20),
    "cell.xlsx": far_cell,
    "text.xlsx": long_text_in_many_cells,
}


def _row(name: str) -> str:
    content, code = _FILES[name](), "read"
    with DocumentReader() as reader:
        _ = reader.parsers  # starts its process
        began = time.monotonic()
        try:
            reader.read(content, name)
        except DocumentError as error:
            code = error.code
        seconds = time.monotonic() - began
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10
    return f"| {name} | {len(content):,} | {code} | {reader.seconds:.1f} | {seconds:.1f} | {peak} |"


def main() -> None:
    if sys.argv[1:]:
        print(_row(sys.argv[1]))
        return
    print(
        "| file | bytes | ends as | processor s | s by the clock | MiB, at most |\n|---|---|---|---|---|---|",
        flush=True,
    )
    for name in _FILES:  # each in its own process: the peak memory of children is never reset
        subprocess.run([sys.executable, "-m", __spec__.name, name], check=True)


if __name__ == "__main__":
    main()
