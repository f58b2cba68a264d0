"""HTML: the visible text, with headings and table cells.

Runs no script and loads nothing; hidden text is read, and noted.
"""

from __future__ import annotations

import re
from importlib.metadata import version

from selectolax.lexbor import LexborHTMLParser, LexborNode

from features.documents.extraction.documents.builder import TextBuilder
from features.documents.extraction.documents.document import Document
from features.documents.extraction.documents.formats import Format
from features.documents.extraction.documents.limits import Limits
from features.documents.extraction.documents.readers.flow import Flow
from features.documents.extraction.documents.readers.plain import decode

PARSER = f"html 2 selectolax {version('selectolax')}"

_CHARSET = re.compile(rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?\s*([\w.:-]+)", re.I)
_SKIPPED = frozenset({"script", "style", "noscript", "template", "svg", "iframe", "object", "select", "-comment"})
_BLOCK = re.compile(
    "address|article|aside|blockquote|body|caption|dd|details|dialog|div|dl|dt|fieldset|figcaption|figure|footer|form|"
    "h1|h2|h3|h4|h5|h6|header|hr|html|legend|li|main|nav|ol|p|pre|section|summary|tbody|tfoot|thead|title|tr|ul"
)
_ROWS = frozenset({"tbody", "tfoot", "thead", "tr"})
_CELLS = frozenset({"td", "th"})
_HEADINGS = {f"h{level}": level for level in range(1, 7)} | {"title": 1}
_HIDDEN = re.compile(r"display\s*:\s*none|visibility\s*:\s*hidden", re.I)


def read_html(content: bytes, limits: Limits) -> Document:
    """Read HTML in its declared encoding, else UTF-8."""
    declared = _CHARSET.search(content[:4096])
    text, notes = decode(content, declared[1].decode("ascii") if declared else None)
    return document_of(text, limits, notes)


def document_of(markup: str, limits: Limits, notes: tuple[str, ...] = ()) -> Document:
    """Return the document that some markup shows."""
    root = LexborHTMLParser(markup).root
    builder = TextBuilder(limits)
    writer = _Writer(Flow(builder))
    if root is not None:
        _walk(root, writer)
    hidden = (f"{writer.num_hidden} pieces of hidden text were read as well",) if writer.num_hidden else ()
    return builder.build(Format.HTML, PARSER, (*notes, *hidden))


def _walk(root: LexborNode, writer: _Writer) -> None:
    """Visit every node without recursion: markup may be nested a million deep."""
    node: LexborNode | None = root
    while node is not None:
        child = None if _is_skipped(node) else node.child
        if not _is_skipped(node):
            writer.enter(node)
        if child is not None:
            node = child
            continue
        while node is not None:
            if not _is_skipped(node):
                writer.leave(node)
            if node.mem_id == root.mem_id:
                return
            if node.next is not None:
                node = node.next
                break
            node = node.parent


def _is_skipped(node: LexborNode) -> bool:
    return not node.is_text_node and node.tag in _SKIPPED


def _is_hidden(node: LexborNode) -> bool:
    attributes = node.attributes
    return "hidden" in attributes or _HIDDEN.search(attributes.get("style") or "") is not None


class _Writer:
    """Translates elements into calls of a flow."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self._preformatted = 0
        self._hidden = 0
        self.num_hidden = 0

    def enter(self, node: LexborNode) -> None:
        tag, flow = node.tag or "", self._flow
        if node.is_text_node:
            put, text = flow.exact if self._preformatted else flow.words, node.text_content or ""
            put(text)
            self.num_hidden += self._hidden > 0 and not text.isspace()
        elif tag == "br":
            flow.line_break()
        elif tag == "table":
            flow.enter_table()
        elif tag == "tr":
            flow.enter_row()
        elif tag in _CELLS:
            flow.enter_cell(columns=_span(node, "colspan"), rows=_span(node, "rowspan"))
        elif _BLOCK.fullmatch(tag):
            flow.block(ends_row=tag in _ROWS)
        if tag in _HEADINGS:
            flow.enter_heading()
        self._preformatted += tag == "pre"
        self._hidden += not node.is_text_node and _is_hidden(node)

    def leave(self, node: LexborNode) -> None:
        tag, flow = node.tag or "", self._flow
        self._preformatted -= tag == "pre"
        self._hidden -= not node.is_text_node and _is_hidden(node)
        if tag in _HEADINGS:
            flow.leave_heading(_HEADINGS[tag])
        if tag == "table":
            flow.leave_table()
        elif tag in _CELLS:
            flow.leave_cell()
        elif _BLOCK.fullmatch(tag):
            flow.block(ends_row=tag in _ROWS)


def _span(node: LexborNode, name: str) -> int:
    value = node.attributes.get(name) or "1"
    return min(max(int(value), 1), 1000) if value.isascii() and value.isdigit() else 1  # 1000: HTML's own limit
