"""Tests of the unmodified `openai` client on the whole stack: the README's snippet, and 2,000 lines, 40 of them bad."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import httpx
import jsonschema_rs
import openai
import pytest

from tests.e2e.builders import until

pytestmark = pytest.mark.long

README = Path(__file__).resolve().parents[2] / "README.md"
CHAT: Literal["/v1/chat/completions"] = "/v1/chat/completions"
NUM_LINES = 2_000
BAD_EVERY = 50  # 40 lines: numbers 7, 57, 107 …
REFUSED_EVERY = 200  # 10 well-formed lines whose body requests something unsupported
TIMEOUT_SECONDS = 240


@pytest.fixture(scope="module")
def stack(shared_stack: Any) -> Any:
    return shared_stack.of_tenant("official-client")


@dataclass
class InputFile:
    """The lines, and the expected outcome of each."""

    lines: list[str] = field(default_factory=list)
    good: list[str] = field(default_factory=list)  # custom ids
    refused: list[str] = field(default_factory=list)
    bad: dict[int, str] = field(default_factory=dict)  # 1-based line number → code

    @property
    def content(self) -> bytes:
        return "\n".join(self.lines).encode()


def request_line(number: int, **changes: Any) -> dict[str, Any]:
    """A small request; length, temperature, stops and log-probabilities vary with the number."""
    body: dict[str, Any] = {
        "model": "demo",
        "messages": [{"role": "user", "content": f"Receipt {number % 97}\nTotal: {number}.50 EUR"}],
        "max_tokens": 2 + number % 11,
    }
    if number % 3 == 0:
        body |= {"temperature": 0}
    if number % 5 == 0:
        body |= {"seed": number, "top_p": 0.9, "top_k": 20}
    if number % 7 == 0:
        body |= {"logprobs": True, "top_logprobs": 2}
    if number % 11 == 0:
        body |= {"stop": ["}", "\n"]}
    if number % 13 == 0:
        body |= {"n": 2}
    line = {"custom_id": f"line-{number}", "method": "POST", "url": CHAT, "body": body}
    return line | changes


def bad_lines(number: int) -> list[tuple[str, str]]:
    """Eight ways to be wrong, each with the code it must get."""
    fine = request_line(number)
    without_id = {name: value for name, value in fine.items() if name != "custom_id"}
    return [
        ("{this is not JSON", "invalid_json_line"),
        (json.dumps([fine]), "invalid_json_line"),
        (json.dumps(without_id), "invalid_request"),
        (json.dumps(request_line(number, custom_id="line-0")), "duplicate_custom_id"),
        (json.dumps(request_line(number, method="GET")), "invalid_request"),
        (json.dumps(request_line(number, url="/v1/embeddings")), "url_mismatch"),
        (json.dumps(request_line(number, body={"messages": []})), "invalid_request"),
        (json.dumps(request_line(number, body=fine["body"] | {"model": "nobody/has-this"})), "model_not_found"),
    ]


@pytest.fixture(scope="module")
def input_file() -> InputFile:
    made = InputFile()
    for number in range(NUM_LINES):
        if number % BAD_EVERY == 7:
            text, code = bad_lines(number)[len(made.bad) % 8]
            made.bad[number + 1] = code
        else:
            line = request_line(number)
            if number % REFUSED_EVERY == 3:
                line["body"]["tools"] = [{"type": "function", "function": {"name": "f"}}]
                made.refused.append(line["custom_id"])
            else:
                made.good.append(line["custom_id"])
            text = json.dumps(line)
        made.lines.append(text)
    assert (len(made.bad), len(made.refused)) == (40, 10)
    assert len(set(Counter(made.bad.values()))) == 5, "eight ways, five codes"
    return made


@pytest.fixture(scope="module")
def client(stack: Any) -> Iterator[openai.OpenAI]:
    with stack.client() as client:
        yield client


def wait(client: openai.OpenAI, batch_id: str) -> Any:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        batch = client.batches.retrieve(batch_id)
        if batch.status in ("completed", "failed", "expired", "cancelled"):
            return batch
        time.sleep(0.3)
    raise AssertionError(f"still {batch.status} {batch.request_counts} after {TIMEOUT_SECONDS} s")


def counts_of(client: openai.OpenAI, batch_id: str) -> Any:
    return client.batches.retrieve(batch_id).request_counts


def submit(client: openai.OpenAI, content: bytes, **extra: Any) -> Any:
    uploaded = client.files.create(file=("in.jsonl", content), purpose="batch")
    return client.batches.create(
        input_file_id=uploaded.id, endpoint=CHAT, completion_window="24h", extra_body=extra or None
    )


def read_lines(client: openai.OpenAI, file_id: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in client.files.content(file_id).text.splitlines()]


def ledger(stack: Any, batch_id: str) -> tuple[int, int, int]:
    """Requests, input tokens and output tokens billed to a batch."""
    ((num, tokens_in, tokens_out),) = stack.query(
        "SELECT coalesce(sum(num_results), 0), coalesce(sum(input_tokens), 0), coalesce(sum(output_tokens), 0)"
        f" FROM ledger WHERE batch_id = '{batch_id}'"
    )
    return int(num), int(tokens_in), int(tokens_out)


def readme_block(language: str, beginning: str) -> str:
    """Return the README's block of code in `language` that begins with `beginning`."""
    blocks: list[str] = re.findall(rf"^```{language}\n(.*?)^```$", README.read_text(), re.M | re.S)
    return next(block for block in blocks if block.startswith(beginning))


def test_the_python_snippet_prints_the_answer_to_the_line_shown_above_it(stack: Any, tmp_path: Path) -> None:
    example = readme_block("bash", "cat > requests.jsonl")
    (tmp_path / "requests.jsonl").write_text(example.split("\n", 1)[1].partition("END\n")[0])
    done = subprocess.run(
        [sys.executable, "-c", readme_block("python", "from openai import OpenAI")],
        capture_output=True, text=True, env=stack.environment, cwd=tmp_path, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert (answer["custom_id"], answer["response"]["status_code"]) == ("a", 200)
    assert "Farvenen Chemicals Ltd" in answer["response"]["body"]["choices"][0]["message"]["content"]


def test_a_file_with_bad_lines_fails_with_each_of_them_listed(
    stack: Any, client: openai.OpenAI, input_file: InputFile
) -> None:
    batch = wait(client, submit(client, input_file.content).id)
    assert batch.status == "failed"
    assert {error.line: error.code for error in batch.errors.data} == input_file.bad
    assert [error.line for error in batch.errors.data] == sorted(input_file.bad)
    assert all(error.message for error in batch.errors.data)
    assert (batch.output_file_id, batch.error_file_id) == (None, None)
    assert (batch.request_counts.completed, batch.request_counts.failed) == (0, 0)
    assert ledger(stack, batch.id) == (0, 0, 0)


def test_with_skip_the_good_lines_run_and_everything_adds_up(
    stack: Any, client: openai.OpenAI, input_file: InputFile
) -> None:
    batch = wait(client, submit(client, input_file.content, invalid_lines="skip").id)
    assert batch.status == "completed"
    num_failed = len(input_file.bad) + len(input_file.refused)
    counts = batch.request_counts
    assert (counts.total, counts.completed, counts.failed) == (NUM_LINES, NUM_LINES - num_failed, num_failed)

    output = read_lines(client, batch.output_file_id)
    assert [line["custom_id"] for line in output] == input_file.good
    assert {line["response"]["status_code"] for line in output} == {200}
    assert all(line["error"] is None for line in output)
    check_bodies(output)

    usages = [line["response"]["body"]["usage"] for line in output]
    tokens_in = sum(usage["prompt_tokens"] for usage in usages)
    tokens_out = sum(usage["completion_tokens"] for usage in usages)
    assert (batch.usage.input_tokens, batch.usage.output_tokens) == (tokens_in, tokens_out)
    assert batch.usage.total_tokens == tokens_in + tokens_out
    assert ledger(stack, batch.id)[1:] == (tokens_in, tokens_out)

    check_errors(read_lines(client, batch.error_file_id), input_file)
    assert stack.audit().returncode == 0, stack.audit().stdout


def check_bodies(output: list[dict[str, Any]]) -> None:
    for line in output:
        number = int(line["custom_id"].removeprefix("line-"))
        body, asked = line["response"]["body"], request_line(number)["body"]
        assert body["model"] == "demo"
        assert len(body["choices"]) == asked.get("n", 1)
        for choice in body["choices"]:
            assert choice["finish_reason"] in ("stop", "length")
            assert not any(stop in choice["message"]["content"] for stop in asked.get("stop", []))
            assert (choice["logprobs"] is not None) == asked.get("logprobs", False)
        assert 1 <= body["usage"]["completion_tokens"] <= asked["max_tokens"] * asked.get("n", 1)


def check_errors(errors: list[dict[str, Any]], input_file: InputFile) -> None:
    refused = [line for line in errors if line["response"] is not None]
    assert [line["custom_id"] for line in refused] == input_file.refused
    for line in refused:
        assert line["response"]["status_code"] == 400
        assert line["response"]["body"]["error"]["param"] == "tools"
    skipped = [line["error"]["code"] for line in errors if line["response"] is None]
    assert skipped == [input_file.bad[number] for number in sorted(input_file.bad)]
    assert len(refused) + len(skipped) == len(errors)


def test_the_same_file_run_again_gives_the_same_answers_where_a_seed_or_greedy_fixes_them(
    client: openai.OpenAI, input_file: InputFile
) -> None:
    fixed = [line for line in (request_line(number) for number in range(60)) if "seed" in line["body"]]
    content = "\n".join(json.dumps(line) for line in fixed).encode()
    first, second = (read_lines(client, wait(client, submit(client, content).id).output_file_id) for _ in range(2))
    assert [texts(line) for line in first] == [texts(line) for line in second]


def texts(line: dict[str, Any]) -> list[str]:
    return [choice["message"]["content"] for choice in line["response"]["body"]["choices"]]


def test_finished_lines_can_be_read_while_the_batch_runs(stack: Any, client: openai.OpenAI) -> None:
    lines = [request_line(number) for number in range(200)]
    for line in lines:
        line["body"] |= {"max_tokens": 100, "n": 1}
    batch = submit(client, "\n".join(json.dumps(line) for line in lines).encode())
    seen: list[str] = []
    after, was_running = "0", False
    while True:
        state = client.batches.retrieve(batch.id).status
        page = httpx.get(
            f"{stack.base_url}/batches/{batch.id}/results",
            params={"after": after},
            headers={"Authorization": f"Bearer {stack.api_key}"},
        )
        assert page.headers["content-type"].startswith("application/x-ndjson")
        seen += [json.loads(line)["custom_id"] for line in page.text.splitlines()]
        was_running = was_running or (bool(seen) and state == "in_progress")
        after = page.headers["x-next-after"]
        if not page.text and state == "completed":
            break
        time.sleep(0.1)
    assert was_running, "nothing was readable before the end"
    assert sorted(seen) == sorted(line["custom_id"] for line in lines)


def generated(stack: Any) -> int:
    """Wait until the engine is idle, and return how many tokens it has generated so far."""
    ((now,),) = stack.query("SELECT clock_timestamp()")
    count = f"""
        SELECT (engine_stats ->> 'generation_tokens_total')::int FROM worker
        WHERE stopped_at IS NULL AND heartbeat_at > '{now}' AND (engine_stats ->> 'num_requests_running')::float = 0
    """
    return int(until(lambda: stack.query(count), stack)[0][0])


def test_a_cancelled_batch_keeps_and_bills_what_was_finished(stack: Any, client: openai.OpenAI) -> None:
    lines = [request_line(number) for number in range(1000)]
    for line in lines:
        line["body"] |= {"max_tokens": 200, "ignore_eos": True, "n": 1}
        line["body"].pop("stop", None)
    before = generated(stack)
    batch = submit(client, "\n".join(json.dumps(line) for line in lines).encode())
    while counts_of(client, batch.id).completed == 0:
        time.sleep(0.1)
    assert client.batches.cancel(batch.id).status == "cancelling"
    batch = wait(client, batch.id)
    assert batch.status == "cancelled"
    assert generated(stack) - before < 1000 * 200, "the engine went on after the cancellation"
    output = read_lines(client, batch.output_file_id)
    assert 0 < len(output) < 1000
    assert batch.request_counts.completed == len(output)
    assert ledger(stack, batch.id)[0] == len(output)
    assert {line["error"]["code"] for line in read_lines(client, batch.error_file_id)} == {"batch_cancelled"}
    assert stack.audit().returncode == 0, stack.audit().stdout


RECEIPT = {
    "type": "object",
    "properties": {
        "vendor": {"type": "string", "maxLength": 12},
        "total": {"type": "string", "pattern": "^[0-9]{1,4}\\.[0-9]{2}$"},
        "paid": {"type": "boolean"},
    },
    "required": ["vendor", "total", "paid"],
    "additionalProperties": False,
}


def test_structures_are_kept_and_one_that_cannot_be_is_refused_by_name(stack: Any, client: openai.OpenAI) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "receipt", "strict": True, "schema": RECEIPT}}
    lines = [request_line(number) for number in (1, 2, 4, 8)]  # without stops, n or log-probabilities
    structures: tuple[dict[str, Any], ...] = (
        {"response_format": wanted, "max_tokens": 80},
        {"structured_outputs": {"choice": ["paid", "open"]}, "max_tokens": 8},
        {"guided_regex": "[0-9]{3}-[a-f]{2}", "max_tokens": 8},
        {"structured_outputs": {"json": {"type": "array", "uniqueItems": True}}},
    )
    for line, structure in zip(lines, structures, strict=True):
        line["body"] = {"temperature": 1.0, "seed": 3, **line["body"], **structure}
    done = wait(client, submit(client, "\n".join(map(json.dumps, lines)).encode()).id)
    assert done.status == "completed"
    answers = {
        line["custom_id"]: line["response"]["body"]["choices"][0]["message"]["content"]
        for line in read_lines(client, done.output_file_id)
    }
    assert jsonschema_rs.is_valid(RECEIPT, json.loads(answers["line-1"]))
    assert answers["line-2"] in ("paid", "open")
    assert re.fullmatch("[0-9]{3}-[a-f]{2}", answers["line-4"])
    (refused,) = read_lines(client, done.error_file_id)
    assert refused["response"]["body"]["error"]["param"] == "structured_outputs.json"
    assert "uniqueItems" in refused["response"]["body"]["error"]["message"]


def test_a_token_limit_holds_while_others_go_on_and_its_batch_ends_once_it_is_raised(
    stack: Any, client: openai.OpenAI
) -> None:
    def admin(*arguments: str) -> str:
        done = stack.run(*arguments, "--data-dir", str(stack.data_dir))
        assert done.returncode == 0, done.stderr
        return str(done.stdout).strip()

    def spent_and_reserved() -> tuple[int, int]:
        ((spent, reserved),) = stack.query(
            f"SELECT spent_tokens, reserved_tokens FROM budget WHERE tenant_id = '{tenant}'"
        )
        return int(spent), int(reserved)

    body = {
        "model": "demo",
        "messages": [{"role": "user", "content": "qxzj" * 110}],
        "max_tokens": 8,
    }  # 4 × the estimate
    content = [json.dumps({"custom_id": f"c{n}", "method": "POST", "url": CHAT, "body": body}) for n in range(34)]
    tenant = admin("tenants", "create", "limited", "--budget", "5000")
    with openai.OpenAI(base_url=stack.base_url, api_key=admin("keys", "create", "limited")) as limited:
        batch_id = submit(limited, "\n".join(content).encode()).id
        while not (limited.batches.retrieve(batch_id).waits_for or "").startswith("waiting_budget"):  # type: ignore[attr-defined]
            time.sleep(0.1)
        while stack.query("SELECT FROM chunk WHERE state IN ('ready', 'leased')"):
            time.sleep(0.1)  # covered lines continue
        spent, reserved = spent_and_reserved()
        assert spent > 0
        assert spent + reserved <= 5000
        other = submit(client, json.dumps(request_line(1)).encode())
        assert wait(client, other.id).request_counts.completed == 1
        assert stack.audit().returncode == 0, stack.audit().stdout

        admin("tenants", "budget", "limited", "30000")
        batch = wait(limited, batch_id)
        assert (batch.status, batch.request_counts.completed, batch.waits_for) == ("completed", 34, None)
        spent, reserved = spent_and_reserved()
        assert spent == batch.usage.total_tokens > 15_000
        assert reserved == 0

        admin("tenants", "budget", "limited", str(spent + 500))
        batch = wait(limited, submit(limited, "\n".join(content[:3]).encode(), uncovered_lines="fail").id)
        assert (batch.status, batch.request_counts.completed, batch.request_counts.failed) == ("completed", 1, 2)
        errors = read_lines(limited, batch.error_file_id)
        assert {line["error"]["code"] for line in errors} == {"insufficient_quota"}
    assert stack.audit().returncode == 0, stack.audit().stdout
