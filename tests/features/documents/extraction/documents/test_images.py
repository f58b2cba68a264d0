"""Tests of images as documents: their pixels as they are shown, and their frames as pages."""

from __future__ import annotations

import io
from email.message import EmailMessage
from typing import Any

import numpy as np
import pytest
from PIL import ExifTags, Image

from features.documents.extraction.documents.document import Document
from features.documents.extraction.documents.formats import Format
from features.documents.extraction.documents.limits import Limits, Progress
from features.documents.extraction.documents.page_text import PageText
from features.documents.extraction.documents.parsing import parse
from features.documents.extraction.documents.readers import ocr
from features.documents.extraction.documents.readers.images import ImageFile
from features.documents.extraction.errors import DocumentCode, DocumentError
from tests.features.documents.extraction.documents.hostile_images import grey, stored, tiff

FORMS = {"PNG": Format.PNG, "JPEG": Format.JPEG, "TIFF": Format.TIFF, "WEBP": Format.WEBP}
DARK, LIGHT = 60, 200


def saved(picture: Image.Image, form: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    picture.save(stream, form, **options)
    return stream.getvalue()


def shown(content: bytes, form: Format, *, number: int = 0, max_side: int = 4000) -> Any:
    """Return the pixels of a frame: rows, columns and colours."""
    return np.asarray(ImageFile(form, content).frame(number, max_side=max_side)).astype(int)


def halves(mode: str = "L") -> Image.Image:
    """Return a picture whose upper half is dark."""
    picture = Image.new("L", (90, 60), LIGHT)
    picture.paste(DARK, (0, 0, 90, 30))
    return picture.convert(mode)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("orientation", "dark"),
    [
        (1, (slice(0, 20), slice(None))),
        (2, (slice(0, 20), slice(None))),
        (3, (slice(-20, None), slice(None))),
        (4, (slice(-20, None), slice(None))),
        (5, (slice(None), slice(0, 20))),
        (6, (slice(None), slice(-20, None))),
        (7, (slice(None), slice(-20, None))),
        (8, (slice(None), slice(0, 20))),
    ],
)
def test_an_image_is_turned_as_its_camera_says(form: str, orientation: int, dark: tuple[slice, slice]) -> None:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    pixels = shown(saved(halves("RGB"), form, exif=exif), FORMS[form])
    assert pixels.shape == ((60, 90, 3) if orientation < 5 else (90, 60, 3))
    assert np.abs(pixels[dark] - DARK).max() < 8
    assert np.abs(pixels - DARK).max() > 100


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "CMYK", "I;16", "I", "F"])
def test_pixels_of_every_mode_are_colours(mode: str) -> None:
    of_12_bits = Image.fromarray(np.asarray(halves()).astype(np.uint16) * 12)
    pixels = shown(saved(of_12_bits if mode == "I;16" else halves(mode), "TIFF"), Format.TIFF)
    assert pixels.shape == (60, 90, 3)
    assert pixels[:29].mean() + 100 < pixels[31:].mean()


@pytest.mark.parametrize("mode", ["RGBA", "LA", "PA"])
def test_what_is_transparent_is_white(mode: str) -> None:
    picture = halves("LA" if mode == "LA" else "RGBA")
    picture.putalpha(Image.new("L", picture.size, 0))
    pixels = shown(saved(picture, "PNG") if mode != "PA" else saved(picture.quantize(), "PNG"), Format.PNG)
    assert (pixels == 255).all()


@pytest.mark.parametrize("form", FORMS)
def test_a_large_image_is_made_smaller(form: str) -> None:
    content = saved(halves("RGB").resize((900, 600)), form)
    assert shown(content, FORMS[form], max_side=300).shape == (200, 300, 3)


class _Told(Progress):
    def __init__(self) -> None:
        self.pages: list[int] = []
        self.num_pictures = 0

    def page(self, number: int) -> None:
        self.pages.append(number)

    def picture(self) -> None:
        self.num_pictures += 1


@pytest.fixture
def progress(monkeypatch: pytest.MonkeyPatch) -> _Told:
    """Replace the models by a reader that names the mean of the pixels, and white paper empty."""

    def read(pixels: Any, *, points_per_pixel: float) -> PageText | None:
        text = f"grey {round(float(pixels.mean()))}"
        rows, columns = (side * points_per_pixel for side in pixels.shape[:2])
        if text == "grey 255":
            return None
        return PageText(
            text=text,
            width=columns,
            height=rows,
            spans=np.array([[0, len(text)]]),
            boxes=np.array([[0, 0, columns, rows]], np.float32),
            ocr_scores=np.array([0.9], np.float32),
        )

    monkeypatch.setattr(ocr, "is_installed", lambda: True)
    monkeypatch.setattr(ocr, "read_picture", read)
    return _Told()


def read(content: bytes, name: str, progress: Progress) -> Document:
    return parse(content, name, Limits(), progress=progress)


@pytest.mark.parametrize("form", FORMS)
def test_an_image_is_a_document_of_one_page(progress: _Told, form: str) -> None:
    document = read(saved(Image.new("RGB", (200, 100), "black"), form), f"a.{form.lower()}", progress)
    assert (document.text, document.format) == ("grey 0", FORMS[form])
    (page,) = document.pages
    assert (page.width, page.height) == (842, 421)
    (run,) = document.runs
    assert run.ocr_score == pytest.approx(0.9)
    assert (progress.pages, progress.num_pictures) == ([0], 1)


def test_each_frame_of_a_tiff_file_is_a_page_and_those_without_text_are_noted(progress: _Told) -> None:
    frames = [Image.new("L", (80, 80), value) for value in (10, 255, 30)]
    content = saved(frames[0], "TIFF", save_all=True, append_images=frames[1:], compression="tiff_lzw")
    document = read(content, "a.tif", progress)
    assert document.text == "grey 10\n\n\n\ngrey 30"
    assert [run.page for run in document.runs] == [0, 2]
    assert (len(document.notes), progress.num_pictures) == (1, 3)


def test_a_broken_frame_costs_only_itself(progress: _Told) -> None:
    document = read(tiff(grey(), grey(t273=(4, 1 << 30)), strip=bytes(64)), "a.tiff", progress)
    assert (document.text.strip(), len(document.pages)) == ("grey 0", 2)
    (note,) = document.notes
    assert "frame 2" in note


def test_a_broken_directory_costs_only_the_frames_after_it(progress: _Told) -> None:
    document = read(tiff(grey(), next_of_last=1 << 30, strip=bytes(64)), "a.tiff", progress)
    assert (document.text, len(document.pages)) == ("grey 0", 1)


def test_directories_in_a_circle_are_read_once(progress: _Told) -> None:
    document = read(tiff(grey(), grey(), next_of_last=72, strip=bytes(64)), "a.tiff", progress)
    assert len(document.pages) == 2


@pytest.mark.parametrize("form", ["PNG", "WEBP"])
def test_of_an_animation_the_first_frame_is_read(progress: _Told, form: str) -> None:
    frames = [Image.new("RGB", (80, 80), (value,) * 3) for value in (10, 200)]
    options = {"lossless": True} if form == "WEBP" else {}
    document = read(saved(frames[0], form, save_all=True, append_images=frames[1:], **options), "a", progress)
    assert (document.text, len(document.pages)) == ("grey 10", 1)
    assert len(document.notes) == 1


def test_white_paper_has_no_text(progress: _Told) -> None:
    with pytest.raises(DocumentError) as refusal:
        read(saved(Image.new("L", (80, 80), 255), "PNG"), "a.png", progress)
    assert refusal.value.code == DocumentCode.NO_TEXT


@pytest.mark.parametrize("pixels", [49_999_000, 50_001_000])
def test_an_image_has_at_most_50_megapixels(progress: _Told, pixels: int) -> None:
    content = saved(Image.new("1", (1000, pixels // 1000)), "PNG")
    if pixels < 50_000_000:
        assert read(content, "a.png", progress).text == "grey 0"
        return
    with pytest.raises(DocumentError) as refusal:
        read(content, "a.png", progress)
    assert (refusal.value.code, refusal.value.page) == (DocumentCode.UNPACKS_TOO_LARGE, 0)


def test_pictures_attached_to_a_mail_are_read_and_have_their_time(progress: _Told) -> None:
    message = EmailMessage()
    message["From"] = "a@example.com"
    message.set_content("see there")
    for content in (saved(Image.new("L", (80, 80), 0), "PNG"), stored("JPEG")[:300]):
        message.add_attachment(content, maintype="image", subtype="x", filename="scan.png")
    document = read(message.as_bytes(), "a.eml", progress)
    assert "grey 0" in document.text
    assert [note.split(": ")[1] for note in document.notes] == ["truncated"]
    assert (progress.pages, progress.num_pictures) == ([], 1)
