"""Word and PowerPoint: paragraphs, tables and text boxes in file order, with headings and cells.

Walks the XML itself, so that text in text boxes, content controls and tracked insertions is included. Supports two
vocabularies with corresponding elements.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.metadata import version

from lxml import etree

from features.documents.extraction.documents.builder import TextBuilder
from features.documents.extraction.documents.document import Document
from features.documents.extraction.documents.formats import Format
from features.documents.extraction.documents.limits import Limits, Progress
from features.documents.extraction.documents.readers.flow import Flow
from features.documents.extraction.documents.readers.package import Package
from features.documents.extraction.errors import DocumentCode, DocumentError

PARSER = f"office 2 lxml {version('lxml')}"

_W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_A = "{http://schemas.openxmlformats.org/drawingml/2006/main}"
_P = "{http://schemas.openxmlformats.org/presentationml/2006/main}"
_R = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}"
_SKIPPED = frozenset(
    {
        f"{_W}del",
        f"{_W}moveFrom",
        "{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback",  # the same content for old readers
    }
)
_NAMED_HEADING = re.compile(r"heading (\d)", re.I)
_TITLES = {"title": 1, "ctrTitle": 1, "subTitle": 2}  # of PowerPoint's placeholders
_OFF = frozenset({"0", "false", "off"})
_BEFORE, _AFTER = ("header",), ("footnotes", "endnotes", "footer")


def read_docx(content: bytes, limits: Limits, progress: Progress) -> Document:
    """Read a Word file: headers, the body, footnotes and endnotes, footers; all as one page."""
    package = Package.open(content, limits)
    main = _main(package, f"{_W}document")
    links = package.links(main)
    levels = _heading_styles(package, [link.member for link in links if link.kind == "styles"])
    parts = [link.member for kind in _BEFORE for link in links if link.kind == kind]
    parts += [main, *(link.member for kind in _AFTER for link in links if link.kind == kind)]
    builder = TextBuilder(limits)
    flow = Flow(builder)
    num_hidden = 0
    progress.page(0)
    for part in parts:
        flow.block()
        root = package.xml(part)
        num_hidden += sum(map(_is_hidden, root.iter(f"{_W}r")))
        _walk(root, flow, levels)
    hidden = (f"{num_hidden} pieces of hidden text were read as well",) if num_hidden else ()
    return builder.build(Format.DOCX, PARSER, (*_notes(package), *hidden))


def read_pptx(content: bytes, limits: Limits, progress: Progress) -> Document:
    """Read a PowerPoint file: one page per slide, with its notes."""
    package = Package.open(content, limits)
    main = _main(package, f"{_P}presentation")
    members = {link.key: link.member for link in package.links(main)}
    builder = TextBuilder(limits)
    flow = Flow(builder)
    hidden: list[int] = []
    for number, slide in enumerate(package.xml(main).iter(f"{_P}sldId")):
        progress.page(number)
        member = members.get(slide.get(f"{_R}id", ""))
        if member is None:
            raise DocumentError(DocumentCode.DAMAGED, f"slide {number + 1} is missing in the file", number)
        builder.page()
        flow.restart()
        root = package.xml(member)
        if root.get("show") in _OFF:
            hidden.append(number + 1)
        _walk(root, flow, {})
        for link in package.links(member):
            if link.kind == "notesSlide":
                flow.block()
                _walk(package.xml(link.member), flow, {})
    notes = (f"{len(hidden)} hidden slides were read as well, the first is slide {hidden[0]}",) if hidden else ()
    return builder.build(Format.PPTX, PARSER, (*_notes(package), *notes))


def _main(package: Package, root: str) -> str:
    """Return the main part. Raises DocumentError for another vocabulary, whose text would be lost."""
    main = package.main()
    tag = str(package.xml(main).tag)
    if tag != root:
        message = f"{main} begins with {tag} instead of {root}; save the file in its ordinary format"
        raise DocumentError(DocumentCode.UNSUPPORTED_FORMAT, message)
    return main


def _heading_styles(package: Package, members: list[str]) -> dict[str, int]:
    """Return the levels of heading styles, by key."""
    levels: dict[str, int] = {}
    for member in members:
        for style in package.xml(member).iter(f"{_W}style"):
            name = style.find(f"{_W}name")
            match = _NAMED_HEADING.fullmatch(name.get(f"{_W}val", "")) if name is not None else None
            if match:
                levels[style.get(f"{_W}styleId", "")] = int(match[1])
    return levels


def _walk(root: etree._Element, flow: Flow, levels: Mapping[str, int]) -> None:
    """Translate elements into calls of a flow, without recursion, since the XML may be nested deeply."""
    walk = etree.iterwalk(root, events=("start", "end"))
    for event, element in walk:
        if element.tag in _SKIPPED:
            if event == "start":
                walk.skip_subtree()
            continue
        vocabulary, _, word = str(element.tag).rpartition("}")
        if vocabulary + "}" in {_W, _A}:
            if event == "start":
                _enter(element, word, flow, _level(element, levels) if word == "p" else None)
            else:
                _leave(word, flow, _level(element, levels) if word == "p" else None)


def _enter(element: etree._Element, word: str, flow: Flow, level: int | None) -> None:
    if word == "t":
        flow.exact(element.text or "")
    elif word == "p":
        flow.block()
        if level is not None:
            flow.enter_heading()
    elif word == "tab" and element.getparent().tag != f"{_W}tabs":
        flow.exact("\t")
    elif word in {"br", "cr"}:
        flow.line_break()
    elif word == "noBreakHyphen":
        flow.exact("-")
    elif word == "tbl":
        flow.enter_table()
    elif word == "tr":
        flow.enter_row()
    elif word == "tc":
        flow.enter_cell(columns=_columns(element))


def _leave(word: str, flow: Flow, level: int | None) -> None:
    if word == "p":
        if level is not None:
            flow.leave_heading(level)
        flow.block()
    elif word == "tbl":
        flow.leave_table()
    elif word == "tr":
        flow.block(ends_row=True)
    elif word == "tc":
        flow.leave_cell()


def _level(paragraph: etree._Element, levels: Mapping[str, int]) -> int | None:
    """Return the heading level of a paragraph, None for other paragraphs."""
    style = paragraph.find(f"{_W}pPr/{_W}pStyle")
    if style is not None:
        return levels.get(style.get(f"{_W}val", ""))
    body = paragraph.getparent()
    shape = body.getparent() if body is not None and body.tag == f"{_P}txBody" else None
    place = shape.find(f"{_P}nvSpPr/{_P}nvPr/{_P}ph") if shape is not None else None
    return _TITLES.get(place.get("type", "")) if place is not None else None


def _is_hidden(run: etree._Element) -> bool:
    """Tell whether a run of Word has text that is not shown."""
    mark = run.find(f"{_W}rPr/{_W}vanish")
    return mark is not None and mark.get(f"{_W}val") not in _OFF and run.find(f"{_W}t") is not None


def _columns(cell: etree._Element) -> int:
    """Return the number of columns of a cell; PowerPoint keeps a cell for each covered column."""
    span = cell.find(f"{_W}tcPr/{_W}gridSpan")
    value = span.get(f"{_W}val", "1") if span is not None else "1"
    return min(max(int(value), 1), 1000) if value.isdigit() else 1


def _notes(package: Package) -> tuple[str, ...]:
    inside = [member for member in package.members if "/embeddings/" in member]
    return (f"{len(inside)} embedded files were not read, the first is {inside[0]}",) if inside else ()
