"""Tests of turning bodies of lines into token ids, or into an error that names the parameter."""

from __future__ import annotations

import copy
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from engine.params import SamplingParams
from engine.structured import StructuredOutput
from jobs.lines.bodies import CHAT_ENDPOINT, COMPLETION_ENDPOINT
from jobs.lines.body_checks import MAX_SCORES, BodyError
from jobs.lines.reading import InputLine
from jobs.lines.sampling import Sampling
from workers.prompts import PreparedLine, PromptMaker
from workers.tool_calls.forms import CallForm
from workers.tool_calls.output import CallReader

ROOT = Path(__file__).resolve().parents[2]
DEMO_MODEL = ROOT / "examples" / "demo_model"
CONTEXT, VOCAB = 64, 1024


def prepare(tokenizer: Any, body: dict[str, Any], *, endpoint: str = CHAT_ENDPOINT, line_no: int = 0) -> PreparedLine:
    line = InputLine(line_no=line_no, custom_id="a", model="demo", body={"model": "demo", **body})
    maker = PromptMaker(tokenizer, max_model_len=CONTEXT, vocab_size=VOCAB)
    return maker.prepare(line, endpoint=endpoint, batch_id="batch_1")


def with_template(tokenizer: Any, template: str) -> Any:
    changed = copy.deepcopy(tokenizer)
    changed.chat_template = template
    return changed


def chat(text: str, **body: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **body}


def test_a_conversation_goes_through_the_template_with_exactly_one_bos(tokenizer: Any) -> None:
    (prompt,) = prepare(tokenizer, chat("Hello", max_tokens=4)).prompts
    assert prompt[0] == tokenizer.bos_token_id
    assert prompt.count(tokenizer.bos_token_id) == 1
    assert tokenizer.decode(prompt).endswith("<|assistant|>")


def test_a_text_prompt_and_its_token_ids_are_the_same_prompt(tokenizer: Any) -> None:
    (as_text,) = prepare(tokenizer, {"prompt": "Total 12"}, endpoint=COMPLETION_ENDPOINT).prompts
    (as_ids,) = prepare(tokenizer, {"prompt": list(as_text)}, endpoint=COMPLETION_ENDPOINT).prompts
    assert list(as_ids) == list(as_text) == tokenizer.encode("Total 12")


def test_several_prompts_of_one_line_stay_in_order(tokenizer: Any) -> None:
    prompts = prepare(tokenizer, {"prompt": ["one", "two", "three"]}, endpoint=COMPLETION_ENDPOINT).prompts
    assert [list(prompt) for prompt in prompts] == [tokenizer.encode(text) for text in ("one", "two", "three")]


def test_a_seed_is_derived_from_batch_and_line_where_none_is_given(tokenizer: Any) -> None:
    first, again = (prepare(tokenizer, chat("Hi", max_tokens=4)).params.seed for _ in range(2))
    other = prepare(tokenizer, chat("Hi", max_tokens=4), line_no=1).params.seed
    assert first == again != other
    assert prepare(tokenizer, chat("Hi", max_tokens=4, seed=0)).params.seed == 0


def test_without_a_seed_each_prompt_of_a_line_has_its_own_and_a_given_one_is_that_of_all(tokenizer: Any) -> None:
    def seeds(prompts: list[str], **body: Any) -> list[int | None]:
        prepared = prepare(tokenizer, {"prompt": prompts, **body}, endpoint=COMPLETION_ENDPOINT)
        return [prepared.params_of(index).seed for index in range(len(prompts))]

    derived = seeds(["Total"] * 3)
    assert len(set(derived)) == 3
    assert seeds(["Total"] * 3) == derived
    assert seeds(["Total"]) == derived[:1] == [4814660731209460882], "what resumed lines were begun with"
    assert seeds(["Total"] * 2, seed=7) == [7, 7]


@pytest.mark.parametrize(("num_words", "max_tokens", "code"), [(200, 1, "context_length_exceeded"), (0, 4, None)])
def test_a_prompt_that_leaves_no_room_is_refused_with_the_numbers(
    tokenizer: Any, num_words: int, max_tokens: int, code: str | None
) -> None:
    body = chat("word " * num_words, max_tokens=max_tokens)
    if code is None:
        assert prepare(tokenizer, body).params.max_tokens == max_tokens
        return
    with pytest.raises(BodyError, match=f"context is {CONTEXT}") as caught:
        prepare(tokenizer, body)
    assert (caught.value.param, caught.value.code) == ("messages", code)


def test_max_tokens_up_to_the_context_is_taken_and_one_more_is_refused(tokenizer: Any) -> None:
    (prompt,) = prepare(tokenizer, chat("Hi", max_tokens=1)).prompts
    room = CONTEXT - len(prompt)
    assert prepare(tokenizer, chat("Hi", max_tokens=room)).params.max_tokens == room
    with pytest.raises(BodyError, match=f"Lower max_tokens to {room}") as caught:
        prepare(tokenizer, chat("Hi", max_tokens=room + 1))
    assert (caught.value.param, caught.value.code) == ("max_tokens", "context_length_exceeded")


def test_without_max_tokens_the_answer_may_fill_the_context(tokenizer: Any) -> None:
    assert prepare(tokenizer, chat("Hi")).params.max_tokens is None


def test_an_empty_prompt_is_refused(tokenizer: Any) -> None:
    class NoTokens:
        def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
            return []

    with pytest.raises(BodyError, match="prompt is empty"):
        prepare(NoTokens(), {"prompt": "x"}, endpoint=COMPLETION_ENDPOINT)


@pytest.mark.parametrize(
    ("template", "named"),
    [
        ("{{ 1 + messages[0].content }}", "TypeError"),
        ("{{ raise_exception('only one turn') }}", "TemplateError: only one turn"),
        ("{{ messages[0].missing + 'x' }}", "UndefinedError"),
        ("{{ 'a'.encode('x') }}", "LookupError"),
        ("{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}", "RecursionError"),
        ("{% endif %}", "TemplateSyntaxError"),
    ],
)
def test_whatever_a_template_raises_is_the_lines_error_and_names_the_exception(
    tokenizer: Any, template: str, named: str
) -> None:
    with pytest.raises(BodyError, match=f"chat template refused the messages: {named}") as caught:
        prepare(with_template(tokenizer, template), chat("Hi", max_tokens=4))
    assert caught.value.param == "messages"


def test_wishes_reach_the_engine_in_its_own_form(tokenizer: Any) -> None:
    body = chat("Hi", max_tokens=4, logit_bias={"5": -1}, bad_words=["no"], allowed_token_ids=[5, 6])
    params = prepare(tokenizer, body).params
    assert params.logit_bias == {5: -1.0}
    assert params.allowed_token_ids == (5, 6)
    assert params.bad_words == ()
    spelled = [tokenizer.encode(text, add_special_tokens=False) for text in ("no", " no")]
    assert [list(ids) for ids in params.bad_words_token_ids] == spelled


@pytest.mark.parametrize(
    "fields",
    [{"logit_bias": {"1024": 1}}, {"allowed_token_ids": [2000]}, {"stop_token_ids": [1024]}, {"prompt": [5, 1024]}],
)
def test_a_token_id_that_the_model_lacks_is_refused_by_name(tokenizer: Any, fields: dict[str, Any]) -> None:
    with pytest.raises(BodyError, match=r"0 to 1023") as caught:
        prepare(tokenizer, {"prompt": "x", **fields}, endpoint=COMPLETION_ENDPOINT)
    assert caught.value.param in fields


def test_an_echo_brings_the_prompts_text_and_asks_for_its_log_probabilities(tokenizer: Any) -> None:
    prompts = ["Total", tokenizer.encode("Hello")]
    body = {"prompt": prompts, "echo": True, "max_tokens": 0}
    plain = prepare(tokenizer, body, endpoint=COMPLETION_ENDPOINT)
    assert plain.echoes == ("Total", tokenizer.decode(prompts[1], skip_special_tokens=True))
    assert (plain.params.max_tokens, plain.params.prompt_logprobs) == (0, None)
    scored = prepare(tokenizer, {**body, "logprobs": 2, "prompt_logprobs": 1}, endpoint=COMPLETION_ENDPOINT)
    assert (scored.params.prompt_logprobs, scored.num_prompt_logprobs) == (2, 1)
    assert prepare(tokenizer, {"prompt": "Total"}, endpoint=COMPLETION_ENDPOINT).echoes is None


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"prompt_logprobs": 20, "n": 128}, "prompt_logprobs"),
        ({"logprobs": 20, "n": 128, "echo": True}, "logprobs"),
        ({"logprobs": 20, "prompt_logprobs": 20, "n": 64, "echo": True}, "prompt_logprobs"),
        ({"prompt_logprobs": 20, "prompt": [[5] * 400] * 128}, "prompt_logprobs"),
    ],
)
def test_an_answer_that_would_repeat_more_of_its_prompts_than_a_worker_can_hold_is_refused_with_the_numbers(
    tokenizer: Any, asked: dict[str, Any], param: str
) -> None:
    body = {"prompt": [5] * 400, "max_tokens": 1, **asked}
    line = InputLine(line_no=0, custom_id="a", model="m", body=body)
    maker = PromptMaker(tokenizer, max_model_len=512, vocab_size=VOCAB)
    with pytest.raises(BodyError, match=r"show 1,075,200 log-probabilities .*; at most 1,000,000 are shown") as caught:
        maker.prepare(line, endpoint=COMPLETION_ENDPOINT, batch_id="b")
    assert caught.value.param == param


def test_a_prompt_of_a_million_tokens_may_have_its_own_log_probabilities(tokenizer: Any) -> None:
    maker = PromptMaker(tokenizer, max_model_len=2**20, vocab_size=len(tokenizer))
    body = {"prompt": [5] * MAX_SCORES, "max_tokens": 1, "prompt_logprobs": 0}
    line = InputLine(line_no=0, custom_id="a", model="m", body=body)
    assert maker.prepare(line, endpoint=COMPLETION_ENDPOINT, batch_id="b").num_prompt_scores == MAX_SCORES


def test_answers_end_where_they_show_a_million_log_probabilities(tokenizer: Any) -> None:
    def most_output_tokens(context: int, **asked: Any) -> int:
        line = InputLine(line_no=0, custom_id="a", model="m", body=chat("Hi", logprobs=True, top_logprobs=9, **asked))
        maker = PromptMaker(tokenizer, max_model_len=context, vocab_size=VOCAB)
        most = maker.prepare(line, endpoint=CHAT_ENDPOINT, batch_id="b").most_output_tokens
        counted: dict[str, Any] = {"default_max_tokens": 2**20, "is_wanted": lambda: True, "room": nullcontext}
        assert maker.measure(line, endpoint=CHAT_ENDPOINT, **counted)[1] == most
        return most

    assert most_output_tokens(2**20) == 100_000
    assert most_output_tokens(2**20, n=10) == 100_000
    assert most_output_tokens(2**20, max_tokens=7) == 7
    assert most_output_tokens(2**20, max_tokens=500_000) == 100_000
    assert most_output_tokens(2**20, max_completion_tokens=12_501, n=8) == 100_000
    assert 50_000 < most_output_tokens(60_000) < 60_000, "the context ends before"


def test_prompts_of_a_line_share_its_log_probabilities(tokenizer: Any) -> None:
    maker = PromptMaker(tokenizer, max_model_len=2**20, vocab_size=VOCAB)
    body = {"prompt": ["a"] * 256, "n": 8, "logprobs": 20, "max_tokens": 24}
    line = InputLine(line_no=0, custom_id="a", model="m", body=body)
    assert maker.prepare(line, endpoint=COMPLETION_ENDPOINT, batch_id="b").params.max_tokens == 23


def test_min_tokens_is_no_more_than_log_probabilities_leave_room_for(tokenizer: Any) -> None:
    maker = PromptMaker(tokenizer, max_model_len=2**20, vocab_size=VOCAB)
    body = chat("Hi", logprobs=True, top_logprobs=20, n=128, min_tokens=1000)
    line = InputLine(line_no=0, custom_id="a", model="m", body=body)
    params = maker.prepare(line, endpoint=CHAT_ENDPOINT, batch_id="b").params
    assert (params.min_tokens, params.max_tokens) == (372, 372)


def test_an_answer_that_would_repeat_more_of_its_prompts_than_are_stored_is_refused(tokenizer: Any) -> None:
    maker = PromptMaker(tokenizer, max_model_len=2**20, vocab_size=VOCAB)
    body = {"prompt": "a" * 200_000, "echo": True, "n": 128, "max_tokens": 1}
    line = InputLine(line_no=0, custom_id="a", model="m", body=body)
    with pytest.raises(BodyError, match=r"repeat 25,600,000 bytes .*; at most 16,777,216 .* Lower n"):
        maker.prepare(line, endpoint=COMPLETION_ENDPOINT, batch_id="b")


def test_every_sampling_parameter_of_the_wire_is_one_of_the_engine_with_its_default() -> None:
    given = {one.name: one.default for one in fields(Sampling)}
    known = {one.name: one.default for one in fields(SamplingParams)}
    own = {"logit_bias": (), "max_tokens": None}  # pairs; the endpoint decides
    assert given == {name: known[name] for name in given} | own


def test_a_response_format_becomes_the_engines_structured_output(tokenizer: Any) -> None:
    schema = {"type": "object", "properties": {"vendor": {"type": "string"}}}
    wanted = {"type": "json_schema", "json_schema": {"name": "invoice", "schema": schema}}
    assert prepare(tokenizer, chat("Hi", response_format=wanted)).params.structured == StructuredOutput(json=schema)
    assert prepare(tokenizer, chat("Hi", response_format={"type": "text"})).params.structured is None
    assert prepare(
        tokenizer, {"prompt": "Hi", "guided_choice": ["a", "b"]}, endpoint=COMPLETION_ENDPOINT
    ).params.structured == StructuredOutput(choice=["a", "b"])


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        (
            {"structured_outputs": {"json": {"type": "array", "uniqueItems": True}}},
            "structured_outputs.json",
            "The JSON schema uses uniqueItems, which is not supported; remove it.",
        ),
        ({"guided_regex": "("}, "guided_regex", "The regex cannot be used"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json", "json is no JSON schema"),
    ],
)
def test_a_structure_that_cannot_be_kept_is_refused_with_the_keyword(
    tokenizer: Any, fields: dict[str, Any], param: str, message: str
) -> None:
    with pytest.raises(BodyError) as caught:
        prepare(tokenizer, chat("Hi", **fields))
    assert caught.value.param == param
    assert caught.value.message.startswith(message)


TOOL_TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}<tool_call>{% endif %}{% for m in messages %}{{ m | tojson }}{% endfor %}"
)
UNIQUE = {"type": "array", "uniqueItems": True}


@pytest.fixture(scope="module")
def caller(tokenizer: Any) -> Any:
    """Give the demo model's tokenizer a chat template that supports tools."""
    return with_template(tokenizer, TOOL_TEMPLATE)


def tool(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **fields}}


def test_tools_are_told_in_the_prompt_and_calls_looked_for(caller: Any) -> None:
    body = chat("Hi", tools=[tool("total"), tool("vendor")], max_tokens=1)
    maker = PromptMaker(caller, max_model_len=512, vocab_size=VOCAB)
    line = InputLine(line_no=0, custom_id="a", model="demo", body={"model": "demo", **body})
    prepared = maker.prepare(line, endpoint=CHAT_ENDPOINT, batch_id="batch_1")
    assert '"name": "vendor"' in caller.decode(prepared.prompts[0])
    assert prepared.calls == CallReader(form=CallForm.HERMES, names=frozenset({"total", "vendor"}), is_parallel=True)
    assert prepared.params.structured is None
    line = replace(line, body=line.body | {"tool_choice": "none"})
    without = maker.prepare(line, endpoint=CHAT_ENDPOINT, batch_id="batch_1")
    assert "vendor" not in caller.decode(without.prompts[0])
    assert without.calls is None


def test_what_a_function_leaves_null_is_told_as_if_it_were_absent(tokenizer: Any) -> None:
    template = "{% for t in tools %}<tool_call>{{ t.function.description + t.function.parameters.type }}{% endfor %}"
    maker = with_template(tokenizer, template)
    functions = [tool("total"), tool("total", description=None, parameters=None, strict=None)]
    absent, null = (prepare(maker, chat("Hi", tools=[one], max_tokens=1)).prompts for one in functions)
    assert tokenizer.decode(null[0]) == "<tool_call>object"
    assert absent == null


def test_a_required_call_constrains_the_output_and_its_schema_must_be_supported(caller: Any) -> None:
    maker = PromptMaker(caller, max_model_len=512, vocab_size=VOCAB)

    def required(parameters: dict[str, Any]) -> PreparedLine:
        body = chat("Hi", tools=[tool("total", parameters=parameters)], tool_choice="required", max_tokens=1)
        line = InputLine(line_no=0, custom_id="a", model="demo", body={"model": "demo", **body})
        return maker.prepare(line, endpoint=CHAT_ENDPOINT, batch_id="batch_1")

    structured = required({"type": "object"}).params.structured
    assert structured is not None
    assert structured.kind == "grammar"
    with pytest.raises(BodyError, match="uses uniqueItems, which is not supported") as caught:
        required({"type": "object", "properties": {"a": UNIQUE}})
    assert caught.value.param == "tools"


def test_a_model_whose_template_knows_no_tools_refuses_them(tokenizer: Any) -> None:
    with pytest.raises(BodyError, match="chat template has no tools") as caught:
        prepare(tokenizer, chat("Hi", tools=[tool("total")], max_tokens=1))
    assert caught.value.param == "tools"


def test_a_worker_with_a_plain_tokenizer_costs_no_torch() -> None:
    code = (
        "import sys; from pathlib import Path; import workers.gpu_main; from engine.tokenizer import load_tokenizer;"
        f"tokenizer = load_tokenizer(Path({str(DEMO_MODEL)!r}));"
        "tokenizer.apply_chat_template([{'role': 'user', 'content': 'x'}], tokenize=False);"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
