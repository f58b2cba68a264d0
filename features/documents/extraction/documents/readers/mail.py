"""Mail: the visible headers, the body, and every attachment by name, read if it is a document.

The caller supplies the function that reads attachments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from email.message import EmailMessage, MIMEPart
from email.parser import BytesParser
from email.policy import default

from features.documents.extraction.documents.builder import TextBuilder
from features.documents.extraction.documents.document import Document
from features.documents.extraction.documents.formats import Format
from features.documents.extraction.documents.joining import joined
from features.documents.extraction.documents.limits import Limits
from features.documents.extraction.documents.readers import html
from features.documents.extraction.documents.readers.plain import decode
from features.documents.extraction.errors import DocumentCode, DocumentError

PARSER = "mail 3"

ReadAttachment = Callable[[bytes, str, int], Document]
"""Of its bytes, its name and its nesting depth."""

_FORMS_OF_A_BODY = frozenset({"alternative", "related"})
_HEADERS = ("From", "To", "Cc", "Date", "Subject")
_WHOLE_READING = frozenset({DocumentCode.TOO_LARGE, DocumentCode.TOO_MANY_PAGES})


def read_mail(content: bytes, limits: Limits, *, depth: int, read_attachment: ReadAttachment) -> Document:
    """Read a mail; unreadable attachments, and mails nested too deeply, are noted by the mail around them."""
    if depth > limits.max_nesting:
        what = f"mails are nested more than {limits.max_nesting} deep; send the inner ones separately"
        raise DocumentError(DocumentCode.NESTED_TOO_DEEPLY, what)
    try:
        return _read(BytesParser(policy=default).parsebytes(content), limits, depth, read_attachment)
    except RecursionError:
        what = "the parts of this mail are nested too deeply"
        raise DocumentError(DocumentCode.NESTED_TOO_DEEPLY, what) from None


def _read(message: EmailMessage, limits: Limits, depth: int, read_attachment: ReadAttachment) -> Document:
    documents = [_head(message, limits), *_body(message, limits)]
    notes = [note for document in documents for note in document.notes]
    for name, kind, content in _attachments(message):
        documents.append(_named(name, kind, limits))
        try:
            attachment = read_attachment(content, name, depth)
        except DocumentError as error:
            if error.code in _WHOLE_READING:
                raise
            notes.append(f"{name} ({kind}, {len(content)} bytes) was not read: {error.code}: {error.message}")
        else:
            documents.append(attachment)
            notes += [f"{name}: {note}" for note in attachment.notes]
            _check_size(documents, limits)
    return joined(documents, notes=tuple(notes))


def _check_size(documents: list[Document], limits: Limits) -> None:
    """Hold a mail with its attachments to the limits of one document."""
    if sum(len(document.text) for document in documents) > limits.max_characters:
        message = f"mail and attachments have more than {limits.max_characters} characters of text; send fewer"
        raise DocumentError(DocumentCode.TOO_LARGE, message)
    if sum(len(document.pages) for document in documents) > limits.max_pages:
        message = f"mail and attachments have more than {limits.max_pages} pages; send fewer"
        raise DocumentError(DocumentCode.TOO_MANY_PAGES, message)


def _head(message: EmailMessage, limits: Limits) -> Document:
    builder = TextBuilder(limits)
    for header in _HEADERS:
        value = message[header]
        if value is not None:
            builder.text(f"{chr(10) if builder.length else ''}{header}: ")
            start = builder.length
            builder.text(" ".join(str(value).split()))
            if header == "Subject":
                builder.heading(start, level=1)
    return builder.build(Format.MAIL, PARSER)


def _body(message: EmailMessage, limits: Limits) -> Iterator[Document]:
    """Yield the body, as plain text if available."""
    body = message.get_body(("plain", "html"))
    if body is None:
        return
    content = _bytes_of(body)
    text, notes = decode(content, body.get_content_charset())
    if body.get_content_type() == "text/html":
        yield replace(html.document_of(text, limits, notes), pages=())
        return
    builder = TextBuilder(limits)
    builder.text(text)
    yield replace(builder.build(Format.MAIL, PARSER, notes), pages=())


def _attachments(message: EmailMessage) -> Iterator[tuple[str, str, bytes]]:
    """Yield name, type and content of a mail's parts besides its body."""
    for number, part in enumerate(_parts_beside_the_body(message), start=1):
        kind = part.get_content_type()
        if kind == "message/rfc822":
            inner = part.get_content()
            yield part.get_filename() or f"mail {number}.eml", kind, inner.as_bytes()
        elif part.is_multipart():
            yield part.get_filename() or f"parts {number}.eml", kind, part.as_bytes()
        else:
            yield part.get_filename() or f"attachment {number}", kind, _bytes_of(part)


def _parts_beside_the_body(message: EmailMessage) -> Iterator[MIMEPart]:
    """Yield all parts except the body, its alternatives, and pictures in it; some mails are one part and no body.

    `iter_attachments` would miss parts inside an alternative of the body, where some programs put everything.
    """
    body = message.get_body(("plain", "html"))
    waiting: list[tuple[MIMEPart, bool]] = [(message, False)]
    while waiting:
        part, is_in_body = waiting.pop()
        if part.get_content_maintype() == "multipart" and part.is_multipart():
            is_in_body = is_in_body or part.get_content_subtype() in _FORMS_OF_A_BODY
            waiting += [(inner, is_in_body) for inner in reversed(list(part.iter_parts()))]
        elif part is not body and not (is_in_body and _is_shown_in_body(part)):
            yield part


def _is_shown_in_body(part: MIMEPart) -> bool:
    is_text = part.get_content_maintype() == "text" and part.get_filename() is None
    return not part.is_attachment() and (is_text or part.get_content_maintype() == "image")


def _bytes_of(part: MIMEPart) -> bytes:
    payload = part.get_payload(decode=True)
    assert isinstance(payload, bytes)
    return payload


def _named(name: str, kind: str, limits: Limits) -> Document:
    builder = TextBuilder(limits)
    builder.text("Attachment: ")
    start = builder.length
    builder.text(f"{name} ({kind})")
    builder.heading(start, level=2)
    return replace(builder.build(Format.MAIL, PARSER), pages=())
