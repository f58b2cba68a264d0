"""One page of a PDF: its text, and a box for every word.

Not thread-safe: PDFium has one state per process. The functions for boxes are bound here a second time, without
releasing the interpreter's lock and without argument objects: they are called twice for each word of a page.
"""

from __future__ import annotations

import ctypes
import math
import re
from itertools import repeat
from typing import Any

import numpy as np
import pypdfium2
import pypdfium2.raw as pdfium
from numpy.typing import NDArray

from features.documents.extraction.documents.canonical import canonical
from features.documents.extraction.documents.page_text import PageText
from features.documents.extraction.documents.reading_order.upright import quarter_turn, run_against
from features.documents.extraction.errors import DocumentCode, DocumentError

_WITHOUT_TEXT = {pdfium.FPDF_ANNOT_LINK, pdfium.FPDF_ANNOT_POPUP}
_UNKNOWN = "\ufffe"  # PDFium's replacement for hyphens at line ends and for glyphs without a character
_SOFT_HYPHEN = "\u00ad"
_WORD = re.compile(rf"[^\s{_SOFT_HYPHEN}{_UNKNOWN}]+")


def _bound(function: Any, *arguments: Any) -> Any:
    """Return a function of PDFium that takes addresses as plain integers."""
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address is not None
    return ctypes.PYFUNCTYPE(ctypes.c_int, *arguments)(address)


_loose_char_box = _bound(pdfium.FPDFText_GetLooseCharBox, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)


def read_page(pdf: pypdfium2.PdfDocument, number: int) -> PageText:
    """Return the text of a page. Raises DocumentError if it cannot be read."""
    page = _shown_page(pdf, number)
    text_page = page and pdfium.FPDFText_LoadPage(page)
    try:
        if not text_page:
            message = f"page {number + 1} of the PDF cannot be read; print the PDF again, or leave this page out"
            raise DocumentError(DocumentCode.DAMAGED, message, number)
        return _page_text(page, text_page)
    finally:
        if text_page:
            pdfium.FPDFText_ClosePage(text_page)
        if page:
            pdfium.FPDF_ClosePage(page)


def _shown_page(pdf: pypdfium2.PdfDocument, number: int) -> Any:
    """Return a page with the text of form fields and notes merged into its own; null if it cannot be read."""
    page = pdfium.FPDF_LoadPage(pdf.raw, number)
    if page and any(_is_shown(page, index) for index in range(pdfium.FPDFPage_GetAnnotCount(page))):
        if pdf.formenv:  # creates missing appearances of fields
            pdfium.FORM_OnAfterLoadPage(page, pdf.formenv.raw)
            pdfium.FORM_OnBeforeClosePage(page, pdf.formenv.raw)
        pdfium.FPDFPage_Flatten(page, pdfium.FLAT_NORMALDISPLAY)
        pdfium.FPDF_ClosePage(page)
        page = pdfium.FPDF_LoadPage(pdf.raw, number)
    return page


def _is_shown(page: Any, index: int) -> bool:
    annotation = pdfium.FPDFPage_GetAnnot(page, index)
    kind = pdfium.FPDFAnnot_GetSubtype(annotation)
    pdfium.FPDFPage_CloseAnnot(annotation)
    return kind not in _WITHOUT_TEXT


def _page_text(page: Any, text_page: Any) -> PageText:
    raw = _raw_text(text_page)
    words = np.array([match.span() for match in _WORD.finditer(raw)], np.int64).reshape(-1, 2)
    places = _units(raw)[words]
    boxes, steps = _word_boxes(text_page, places)
    turn = quarter_turn(*np.nansum(steps, axis=0).tolist())
    canonical_text = canonical(_without_unknown(raw, text_page))
    return PageText(
        text=canonical_text.text,
        width=pdfium.FPDF_GetPageWidthF(page),
        height=pdfium.FPDF_GetPageHeightF(page),
        spans=canonical_text.offsets[words],
        boxes=_shown(boxes, page),
        ocr_scores=np.full(len(words), np.nan, np.float32),
        turn=turn - max(pdfium.FPDFPage_GetRotation(page), 0),
        against=_against(text_page, places[:, 0], steps, turn),
    )


def _raw_text(text_page: Any) -> str:
    """Return the characters of a page, as many in UTF-16 as PDFium counts."""
    count = pdfium.FPDFText_CountChars(text_page)
    if count <= 0:
        return ""
    units = np.zeros(2 * count + 2, np.uint16)
    written = pdfium.FPDFText_GetText(text_page, 0, count, units.ctypes.data_as(ctypes.POINTER(ctypes.c_ushort))) - 1
    if written != count:  # some were left out: read them one by one
        units = np.array([pdfium.FPDFText_GetUnicode(text_page, index) for index in range(count)], np.uint32)
        units = np.where((units == 0) | (units > 0xFFFF), ord(_UNKNOWN), units).astype(np.uint16)
    return units[:count].tobytes().decode("utf-16-le", "surrogatepass")


def _units(text: str) -> NDArray[np.int64]:
    """Return for each offset of a text the offset in UTF-16, which PDFium uses."""
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    return np.concatenate([[0], np.cumsum(1 + (points > 0xFFFF), dtype=np.int64)])


def _without_unknown(raw: str, text_page: Any) -> str:
    """Replace hyphens at line ends by nothing between lowercase letters, else by a hyphen; unknown glyphs by U+FFFD."""
    if _UNKNOWN not in raw:
        return raw
    units, characters = _units(raw), list(raw)
    for match in re.finditer(_UNKNOWN, raw):
        index = match.start()
        if pdfium.FPDFText_IsHyphen(text_page, int(units[index])) == 1:
            is_in_word = raw[index - 1 : index].islower() and raw[index + 1 : index + 2].islower()
            characters[index] = _SOFT_HYPHEN if is_in_word else "-"
        else:
            characters[index] = "\ufffd"
    return "".join(characters)


def _word_boxes(text_page: Any, words: NDArray[np.int64]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return a box for each word, around its first and last character: left, top, right, bottom in PDF coordinates.

    Also returns by how much each word advances to the right and downward.
    """
    count = len(words)
    corners = np.zeros((count, 2, 4), np.float32)
    indexes = np.stack([words[:, 0], words[:, 1] - 1], 1).ravel().tolist()
    address = corners.ctypes.data
    handle = ctypes.cast(text_page, ctypes.c_void_p).value
    places = range(address, address + 32 * count, 16)
    results = list(map(_loose_char_box, repeat(handle), indexes, places))
    if not all(results):
        corners[~np.array(results, bool).reshape(count, 2)] = np.nan
    lows, highs = np.fmin(corners[:, 0], corners[:, 1]), np.fmax(corners[:, 0], corners[:, 1])
    steps = (corners[:, 1, :2] - corners[:, 0, :2]) * np.array([1, -1], np.float32)
    return np.stack([lows[:, 0], highs[:, 1], highs[:, 2], lows[:, 3]], 1), steps


def _against(
    text_page: Any, starts: NDArray[np.int64], steps: NDArray[np.float32], turn: int
) -> NDArray[np.bool_] | None:
    """Tell which words run against most of the page; None if no word does.

    The angle of the first character decides for a word that goes back, as a mark above a letter may begin left of it,
    and for one of a single character.
    """
    against = run_against(steps, turn)
    if not against.any():
        return None
    for word in np.flatnonzero(against | (steps == 0).all(axis=1)).tolist():
        clockwise = pdfium.FPDFText_GetCharAngle(text_page, int(starts[word]))
        against[word] = round(-clockwise / (math.pi / 2)) % 4 == (turn + 2) % 4
    return against


def _shown(boxes: NDArray[np.float32], page: Any) -> NDArray[np.float32]:
    """Return boxes relative to the top left of the page in its displayed rotation."""
    area = pdfium.FS_RECTF()
    pdfium.FPDF_GetPageBoundingBox(page, area)
    left, top, right, bottom = boxes.T
    xs, ys = (left - area.left, right - area.left), (area.top - top, area.top - bottom)
    width, height = area.right - area.left, area.top - area.bottom
    for _ in range(max(pdfium.FPDFPage_GetRotation(page), 0)):  # a quarter turn clockwise each
        xs, ys = (height - ys[1], height - ys[0]), xs
        width, height = height, width
    return np.stack([xs[0], ys[0], xs[1], ys[1]], 1).astype(np.float32)
