"""Tests of text, Markdown, JSON and HTML: the visible text, and the positions of headings and cells."""

from __future__ import annotations

import pytest

from features.documents.extraction.documents.document import Document
from features.documents.extraction.documents.limits import Limits
from features.documents.extraction.documents.parsing import parse
from features.documents.extraction.errors import DocumentCode, DocumentError


def read(content: str | bytes, name: str, limits: Limits | None = None) -> Document:
    return parse(content.encode() if isinstance(content, str) else content, name, limits or Limits())


def cells(document: Document) -> list[tuple[int, int, int, str]]:
    return [(cell.table, cell.row, cell.column, document.text[cell.start : cell.end]) for cell in document.cells]


def headings(document: Document) -> list[tuple[int, str]]:
    return [(heading.level, document.text[heading.start : heading.end]) for heading in document.headings]


def test_plain_text_is_canonical() -> None:
    document = read("\ufeffCafe\u0301\r\nInvo\u00adice", "a.txt")
    assert (document.text, document.format) == ("Café\nInvoice", "txt")
    assert [(page.start, page.end) for page in document.pages] == [(0, 12)]


def test_text_in_another_encoding_is_read_and_noted() -> None:
    document = read("Größe 7 €".encode("cp1252"), "a.txt")
    assert document.text == "Größe 7 €"
    assert document.notes == ("read as Windows-1252: it is not UTF-8",)
    assert read("Größe".encode("utf-16"), "a.txt").notes == ()


@pytest.mark.parametrize("content", [b"a" * 5000 + b"\x00\x01", b"\x81\x8d", b"\xff\xfe\x00\xd8a"])
def test_bytes_that_are_no_text_are_refused(content: bytes) -> None:
    with pytest.raises(DocumentError) as refusal:
        read(content, "a.txt")
    assert refusal.value.code == DocumentCode.NOT_TEXT


def test_a_wrong_encoding_is_named() -> None:
    with pytest.raises(DocumentError, match="byte 0 is invalid in cp1252; save the file as UTF-8"):
        read(b"\x81\x8d", "a.txt")


def test_markdown_keeps_its_text_and_knows_its_headings() -> None:
    text = "# One\ntext\n```\n# code\n```\n###   Three ##\nend"
    document = read(text, "a.md")
    assert document.text == text
    assert headings(document) == [(1, "One"), (3, "Three")]


def test_json_is_read_as_it_stands() -> None:
    assert read('{"total": 1.10}', "a.json").text == '{"total": 1.10}'
    with pytest.raises(DocumentError, match="not JSON") as refusal:
        read('{"total": ', "a.json")
    assert refusal.value.code == DocumentCode.DAMAGED


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("<p>a<b>b</b> c\n d</p>e", "ab c d\ne"),
        ("<p>one<p>two", "one\ntwo"),
        ("a<br>b<br><br>c", "a\nb\n\nc"),
        ("<script>x</script><style>y</style><p>shown", "shown"),
        ("a &amp; b &euro;<!-- c -->", "a & b €"),
        ("<pre>  a\n   b</pre>c", "  a\n   b\nc"),
        ("<ul><li>one<li>two</ul>", "one\ntwo"),
        ("<i>a</i> <i>b</i>", "a b"),
    ],
)
def test_html_becomes_the_text_that_is_shown(markup: str, text: str) -> None:
    assert read(f"<html>{markup}", "a.html").text == text


def test_hidden_text_of_html_is_read_and_noted() -> None:
    document = read("<html><p hidden>a<b>b</b><p style='display: none'>c<p hidden> <p>shown", "a.html")
    assert document.text == "ab\nc\nshown"
    assert len(document.notes) == 1
    assert document.notes[0].startswith("3 ")
    assert read("<html><p>shown<p hidden> ", "a.html").notes == ()


def test_cells_of_html_know_their_rows_and_columns() -> None:
    document = read(
        "<table><tr><td></td><td><p>1</p></td><td rowspan=2>2<tr><td colspan=2>x<tr><td>a<td>b<td>c</table>"
        "<table><tr><th>other</table>",
        "a.html",
    )
    assert document.text == "\t1\t2\nx\na\tb\tc\nother"
    assert cells(document) == [
        (0, 0, 1, "1"),
        (0, 0, 2, "2"),
        (0, 1, 0, "x"),
        (0, 2, 0, "a"),
        (0, 2, 1, "b"),
        (0, 2, 2, "c"),
        (1, 0, 0, "other"),
    ]


def test_a_table_in_a_cell_counts_for_itself() -> None:
    document = read("<table><tr><td>a<table><tr><td>b<td>c</table><td>d</table>", "a.html")
    assert document.text == "a\nb\tc\td"
    assert cells(document) == [(0, 0, 0, "a\nb\tc"), (1, 0, 0, "b"), (1, 0, 1, "c"), (0, 0, 1, "d")]


def test_headings_of_html_are_marked() -> None:
    document = read("<title>Bill</title><h2>Sum <i>total</i></h2><h3></h3>", "a.html")
    assert headings(document) == [(1, "Bill"), (2, "Sum total")]


def test_html_is_read_in_the_encoding_that_it_declares() -> None:
    assert read("<html><meta charset=iso-8859-5><p>Счёт".encode("iso-8859-5"), "a.html").text == "Счёт"


def test_markup_that_is_nested_deeply_is_read() -> None:
    assert read("<html>" + "<b>" * 3000 + "x", "a.html").text == "x"


@pytest.mark.parametrize("name", ["a.txt", "a.html", "a.md"])
def test_a_text_over_the_limit_is_refused(name: str) -> None:
    with pytest.raises(DocumentError, match="more than 9 characters") as refusal:
        read("0123456789", name, Limits(max_characters=9))
    assert refusal.value.code == DocumentCode.TOO_LARGE


def test_a_file_over_the_limit_is_refused() -> None:
    with pytest.raises(DocumentError, match=r"a\.txt has 10 bytes; the limit is 9") as refusal:
        read("0123456789", "a.txt", Limits(max_bytes=9))
    assert refusal.value.code == DocumentCode.TOO_LARGE
