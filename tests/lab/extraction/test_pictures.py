"""Tests that pictures of pages are taken alike, and that without models the measurement is refused."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from features.documents.extraction.documents.readers import ocr
from lab.extraction.__main__ import main
from lab.extraction.pictures import PICTURES

PAGE = Image.new("L", (200, 300), 255)


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_the_same_each_time(name: str) -> None:
    first, second = (np.asarray(PICTURES[name](PAGE)) for _ in range(2))
    assert (first == second).all()
    assert first.shape[0] > first.shape[1] or name in {"turned by 90°", "turned by 270°"}


def test_without_models_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ocr, "is_installed", lambda: False)
    with pytest.raises(SystemExit) as end:
        main(["pictures", "--files", "1"])
    assert end.value.code == 2
