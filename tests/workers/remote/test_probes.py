"""Tests of what probes make of a server, whatever it does, and of the rows that keep it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from jobs.engines import served
from jobs.errors import ServiceError
from jobs.lines.endpoints import LineKind
from jobs.lines.needs import NOTHING, Need
from jobs.tables import ServedEngine
from tests.workers.remote.able_server import PENALTIES, Able
from tests.workers.remote.fake_server import FakeServer
from workers.remote.abilities import Abilities
from workers.remote.dialects import OLLAMA, OPENAI, SGLANG, VLLM, Dialect
from workers.remote.exchange import Address
from workers.remote.identity import Identity
from workers.remote.probing import effects
from workers.remote.probing.asking import Server, ask
from workers.remote.probing.prober import DAY, SOON, Prober, Served, first_abilities
from workers.remote.probing.probes import COUNTING, LETTERS, MAX_TOKENS, abilities, probed_needs, probes_of
from workers.remote.probing.replies import Reply, Seen

NAMES = [probe.name for probe in probes_of(VLLM)]
PROBED = [name for name in NAMES if name not in ("usage", "max_tokens")]


def server_of(server: FakeServer, dialect: Dialect = VLLM, *, is_chat: bool = True) -> Server:
    return Server(address=Address(url=server.url), dialect=dialect, model="served", is_chat=is_chat)


def seen(server: FakeServer, able: Able, *, names: list[str] | None = None, **options: Any) -> dict[str, str]:
    able.serve(server)
    probes = [probe for probe in probes_of(VLLM) if names is None or probe.name in names]
    found, num_tokens = ask(server_of(server), probes, budget=options.pop("budget", MAX_TOKENS), **options)
    assert num_tokens == sum(one.num_tokens for one in found.values())
    assert num_tokens <= MAX_TOKENS
    return {name: str(one.seen) for name, one in found.items()}


def test_a_server_that_can_all_is_seen_to(server: FakeServer) -> None:
    assert seen(server, Able()) == dict.fromkeys(NAMES, "yes")
    assert sum(server.num_asked.values()) <= 24


@pytest.mark.parametrize("mode", ["no", "absent"])
def test_what_is_ignored_in_silence_is_told_from_what_is_refused(server: FakeServer, mode: str) -> None:
    found = seen(server, Able(modes=dict.fromkeys(PROBED, mode)))
    assert {found[name] for name in PROBED} == {mode}
    meets, may_meet = abilities(VLLM, found)
    assert meets & probed_needs(VLLM) == NOTHING
    assert meets == may_meet


@pytest.mark.parametrize(("mode", "name"), [("late", "n"), ("never", "json"), ("late", "seed"), ("never", "tools")])
def test_what_got_no_answer_is_neither(server: FakeServer, mode: str, name: str) -> None:
    found = seen(server, Able(modes={name: mode}), names=[name, "stop"], seconds=0.3)
    assert found == {name: mode, "stop": "yes"}
    meets, may_meet = abilities(VLLM, found)
    need = Need[name.upper()]
    assert (need in meets, need in may_meet) == (False, True)


def test_nonsense_is_an_answer_without_the_effect(server: FakeServer) -> None:
    found = seen(server, Able(modes=dict.fromkeys(PROBED, "nonsense")))
    assert {found[name] for name in PROBED} == {"no"}


def test_a_server_that_answers_not_even_a_plain_request_shows_nothing(server: FakeServer) -> None:
    assert set(seen(server, Able(modes={"plain": "nonsense"})).values()) == {"never"}
    assert set(seen(server, Able(modes={"plain": "late"}), seconds=0.2).values()) == {"late"}
    server.stop_listening()
    assert set(seen(server, Able()).values()) == {"never"}
    server.listen_again()


def test_a_server_that_falls_silent_is_not_asked_for_all_that_is_left(server: FakeServer) -> None:
    found = seen(server, Able(modes=dict.fromkeys(PROBED, "never")))
    assert list(found.values()) == ["yes", "yes", "never", "never", "never"]


@pytest.mark.parametrize(("mode", "names"), [("uncounted", ["n", "many_prompts"]), ("cut", ["json", "json_object"])])
def test_choices_must_be_counted_and_forms_may_be_cut(server: FakeServer, mode: str, names: list[str]) -> None:
    expected = {"uncounted": "no", "cut": "yes"}[mode]
    assert seen(server, Able(modes=dict.fromkeys(names, mode)), names=names) == dict.fromkeys(names, expected)


def test_text_that_is_cut_is_no_object(server: FakeServer) -> None:
    Able(modes=dict.fromkeys(("json", "json_object"), "no")).serve(server)
    probes = [replace(probe, requests=lambda facts: [{}]) for probe in probes_of(VLLM) if probe.name.startswith("json")]
    found, _ = ask(server_of(server), probes, budget=MAX_TOKENS)
    assert [str(one.seen) for one in found.values()] == ["no", "no"]


@pytest.mark.parametrize("mode", ["no", "absent"])
def test_penalties_that_cannot_be_compared_are_believed_where_the_server_claims_them(
    server: FakeServer, mode: str
) -> None:
    found = seen(server, Able(modes={"favoured": mode}), names=list(PENALTIES))
    assert found == dict.fromkeys(PENALTIES, "unclear")
    for dialect, claimed in ((VLLM, PENALTIES), (OPENAI, PENALTIES[:2])):
        for needs in (*abilities(dialect, found), *abilities(dialect, {})):
            assert [name for name in PENALTIES if Need[name.upper()] in needs] == list(claimed)


@pytest.mark.parametrize("mode", ["late", "never"])
def test_what_penalties_compare_with_may_get_no_answer(server: FakeServer, mode: str) -> None:
    found = seen(server, Able(modes={"favoured": mode}), names=list(PENALTIES), seconds=0.3)
    assert found == dict.fromkeys(PENALTIES, mode)
    assert Need.PRESENCE_PENALTY in abilities(VLLM, found)[0]


def test_counts_and_limits_are_seen_in_the_plain_answer(server: FakeServer) -> None:
    found = seen(server, Able(counts_usage=False), names=["usage", "max_tokens", "n"])
    assert found == {"usage": "no", "max_tokens": "yes", "n": "yes"}


def test_a_model_that_thinks_has_room_for_its_answer(server: FakeServer) -> None:
    found = seen(server, Able(thinks=True), names=["json", "stop", "seed"])
    assert found == {"json": "yes", "stop": "yes", "seed": "yes"}
    assert max(body["max_tokens"] for body in server.bodies.values()) == 256


def test_long_templates_leave_probes_for_another_day_and_hold_the_budget(server: FakeServer) -> None:
    found = seen(server, Able(prompt_tokens=300))
    assert 0 < len(found) < len(NAMES)
    assert seen(server, Able(), budget=10) == dict.fromkeys(NAMES, "never")


def test_a_server_without_a_chat_is_probed_by_completions(server: FakeServer) -> None:
    Able().serve(server)
    found, _ = ask(server_of(server, is_chat=False), probes_of(OLLAMA)[:4], budget=MAX_TOKENS)
    assert set(server.order) == {COUNTING, LETTERS}
    assert found["seed"].seen is Seen.YES


def test_parameters_of_a_name_that_a_server_lacks_are_not_asked() -> None:
    assert not {"top_k", "choice"} & {probe.name for probe in probes_of(OLLAMA)}
    assert "choice" not in {probe.name for probe in probes_of(SGLANG)}


# --- rows ---


@dataclass
class Rig:
    prober: Prober
    known: Abilities
    identity: Identity
    able: Able
    clock: list[float]

    def identify(self) -> Identity:
        if self.identity.model == "away":
            raise ServiceError("away")
        return self.identity


MakeRig = Callable[..., Rig]


@pytest.fixture
def session(maker: sessionmaker[Session]) -> Iterator[Session]:
    with maker() as session:
        yield session


@pytest.fixture
def rig(server: FakeServer, maker: sessionmaker[Session]) -> MakeRig:
    def make(owner: str = "w", version: str = "1", kind: LineKind = LineKind.GENERATE, **modes: str) -> Rig:
        identity = Identity(dialect=VLLM, version=version, model="served")
        able, known, clock = Able(modes=modes), first_abilities(identity, kind), [1_000_000.0]
        able.serve(server)
        made = Rig(None, known, identity, able, clock)  # type: ignore[arg-type]
        own = Served(model="demo", server=replace(server_of(server), kind=kind), owner=owner, identify=made.identify)
        made.prober = Prober(own, known, maker, seconds=0.3, now=lambda: clock[0], leave=left.append)
        return made

    left: list[str] = []
    make.left = left  # type: ignore[attr-defined]
    return make


def rows(session: Session) -> dict[str, ServedEngine]:
    session.expire_all()
    return {row.version: row for row in session.query(ServedEngine)}


def due_now(session: Session) -> None:
    session.execute(text("UPDATE served_engine SET due_at = now()"))
    session.commit()


def test_what_was_seen_outlives_the_worker_and_is_not_asked_again(
    server: FakeServer, session: Session, rig: MakeRig
) -> None:
    first = rig(stop="no")
    assert Need.N not in first.known.meets, "nothing was seen yet"
    first.prober.look()
    assert (Need.N in first.known.meets, Need.STOP in first.known.meets) == (True, False)
    row = rows(session)["1"]
    assert row.findings["stop"]["seen"] == "no"
    assert 0 < row.probe_tokens <= MAX_TOKENS
    assert session.scalar(text("SELECT count(*) FROM ledger")) == 0, "no tenant pays for it"
    num_asked = sum(server.num_asked.values())
    second = rig(owner="later")
    second.prober.look()
    assert sum(server.num_asked.values()) == num_asked
    assert second.known.meets == first.known.meets


def test_an_engine_is_probed_again_daily(session: Session, rig: MakeRig) -> None:
    own = rig(stop="no")
    own.prober.look()
    (in_a_day,) = session.scalars(text("SELECT due_at - now() FROM served_engine"))
    assert DAY - SOON < in_a_day <= DAY
    own.able.modes.clear()
    own.clock[0] += DAY.total_seconds()
    due_now(session)
    own.prober.look()
    assert Need.STOP in own.known.meets


def test_a_new_version_is_probed_at_once_and_the_old_one_is_remembered(session: Session, rig: MakeRig) -> None:
    own = rig()
    own.prober.look()
    own.able.modes["n"] = "absent"
    own.identity = replace(own.identity, version="2")
    own.prober.look()
    assert own.known.engine.label == "vllm 2"
    assert Need.N not in own.known.meets
    assert Need.N in Need(rows(session)["1"].meets)
    own.identity = replace(own.identity, version="1")
    own.prober.look()
    assert Need.N in own.known.meets


def test_a_server_that_is_away_keeps_what_is_known_of_it(session: Session, rig: MakeRig) -> None:
    own = rig()
    own.prober.look()
    own.identity = replace(own.identity, model="away")
    own.prober.look()
    assert own.known.engine.label == "vllm 1"


def test_another_kind_of_engine_at_the_address_takes_the_worker_out(rig: MakeRig) -> None:
    own = rig()
    own.identity = replace(own.identity, dialect=SGLANG)
    own.prober.look()
    assert "sglang" in rig.left[0]  # type: ignore[attr-defined]


def test_two_workers_do_not_probe_at_once(server: FakeServer, session: Session, rig: MakeRig) -> None:
    one, other = rig(owner="one"), rig(owner="other")
    served.note(session, "demo", one.known.engine)
    assert served.claim_probe(session, "demo", one.known.engine, owner="one", hold=DAY)
    session.commit()
    other.prober.look()
    assert sum(server.num_asked.values()) == 0
    session.execute(text("UPDATE served_engine SET probed_until = now()"))  # it died
    session.commit()
    other.prober.look()
    assert Need.N in other.known.meets
    probed = served.Probed(meets=NOTHING, may_meet=NOTHING, findings={}, num_tokens=5, again=DAY)
    assert not served.record(session, "demo", one.known.engine, probed, owner="one"), "its claim is over"


def test_an_inconclusive_probe_changes_nothing_and_is_repeated_soon(session: Session, rig: MakeRig) -> None:
    own = rig(json="late")
    own.prober.look()
    assert (Need.JSON in own.known.meets, Need.N in own.known.meets) == (False, True)
    row = rows(session)["1"]
    assert Need.JSON in Need(row.may_meet)
    (again,) = session.scalars(text("SELECT due_at - now() FROM served_engine"))
    assert again <= SOON
    own.able.modes.clear()
    due_now(session)
    own.prober.look()
    assert Need.JSON in own.known.meets
    own.able.modes.update(dict.fromkeys(PROBED, "never"))
    own.clock[0] += DAY.total_seconds()
    due_now(session)
    own.prober.look()
    assert {Need.JSON, Need.N} <= set(own.known.meets), "what was seen stays"


def test_probes_of_a_day_hold_their_budget_however_often_they_are_repeated(session: Session, rig: MakeRig) -> None:
    own = rig(json="late")
    for _ in range(40):
        due_now(session)
        own.prober.look()
        own.able.modes["json"] = "never"
    assert rows(session)["1"].probe_tokens <= MAX_TOKENS


def test_a_later_day_holds_its_budget_though_what_was_seen_before_stays(session: Session, rig: MakeRig) -> None:
    own = rig()
    own.prober.look()
    before = rows(session)["1"].probe_tokens
    own.clock[0] += DAY.total_seconds()
    own.able.modes.update(dict.fromkeys(PROBED, "never"))
    for _ in range(30):
        due_now(session)
        own.prober.look()
    assert 0 < rows(session)["1"].probe_tokens - before <= MAX_TOKENS
    assert set(Need(rows(session)["1"].meets)) >= {Need.JSON, Need.N}


def test_a_server_whose_probes_used_up_a_day_is_probed_on_the_next(session: Session, rig: MakeRig) -> None:
    own = rig(**dict.fromkeys(PROBED, "never"))
    for _ in range(30):
        due_now(session)
        own.prober.look()
    assert Need.JSON not in own.known.meets
    own.able.modes.clear()
    for _ in range(2):
        own.clock[0] += DAY.total_seconds() / 2
        due_now(session)
        own.prober.look()
    assert Need.JSON in own.known.meets


@pytest.mark.parametrize("kind", [LineKind.POOL, LineKind.RERANK])
def test_a_server_of_vectors_or_scores_is_believed_and_asked_nothing(
    server: FakeServer, session: Session, rig: MakeRig, kind: LineKind
) -> None:
    own = rig(kind=kind)
    assert Need.TOKEN_PROMPTS in own.known.meets
    own.prober.look()
    assert sum(server.num_asked.values()) == 0
    assert Need.TOKEN_PROMPTS in own.known.meets
    row = rows(session)["1"]
    assert (row.probe_tokens, Need.TOKEN_PROMPTS in Need(row.meets)) == (0, True)
    (in_a_day,) = session.scalars(text("SELECT due_at - now() FROM served_engine"))
    assert in_a_day > DAY - SOON


def test_engines_that_nobody_serves_are_forgotten_after_a_month(session: Session, rig: MakeRig) -> None:
    rig().prober.look()
    assert served.forget_old(session) == 0
    session.execute(text("UPDATE served_engine SET seen_at = now() - interval '31 days'"))
    assert served.forget_old(session) == 1


def test_an_empty_answer_says_nothing_of_a_limit_or_a_stop() -> None:
    empty = Reply(seen=Seen.YES, body={"choices": [{"text": "", "finish_reason": "stop"}]})
    facts = effects.Facts(is_chat=False, plain=empty)
    assert (effects.is_limited([empty], facts), effects.is_stopped([empty], facts)) == (None, None)
