"""Small files of every format but images, which the reading process reads before its first fork.

A fork runs everything for the first time: modules that are imported late, code that Python specializes, caches of
libraries. What its parent has run before, it shares.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping

_RELATIONSHIPS = "http://schemas.openxmlformats.org/package/2006/relationships"
_OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
_DRAWING = "http://schemas.openxmlformats.org/drawingml/2006/main"
_SLIDES = "http://schemas.openxmlformats.org/presentationml/2006/main"
_SHEETS = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"

_TEXT = b"Bill 7 of 2 May: one pen at 12.00 each.\n"
_MARKDOWN = b"# Bill 7\n\nOne pen at 12.00 each.\n"
_JSON = b'{"bill": 7, "total": "12.00"}'
_HTML = b"<!doctype html><html><body><h1>Bill 7</h1><table><tr><td>Pen<td>12.00</table><p>Regards</body></html>"
_PDF = b"""%PDF-1.4
1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj
2 0 obj<</Type/Pages/Kids[3 0 R]/Count 1>>endobj
3 0 obj<</Type/Page/Parent 2 0 R/MediaBox[0 0 300 100]/Resources<</Font<</F 5 0 R>>>>/Contents 4 0 R>>endobj
4 0 obj<</Length 88>>stream
BT /F 12 Tf 20 50 Td (Bill 7 of 2 May) Tj 0 -20 Td (one pen at 12.00 each, in all 12.00) Tj ET  \n
endstream endobj
5 0 obj<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>endobj
trailer<</Root 1 0 R/Size 6>>
startxref
0
%%EOF
"""
_MAIL = b"""From: a@example.com
Subject: Bill 7
MIME-Version: 1.0
Content-Type: multipart/mixed; boundary=part

--part
Content-Type: text/plain; charset=utf-8

One pen.
--part
Content-Type: text/plain; name=bill.txt
Content-Disposition: attachment; filename=bill.txt

12.00
--part--
"""


def files() -> Mapping[str, bytes]:
    """Return contents by name."""
    return {
        "bill.txt": _TEXT,
        "bill.md": _MARKDOWN,
        "bill.json": _JSON,
        "bill.html": _HTML,
        "bill.eml": _MAIL,
        "bill.pdf": _PDF,
        "bill.docx": _package("word/document.xml", _word_document()),
        "bill.pptx": _package("ppt/presentation.xml", _presentation(), {"ppt/slides/slide1.xml": _slide()}),
        "bill.xlsx": _package("xl/workbook.xml", _workbook(), {"xl/worksheets/sheet1.xml": _sheet()}),
    }


def _package(main: str, content: str, parts: Mapping[str, str] | None = None) -> bytes:
    """Return an Office file of a main member that links to further ones, as r1, r2, …"""
    folder, name = main.split("/")
    links = {member.removeprefix(f"{folder}/"): member.split("/")[1].removesuffix("s") for member in parts or {}}
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as package:
        package.writestr("[Content_Types].xml", "<Types/>")
        package.writestr("_rels/.rels", _links({main: "officeDocument"}))
        package.writestr(main, content)
        package.writestr(f"{folder}/_rels/{name}.rels", _links(links))
        for member, part in (parts or {}).items():
            package.writestr(member, part)
    return stream.getvalue()


def _links(kinds: Mapping[str, str]) -> str:
    links = "".join(
        f'<Relationship Id="r{number}" Type="{_OFFICE}/{kind}" Target="{target}"/>'
        for number, (target, kind) in enumerate(kinds.items(), start=1)
    )
    return f'<Relationships xmlns="{_RELATIONSHIPS}">{links}</Relationships>'


def _word_document() -> str:
    line, cell = "<w:p><w:r><w:t>Bill 7</w:t></w:r></w:p>", "<w:tc><w:p><w:r><w:t>12.00</w:t></w:r></w:p></w:tc>"
    return f'<w:document xmlns:w="{_WORD}"><w:body>{line}<w:tbl><w:tr>{cell}</w:tr></w:tbl></w:body></w:document>'


def _presentation() -> str:
    slides = '<p:sldIdLst><p:sldId id="256" r:id="r1"/></p:sldIdLst>'
    return f'<p:presentation xmlns:p="{_SLIDES}" xmlns:r="{_OFFICE}">{slides}</p:presentation>'


def _slide() -> str:
    text = "<p:txBody><a:p><a:r><a:t>Bill 7</a:t></a:r></a:p></p:txBody>"
    tree = f"<p:cSld><p:spTree><p:sp>{text}</p:sp></p:spTree></p:cSld>"
    return f'<p:sld xmlns:p="{_SLIDES}" xmlns:a="{_DRAWING}">{tree}</p:sld>'


def _workbook() -> str:
    sheets = '<sheets><sheet name="Costs" sheetId="1" r:id="r1"/></sheets>'
    return f'<workbook xmlns="{_SHEETS}" xmlns:r="{_OFFICE}">{sheets}</workbook>'


def _sheet() -> str:
    cells = '<c r="A1" t="inlineStr"><is><t>Pen</t></is></c><c r="B1"><v>12</v></c>'
    return f'<worksheet xmlns="{_SHEETS}"><sheetData><row r="1">{cells}</row></sheetData></worksheet>'
