"""PDFs that only tests need: protected by a password, endless, with glyphs for several characters."""

from __future__ import annotations

import hashlib

from lab.extraction.pdf_writer import PdfPage, frame, pdf_objects

_PADDING = bytes.fromhex("28BF4E5E4E758A4164004E56FFFA01082E2E00B6D0683E802F0CA9FE6453697A")
_KEY_BYTES = 5


def with_characters(pages: list[PdfPage], characters: dict[str, str]) -> bytes:
    """Return a PDF whose glyphs stand for other characters, for several or for none."""
    objects = pdf_objects(pages)
    lines = b" ".join(
        b"<%s> <%s>" % (sign.encode("cp1252").hex().encode(), text.encode("utf-16-be").hex().encode())
        for sign, text in characters.items()
    )
    table = b"begincmap 1 begincodespacerange <00> <ff> endcodespacerange %d beginbfchar %s endbfchar endcmap"
    content = table % (len(characters), lines)
    objects.append(b"<< /Length %d >>\nstream\n%s\nendstream" % (len(content), content))
    objects[2] = objects[2].replace(b">>", b"/ToUnicode %d 0 R >>" % len(objects))
    return frame(objects)


def endless_page(number: int) -> bytes:
    """Return a PDF whose page `number`, from 0, draws forms that draw two forms each, 25 deep: 33 million."""
    objects = pdf_objects([PdfPage() for _ in range(number + 1)])
    first = len(objects) + 1
    objects[-2] = objects[-2].replace(b"/XObject <<", b"/XObject << /X %d 0 R" % first)
    objects[-1] = b"<< /Length 5 >>\nstream\n/X Do\nendstream"
    for depth in range(25):
        resources = b"/Resources << /XObject << /X %d 0 R >> >>" % (first + depth + 1)
        head = b"<< /Type /XObject /Subtype /Form /BBox [0 0 9 9] %s /Length 11 >>" % resources
        objects.append(head + b"\nstream\n/X Do /X Do\nendstream")
    objects.append(b"<< /Type /XObject /Subtype /Form /BBox [0 0 9 9] /Length 0 >>\nstream\n\nendstream")
    return frame(objects)


def with_field(value: str, *, has_look: bool) -> bytes:
    """Return a PDF with a form field that is filled in; without an appearance, a reader must create one."""
    objects = pdf_objects([PdfPage()])
    field = len(objects) + 1
    objects[3] = objects[3].replace(b"/Rotate", b"/Annots [%d 0 R] /Rotate" % field)
    fields = b"/AcroForm << /Fields [%d 0 R] /DR << /Font << /F 3 0 R >> >> /NeedAppearances %s >> >>"
    objects[0] = objects[0].replace(b">>", fields % (field, b"false" if has_look else b"true"))
    look = b"/AP << /N %d 0 R >>" % (field + 1) if has_look else b""
    head = b"<< /Type /Annot /Subtype /Widget /FT /Tx /T (name) /F 4 /DA (/F 10 Tf 0 g) /Rect [100 740 200 760]"
    objects.append(b"%s /V (%s) %s >>" % (head, value.encode("cp1252"), look))
    content = b"/Tx BMC BT /F 10 Tf 2 5 Td (%s) Tj ET EMC" % value.encode("cp1252")
    form = b"<< /Type /XObject /Subtype /Form /BBox [0 0 100 20] /Resources << /Font << /F 3 0 R >> >> /Length %d >>"
    objects.append(b"%s\nstream\n%s\nendstream" % (form % len(content), content))
    return frame(objects)


def with_password(pages: list[PdfPage], password: bytes) -> bytes:
    """Return a PDF that opens with a password: 40 bits of RC4, revision 2 of the standard handler (ISO 32000, 7.6.4).

    Its streams are not encrypted: without the password they are never read.
    """
    objects = pdf_objects(pages)
    padded = (password + _PADDING)[:32]
    owner = _rc4(hashlib.md5(padded).digest()[:_KEY_BYTES], padded)
    identity = b"0123456789abcdef"
    rights = (-4).to_bytes(4, "little", signed=True)
    key = hashlib.md5(padded + owner + rights + identity).digest()[:_KEY_BYTES]
    user = _rc4(key, _PADDING)
    handler = b"<< /Filter /Standard /V 1 /R 2 /P -4 /O <%s> /U <%s> >>"
    objects.append(handler % (owner.hex().encode(), user.hex().encode()))
    name = identity.hex().encode()
    return frame(objects, b"/Encrypt %d 0 R /ID [<%s> <%s>] " % (len(objects), name, name))


def _rc4(key: bytes, content: bytes) -> bytes:
    state = list(range(256))
    j = 0
    for i in range(256):
        j = (j + state[i] + key[i % len(key)]) % 256
        state[i], state[j] = state[j], state[i]
    i = j = 0
    out = bytearray()
    for byte in content:
        i = (i + 1) % 256
        j = (j + state[i]) % 256
        state[i], state[j] = state[j], state[i]
        out.append(byte ^ state[(state[i] + state[j]) % 256])
    return bytes(out)
