"""Tests of limits of a run's prompts in a control worker: a bound on CPU time, and an end once the run is cancelled."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from sqlalchemy import select

from features.pipelines import lifecycle
from features.pipelines.rows.templates.process import RenderingProcess
from features.pipelines.states import RunState
from features.pipelines.tables import RunStep
from jobs.tables import Batch
from tests.features.pipelines.work.run_builders import House, step


def bounded(house: House, seconds: float) -> House:
    """Return the house with a bound on the CPU time of a run's prompts."""
    return replace(house, settings=house.settings.model_copy(update={"run_template_seconds": seconds}))


def test_a_run_whose_prompts_take_too_much_fails_and_goes_on_once_it_may_take_more(house: House) -> None:
    house.put("in/a.jsonl", {"text": "one"}, {"text": "two"})
    run = bounded(house, 1e-6).finish(house.trigger(house.make()))
    assert (run.state, run.error_code) == (RunState.FAILED, "template_cpu_exceeded")
    with house.maker() as session:
        assert session.scalars(select(Batch)).all() == []
    with house.maker.begin() as session:
        assert lifecycle.resume_run(session, house.tenant_id, run.id).error_code is None
    assert house.finish(run.id).state == RunState.SUCCEEDED
    with house.maker() as session:
        assert session.scalars(select(RunStep.cpu_seconds)).one() > 0


def test_the_steps_of_a_run_share_what_its_prompts_may_take(house: House) -> None:
    house.put("in/a.jsonl", {"text": "one"})
    steps = [step(), step(name="again", source={"step": "fields"}, prompt="Again {{ previous.text }}")]
    run_id = house.trigger(house.make(steps=[steps[0] | {"output": None}, steps[1]]))
    with house.maker.begin() as session:
        lifecycle.start_queued(session)
    house.runs().advance(run_id)
    with house.maker.begin() as session:
        used = session.scalars(select(RunStep)).one()
        used.cpu_seconds = 10.0
    run = bounded(house, 10.0).finish(run_id)
    assert (run.state, run.error_code) == (RunState.FAILED, "template_cpu_exceeded")
    with house.maker() as session:
        assert len(session.scalars(select(Batch)).all()) == 1


def test_a_cancelled_run_does_not_wait_for_its_prompts(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    is_rendering, ask = threading.Event(), RenderingProcess.ask

    def asked(process: RenderingProcess, payload: bytes) -> None:
        ask(process, payload)
        if payload.startswith(b"["):  # rows, and no template
            is_rendering.set()

    monkeypatch.setattr(RenderingProcess, "ask", asked)
    endless = "{% for i in range(1000) %}{% set y = range(100000)|map('string')|sort|list %}{% endfor %}{{ text }}"
    house.put("in/a.jsonl", *({"text": str(number)} for number in range(60)))  # of 2 s each
    run_id = house.trigger(house.make(steps=[step(prompt=endless)]))
    with house.maker.begin() as session:
        lifecycle.start_queued(session)
    worker = threading.Thread(target=house.runs().advance, args=(run_id,))
    worker.start()
    assert is_rendering.wait(30)
    with house.maker.begin() as session:
        lifecycle.cancel_run(session, house.tenant_id, run_id, reason="enough")
    worker.join(30)
    run = house.run(run_id)
    assert (run.state, run.reason, run.claimed_by) == (RunState.CANCELLED, "enough", None)
    with house.maker() as session:
        assert session.scalars(select(Batch)).all() == []
