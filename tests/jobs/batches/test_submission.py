from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.batches.submission import CreateBatch, check_metadata, check_request
from jobs.call_limits import MAX_WINDOW, MIN_WINDOW, parse_window
from jobs.errors import InputError
from jobs.states import EngineChoice, InvalidLines, Priority

PLAIN: dict[str, Any] = {"input_file_id": "file_1", "endpoint": "/v1/completions", "completion_window": "24h"}


@pytest.mark.parametrize(
    ("text", "window"),
    [
        ("24h", timedelta(hours=24)), ("2h", timedelta(hours=2)), ("30m", timedelta(minutes=30)),
        ("7d", timedelta(days=7)), ("1m", MIN_WINDOW), ("30d", MAX_WINDOW), ("720h", MAX_WINDOW),
    ],
)  # fmt: skip
def test_a_window_is_minutes_hours_or_days(text: str, window: timedelta) -> None:
    assert parse_window(text) == window


@pytest.mark.parametrize(
    "text",
    ["", "24", "h", "24 h", "24H", "0h", "-1h", "1.5h", "1w", "31d", "721h", "30s", "٢h", "1h\n", "9" * 9 + "d"],
)
def test_another_window_is_refused_with_the_allowed_forms(text: str) -> None:
    with pytest.raises(InputError, match=r"Give minutes, hours or days such as '30m', '24h' or '7d'") as caught:
        parse_window(text)
    assert caught.value.param == "completion_window"


@given(st.text(max_size=12))
def test_any_text_is_a_window_in_range_or_refused(text: str) -> None:
    try:
        window = parse_window(text)
    except InputError:
        return
    assert MIN_WINDOW <= window <= MAX_WINDOW


def test_metadata_at_its_limits_passes() -> None:
    check_metadata({f"{n:064}": "v" * 512 for n in range(16)})
    check_metadata({})
    check_metadata(None)


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({str(n): "" for n in range(17)}, "17 pairs and 16 are allowed"),
        ({"k" * 65: ""}, "65 characters and 64 are allowed"),
        ({"k": "v" * 513}, "513 characters and 512 are allowed"),
        ({"k": 1}, "must be strings"),
    ],
)
def test_metadata_past_a_limit_is_refused_with_both_numbers(metadata: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        check_metadata(metadata)
    assert caught.value.param == "metadata"


@pytest.mark.parametrize("key", ["", "k" * 256])
def test_an_idempotency_key_has_1_to_255_characters(key: str) -> None:
    with pytest.raises(InputError, match="give 1 to 255"):
        check_request(CreateBatch(**PLAIN, idempotency_key=key))


@pytest.mark.parametrize(
    "change",
    [
        {"input_file_id": "file_2"}, {"endpoint": "/v1/chat/completions"}, {"completion_window": "2h"},
        {"metadata": {"a": "b"}}, {"output_expires_after_seconds": 3600}, {"priority": Priority.BULK},
        {"invalid_lines": InvalidLines.SKIP}, {"engine": EngineChoice.ANY}, {"is_reproducible": True},
    ],
)  # fmt: skip
def test_the_fingerprint_tells_every_wish_apart(change: dict[str, Any]) -> None:
    assert CreateBatch(**PLAIN | change).fingerprint() != CreateBatch(**PLAIN).fingerprint()


def test_the_fingerprint_ignores_how_the_call_arrived() -> None:
    plain = CreateBatch(**PLAIN, metadata={"a": "1", "b": "2"})
    again = CreateBatch(**PLAIN, metadata={"b": "2", "a": "1"}, retry_count=2, idempotency_key="k")
    assert plain.fingerprint() == again.fingerprint()
