"""Tests of what a worker knows of its server: adapters come and go, and threads change a part each."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import pytest

from jobs.engines.engine import ServingEngine
from jobs.lines.needs import NOTHING, Need
from workers.remote import abilities as module
from workers.remote.abilities import Abilities

BOTH = frozenset({"sql-lora", "law-lora"})


@pytest.fixture
def abilities() -> Abilities:
    return Abilities(ServingEngine(kind="vllm", meets=NOTHING, adapters=BOTH))


def test_a_lost_adapter_stays_out_until_the_server_has_stopped_listing_it(abilities: Abilities) -> None:
    abilities.lose_adapter("sql-lora")
    abilities.note_listed(BOTH)
    assert abilities.engine.adapters == {"law-lora"}
    abilities.note_listed({"law-lora"})
    abilities.note_listed(BOTH)
    assert abilities.engine.adapters == BOTH


def test_a_server_that_was_away_may_have_an_adapter_again_that_it_had_lost(abilities: Abilities) -> None:
    abilities.lose_adapter("sql-lora")
    abilities.note_away()
    assert abilities.engine.adapters == {"law-lora"}
    abilities.note_listed(BOTH)
    assert abilities.engine.adapters == BOTH


def test_a_change_by_another_thread_meanwhile_is_kept(abilities: Abilities, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, is_changing = threading.Event(), threading.Event()

    def slowly_replaced(engine: ServingEngine, **changes: Any) -> ServingEngine:
        if threading.current_thread() is prober:
            is_changing.set()
            assert gate.wait(20)
        return dataclasses.replace(engine, **changes)

    monkeypatch.setattr(module, "replace", slowly_replaced)
    prober = threading.Thread(target=abilities.note_meets, args=(Need.SEED,))
    chunk = threading.Thread(target=abilities.lose_adapter, args=("sql-lora",))
    prober.start()
    assert is_changing.wait(20)
    chunk.start()
    chunk.join(0.2)  # ends only if it does not wait for the other thread
    gate.set()
    prober.join()
    chunk.join()
    assert (abilities.meets, abilities.engine.adapters) == (Need.SEED, frozenset({"law-lora"}))
