"""Tests of pages of documents as pictures: only of PDFs and images, of a bounded size, and separate by tenant."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import httpx
import pytest
from PIL import ExifTags, Image

from examples.make_papers import make_papers

pytest.importorskip("pypdfium2")
PAPER = next(iter(make_papers(1, seed=0))).content


def document_of(http: httpx.Client, name: str, content: bytes) -> str:
    """Return the path of a document in its own collection."""
    file_id = http.post("/v1/files", data={"purpose": "user_data"}, files={"file": (name, content)}).json()["id"]
    collection_id = http.post("/v1/collections", json={"name": "papers"}).json()["id"]
    url = f"/v1/collections/{collection_id}/documents"
    return f"{url}/{http.post(url, json={'file_ids': [file_id]}).json()['data'][0]['id']}"


def parts_of(png: bytes) -> dict[bytes, bytes]:
    """Return the chunks of a PNG file, by name."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    found, at = {}, 8
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        found[png[at + 4 : at + 8]] = png[at + 8 : at + 8 + length]
        at += 12 + length
    return found


def pixels_of(png: bytes) -> tuple[int, int, bytes]:
    """Return the width, the height and the rows of a PNG file, each after its filter byte."""
    parts = parts_of(png)
    width, height = struct.unpack(">II", parts[b"IHDR"][:8])
    return width, height, zlib.decompress(parts[b"IDAT"])


@pytest.mark.parametrize("max_side", [64, 500])
def test_a_page_is_a_png_whose_longer_side_is_what_was_asked_for(http: httpx.Client, max_side: int) -> None:
    answer = http.get(f"{document_of(http, 'a.pdf', PAPER)}/pages/0/image", params={"max_side": max_side})
    assert (answer.status_code, answer.headers["content-type"]) == (200, "image/png")
    width, height, rows = pixels_of(answer.content)
    assert max(width, height) == max_side
    assert len(rows) == height * (1 + width * (len(rows) // height // width))
    assert len(set(rows)) > 2, "there is something on it"


def test_a_page_says_how_many_pixels_a_point_of_its_boxes_is(http: httpx.Client) -> None:
    answer = http.get(f"{document_of(http, 'a.pdf', PAPER)}/pages/0/image", params={"max_side": 421})
    per_meter, same, unit = struct.unpack(">IIB", parts_of(answer.content)[b"pHYs"])
    assert (per_meter == same, unit) == (True, 1)
    assert per_meter * 0.0254 / 72 == pytest.approx(421 / 842, abs=0.001)


def test_a_page_of_an_image_is_the_image_on_white_and_upright(http: httpx.Client) -> None:
    photograph, stored = Image.new("RGB", (300, 200), "white"), io.BytesIO()
    photograph.paste("black", (0, 0, 300, 20))
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6  # its first row is at the right
    photograph.save(stored, "PNG", exif=exif)
    answer = http.get(f"{document_of(http, 'a.png', stored.getvalue())}/pages/0/image", params={"max_side": 150})
    assert answer.status_code == 200
    width, height, rows = pixels_of(answer.content)
    assert (width, height) == (100, 150)
    middle = rows[75 * (1 + 3 * width) + 1 :][: 3 * width]
    assert middle[:3] == b"\xff" * 3
    assert middle[-3:] == bytes(3)
    per_meter, _, _ = struct.unpack(">IIB", parts_of(answer.content)[b"pHYs"])
    assert per_meter * 0.0254 / 72 == pytest.approx(150 / 842, abs=0.001)


def test_each_frame_of_a_tiff_file_is_a_page(http: httpx.Client) -> None:
    frames, stored = [Image.new("L", (80, 80), grey) for grey in (0, 255)], io.BytesIO()
    frames[0].save(stored, "TIFF", save_all=True, append_images=frames[1:])
    path = document_of(http, "a.tiff", stored.getvalue())
    for number, grey in enumerate((0, 255)):
        _, _, rows = pixels_of(http.get(f"{path}/pages/{number}/image").content)
        assert rows[1] == grey
    beyond = http.get(f"{path}/pages/2/image")
    assert (beyond.status_code, beyond.json()["error"]["code"]) == (404, "too_many_pages")


def test_what_has_no_such_page_or_no_pages_is_refused_with_the_reason(http: httpx.Client) -> None:
    beyond = http.get(f"{document_of(http, 'a.pdf', PAPER)}/pages/1/image")
    assert (beyond.status_code, beyond.json()["error"]["param"]) == (404, "page")
    assert "has 1, counted from 0" in beyond.json()["error"]["message"]
    text = http.get(f"{document_of(http, 'a.txt', b'Ash Ltd')}/pages/0/image")
    assert (text.status_code, text.json()["error"]["code"]) == (400, "unsupported_format")
    cut = http.get(f"{document_of(http, 'cut.pdf', PAPER[:200])}/pages/0/image")
    assert (cut.status_code, cut.json()["error"]["code"]) == (400, "truncated")
    assert http.get(f"{document_of(http, 'b.pdf', PAPER)}/pages/0/image?max_side=9999").status_code == 400


def test_no_tenant_sees_a_page_of_anothers_document(http: httpx.Client, deployment: Any) -> None:
    path = f"{document_of(http, 'a.pdf', PAPER)}/pages/0/image"
    headers = {"Authorization": f"Bearer {deployment.new_key()}"}
    with httpx.Client(base_url=deployment.url, headers=headers, timeout=120) as other:
        assert other.get(path).status_code == 404
