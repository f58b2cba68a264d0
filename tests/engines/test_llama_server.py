"""A real llama-server behind a worker: greedy answers are our engine's, and what it cannot is refused by name.

Not run by default: `bash scripts/real-engines && bash scripts/test -m engines tests/engines`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion
from sqlalchemy.orm import Session, sessionmaker
from transformers import AutoTokenizer

from jobs.batches import lifecycle
from jobs.tables import Tenant
from tests.engines.batches import Submit, lines_of, read, run_all
from tests.engines.fixtures import Connect
from tests.engines.models import ClearLine, clear_lines, make_model, write_gguf
from tests.engines.servers import llama_server
from tests.real_model import real_model
from workers.remote.dialects import LLAMA_SERVER
from workers.remote.exchange import Address
from workers.remote.identity import identify
from workers.remote.probing.asking import Server, ask
from workers.remote.probing.probes import MAX_TOKENS, probes_of
from workers.remote.sizes import TokenSizes

pytestmark = [pytest.mark.engines, pytest.mark.long, pytest.mark.timeout(1800)]

NUM_LINES = 200
CONTEXT = 512
NOT_OFFERED = {"n", "tools", "many_prompts", "echo"}
"""It counts the first of several choices alone, forces no call with this model's template, and knows no echo."""


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    log = tmp_path_factory.mktemp("smollm2") / "log"
    with llama_server(real_model(), slots=4, context=CONTEXT, log=log) as url:
        yield url


def test_greedy_answers_are_those_of_our_engine(tmp_path: Path, connect: Connect, submit_valid: Submit) -> None:
    path = make_model(tmp_path / "model", "llama")
    lines = clear_lines(path, NUM_LINES)
    sizes = TokenSizes(AutoTokenizer.from_pretrained(path), max_model_len=CONTEXT)
    num_equal = 0
    with llama_server(write_gguf(path), slots=4, context=CONTEXT, log=tmp_path / "log") as url:
        for is_chat in (True, False):
            asked = [line for line in lines if ("messages" in line.body) is is_chat]
            answers = run_all(connect, url, submit_valid, [line.body for line in asked], sizes=sizes)
            found = [ClearLine(body=line.body, **read(answer)) for line, answer in zip(asked, answers, strict=True)]
            num_equal += sum(one == two for one, two in zip(found, asked, strict=True))
    assert num_equal == NUM_LINES


def test_its_probes_show_what_it_does(smollm2: str) -> None:
    address = Address(url=smollm2)
    identity = identify(address, named=None, served=None)
    assert (identity.dialect, identity.max_model_len, identity.num_slots) == (LLAMA_SERVER, CONTEXT, 4)
    server = Server(address=address, dialect=LLAMA_SERVER, model=identity.model, is_chat=True)
    found, num_tokens = ask(server, probes_of(LLAMA_SERVER), budget=MAX_TOKENS, seconds=120)
    assert {name for name, finding in found.items() if finding.seen != "yes"} == NOT_OFFERED
    assert num_tokens <= MAX_TOKENS


SCHEMA = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"], "additionalProperties": False}


def test_its_features_give_valid_answers(smollm2: str, connect: Connect, submit_valid: Submit) -> None:
    hello = {"model": "demo", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 40, "temperature": 0.0}
    schema = {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA, "strict": True}}
    asked: list[dict[str, Any]] = [
        {"logprobs": True, "top_logprobs": 2, "max_tokens": 3},
        {"logprobs": True, "max_tokens": 3},
        {"response_format": schema},
        {"stop": ["e", "a", "o"]},
        {"max_tokens": 5, "ignore_eos": True, "top_k": 3, "min_p": 0.1, "repetition_penalty": 1.1, "seed": 5},
        {"messages": [{"role": "user", "content": "word " * 600}]},
        {"n": 2},
    ]
    *answers, too_long, several = run_all(connect, smollm2, submit_valid, [hello | more for more in asked])
    two, none, formed, stopped, limited = map(ChatCompletion.model_validate, answers)
    for answer, num in ((two, 2), (none, 0)):
        assert answer.choices[0].logprobs is not None
        assert [len(each.top_logprobs) for each in answer.choices[0].logprobs.content or ()] == [num] * 3
    assert json.loads(formed.choices[0].message.content or "")["a"] in ("x", "y")
    assert not set("eao") & set(stopped.choices[0].message.content or "")
    assert limited.usage is not None
    assert limited.usage.completion_tokens == 5
    assert too_long["error"]["code"] == "context_length_exceeded"
    assert several["error"]["code"] == "unsupported_parameter"


def test_prompts_have_log_probabilities_in_the_form_of_completions(
    smollm2: str, connect: Connect, submit_valid: Submit
) -> None:
    common = {"model": "demo", "prompt": "One two three", "max_tokens": 3, "temperature": 0.0}
    answers = run_all(connect, smollm2, submit_valid, [common | {"logprobs": num} for num in (0, 2)])
    for answer in map(Completion.model_validate, answers):
        logprobs = answer.choices[0].logprobs
        assert logprobs is not None
        assert "".join(logprobs.tokens or ()) == answer.choices[0].text
        assert len(logprobs.token_logprobs or ()) == 3


@pytest.mark.parametrize("how", ["cancel", "drain"])
def test_its_slots_are_free_once_nobody_wants_the_answers(
    smollm2: str, how: str, connect: Connect, submit_valid: Submit, maker: sessionmaker[Session], tenant: Tenant
) -> None:
    long = {"model": "demo", "prompt": "Once upon a time", "max_tokens": 450, "ignore_eos": True}
    post = connect(smollm2)
    batch_id = submit_valid(lines_of([long] * 8, "/v1/completions"), endpoint="/v1/completions")
    running = post.begin_next()
    _until(lambda: sum(_busy(smollm2)) == 4)
    if how == "drain":
        post.drain.begin(0)
    else:
        with maker.begin() as session:
            lifecycle.cancel_batch(session, tenant.id, batch_id)
    running.join(60)
    _until(lambda: sum(_busy(smollm2)) == 0)
    assert not post.results() or how == "cancel"


def _busy(url: str) -> list[bool]:
    return [slot["is_processing"] for slot in httpx.get(f"{url.removesuffix('v1')}slots", timeout=30).json()]


def _until(condition: Callable[[], bool]) -> None:
    for _ in range(600):
        if condition():
            return
    raise AssertionError("it never came true")
