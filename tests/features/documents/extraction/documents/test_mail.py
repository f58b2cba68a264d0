"""Tests of mails with attachments."""

from __future__ import annotations

from email.message import EmailMessage

import pytest

from features.documents.extraction.documents.document import Document
from features.documents.extraction.documents.limits import Limits
from features.documents.extraction.documents.parsing import parse
from features.documents.extraction.errors import DocumentCode, DocumentError


def mail(subject: str, body: str = "Hello.\n") -> EmailMessage:
    message = EmailMessage()
    message["From"] = "Änne <a@example.com>"
    message["Subject"] = subject
    message.set_content(body)
    return message


def read(message: EmailMessage) -> Document:
    return parse(message.as_bytes(), "a.eml", Limits())


def nested(depth: int) -> EmailMessage:
    message = mail(f"level {depth}")
    if depth > 1:
        message.add_attachment(nested(depth - 1))
    return message


def test_a_mail_is_its_headers_and_its_body() -> None:
    document = read(mail("Bill 7 für März"))
    assert document.text == "From: Änne <a@example.com>\nSubject: Bill 7 für März\n\nHello.\n"
    assert [document.text[heading.start : heading.end] for heading in document.headings] == ["Bill 7 für März"]
    assert [(page.start, page.end) for page in document.pages] == [(0, len(document.text))]


def test_of_two_forms_of_a_body_the_plain_one_is_read() -> None:
    message = mail("a", "plain")
    message.add_alternative("<p>marked up", subtype="html")
    assert read(message).text.endswith("\n\nplain\n")


def test_a_body_of_html_is_read() -> None:
    message = EmailMessage()
    message["Subject"] = "a"
    message.set_content("<table><tr><td>Total<td>7</table>", subtype="html")
    document = read(message)
    assert document.text == "Subject: a\n\nTotal\t7"
    assert [document.text[cell.start : cell.end] for cell in document.cells] == ["Total", "7"]


def test_attachments_are_named_and_documents_among_them_read_as_pages_of_their_own() -> None:
    message = mail("a")
    message.add_attachment(b"<table><tr><td>x", maintype="text", subtype="html", filename="t.html")
    message.add_attachment(b"<table><tr><td>y", maintype="text", subtype="html", filename="u.html")
    document = read(message)
    first, second, third = (document.text[page.start : page.end] for page in document.pages)
    assert first.endswith("Attachment: t.html (text/html)")
    assert document.parser.startswith("mail 3; html 2 ")
    assert (second, third) == ("x\n\nAttachment: u.html (text/html)", "y")
    assert [(cell.table, document.text[cell.start : cell.end]) for cell in document.cells] == [(0, "x"), (1, "y")]


def test_an_attachment_that_is_not_read_is_noted() -> None:
    message = mail("a")
    message.add_attachment(b"GIF89\x00", maintype="image", subtype="gif", filename="logo.gif")
    document = read(message)
    assert document.text.endswith("Attachment: logo.gif (image/gif)")
    assert len(document.notes) == 1
    assert document.notes[0].startswith("logo.gif (image/gif, 6 bytes) was not read: unsupported_format: ")


def test_mails_in_mails_are_read_up_to_a_depth() -> None:
    document = read(nested(3))
    assert [line for line in document.text.splitlines() if line.startswith("Subject")] == [
        "Subject: level 3",
        "Subject: level 2",
        "Subject: level 1",
    ]


def test_a_mail_nested_too_deeply_costs_itself_and_not_the_mails_around_it() -> None:
    document = read(nested(5))
    assert [line for line in document.text.splitlines() if line.startswith("Subject")] == [
        *("Subject: level 5", "Subject: level 4", "Subject: level 3")
    ]
    (note,) = document.notes
    assert DocumentCode.NESTED_TOO_DEEPLY in note
    assert "more than 3 deep" in note


def test_parts_that_lie_endlessly_in_one_another_are_refused() -> None:
    parts = "".join(f'Content-Type: multipart/mixed; boundary="b{n}"\n\n--b{n}\n' for n in range(2000))
    with pytest.raises(DocumentError) as refusal:
        parse(("From: a@example.com\n" + parts).encode(), "a.eml", Limits())
    assert refusal.value.code == DocumentCode.NESTED_TOO_DEEPLY


def test_an_attachment_without_text_is_noted() -> None:
    message = mail("look")
    message.add_attachment(b"<p> ", maintype="text", subtype="html", filename="t.html")
    document = read(message)
    assert document.text.endswith("Attachment: t.html (text/html)")
    assert "t.html has no text" in document.notes[0]


def test_an_attachment_that_its_parser_trips_over_is_noted_and_the_mail_read() -> None:
    message = mail("a", "the body")
    stumbling = b'<table><tr><td colspan="%s">x</table>' % (b"9" * 5000)  # more digits than Python converts to a number
    message.add_attachment(stumbling, maintype="text", subtype="html", filename="t.html")
    document = read(message)
    assert "the body" in document.text
    assert [note.split(": ")[:2] for note in document.notes] == [
        [f"t.html (text/html, {len(stumbling)} bytes) was not read", "damaged"]
    ]


ANSWERED_IN_TWO_FORMS = b"""Subject: a
Content-Type: multipart/alternative; boundary=one

--one
Content-Type: text/plain

the body
--one
Content-Type: multipart/mixed; boundary=two

--two
Content-Type: text/html

<p>the body</p>
--two
Content-Type: text/html; name=t.html
Content-Disposition: inline; filename=t.html

<p>attached</p>
--two
Content-Type: image/png
Content-Disposition: inline; filename=logo.png

no document
--two--
--one--
"""


def test_an_attachment_within_another_form_of_the_body_is_read() -> None:
    document = parse(ANSWERED_IN_TWO_FORMS, "a.eml", Limits())
    assert document.text == "Subject: a\n\nthe body\n\nAttachment: t.html (text/html)\n\nattached"
    assert document.notes == ()


def test_a_mail_that_is_one_file_and_no_text_has_it_attached() -> None:
    document = parse(b"Subject: a\nContent-Type: text/csv; name=t.csv\n\nNut;7", "a.eml", Limits())
    assert document.text == "Subject: a\n\nAttachment: t.csv (text/csv)\n\nNut;7"
    inner = parse(b"Subject: a\nContent-Type: message/rfc822\n\nSubject: b\n\nthe body", "a.eml", Limits())
    assert "Subject: b\n\nthe body" in inner.text


def test_an_encoding_that_is_none_of_texts_is_left_aside() -> None:
    document = parse(b"Subject: a\nContent-Type: text/plain; charset=hex\n\nthe body", "a.eml", Limits())
    assert document.text.endswith("the body")


@pytest.mark.parametrize(
    ("limits", "code"),
    [
        (Limits(max_characters=150), DocumentCode.TOO_LARGE),
        (Limits(max_pages=3), DocumentCode.TOO_MANY_PAGES),
    ],
)
def test_a_mail_with_all_its_attachments_is_held_to_the_limits_of_one_document(
    limits: Limits, code: DocumentCode
) -> None:
    message = mail("a")
    for number in range(3):
        message.add_attachment(b"<p>" + b"x" * 60, maintype="text", subtype="html", filename=f"{number}.html")
    with pytest.raises(DocumentError) as refusal:
        parse(message.as_bytes(), "a.eml", limits)
    assert refusal.value.code == code
