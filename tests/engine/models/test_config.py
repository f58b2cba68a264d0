"""Tests of what is read from a model's directory before its weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx2
import pytest
from huggingface_hub import errors

from engine.build import build_engine
from engine.config import EngineConfig, LoadFormat
from engine.errors import InvalidConfigError, ModelLoadError, UnsupportedModelError
from engine.models.config import load_model_config
from engine.models.paths import resolve_model_path
from tests.engine.tiny_models import TINY

VOCAB_SIZE = TINY["vocab_size"]


def response(status: int) -> httpx2.Response:
    return httpx2.Response(status, request=httpx2.Request("GET", "http://hub"))


def eos_token_ids(path: Path, *, config: Any, generation: Any = None) -> tuple[int, ...]:
    """Return the end-of-sequence tokens of a directory with these in its two files."""
    settings = {**TINY, "model_type": "llama", "eos_token_id": config}
    (path / "config.json").write_text(json.dumps(settings))
    if generation is not None:
        (path / "generation_config.json").write_text(json.dumps(generation))
    return load_model_config(str(path)).eos_token_ids


@pytest.mark.parametrize(
    ("config", "generation", "expected"),
    [
        (2, None, (2,)),
        ([2, VOCAB_SIZE - 1], None, (2, VOCAB_SIZE - 1)),
        (None, None, ()),
        (2, {}, (2,)),
        (2, {"eos_token_id": [0, 3]}, (0, 3)),
        (2, {"eos_token_id": None}, ()),
        (VOCAB_SIZE, {"eos_token_id": 3}, (3,)),
    ],
)
def test_generation_config_decides_which_tokens_end_the_output(
    tmp_path: Path, config: Any, generation: Any, expected: tuple[int, ...]
) -> None:
    assert eos_token_ids(tmp_path, config=config, generation=generation) == expected


@pytest.mark.parametrize(
    ("config", "generation", "file", "expected"),
    [
        (VOCAB_SIZE, None, "config.json", ()),
        ([2, -1], {}, "config.json", (2,)),
        (2, {"eos_token_id": [2, 50256]}, "generation_config.json", (2,)),
    ],
)
def test_an_end_of_sequence_token_that_the_model_lacks_is_left_out_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, config: Any, generation: Any, file: str, expected: tuple[int, ...]
) -> None:
    assert eos_token_ids(tmp_path, config=config, generation=generation) == expected
    (message,) = caplog.messages
    assert message.startswith(f"{tmp_path / file}: no output ends with token")


@pytest.mark.parametrize(("generation", "shown"), [("</s>", "'</s>'"), (["</s>"], "'</s>'"), ([True], "True")])
def test_an_end_of_sequence_token_that_is_no_number_is_refused_with_its_file(
    tmp_path: Path, generation: Any, shown: str
) -> None:
    with pytest.raises(ModelLoadError) as caught:
        eos_token_ids(tmp_path, config=2, generation={"eos_token_id": generation})
    file = tmp_path / "generation_config.json"
    assert str(caught.value).startswith(f"{file} ")
    assert f"token {shown};" in str(caught.value)


@pytest.mark.parametrize("name", ["dtype", "torch_dtype"])
@pytest.mark.parametrize("dtype", ["auto", "torch.bfloat16", "nn", ""])
@pytest.mark.parametrize("is_of_text", [False, True])
def test_a_dtype_that_torch_lacks_is_refused_with_what_is_allowed(
    tmp_path: Path, *, name: str, dtype: str, is_of_text: bool
) -> None:
    given = {name: dtype}
    settings = {**TINY, "model_type": "llama", **({"text_config": given} if is_of_text else given)}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    with pytest.raises(ModelLoadError) as caught:
        load_model_config(str(tmp_path))
    assert str(caught.value) == (
        f"{tmp_path / 'config.json'} has {name} {dtype!r}; it must be the name of a dtype that torch has, such as "
        "bfloat16, or be left out."
    )


@pytest.mark.parametrize(
    ("model_type", "given", "said"),
    [
        ("llama", {"hidden_size": "64"}, "'hidden_size': TypeError: Field 'hidden_size' expected int, got str"),
        ("llama", {"num_hidden_layers": 2.5}, "'num_hidden_layers'"),
        ("llama", {"rope_parameters": "default"}, "rope_parameters"),
        ("llama", {"num_attention_heads": 7}, "attention heads"),
        ("qwen2_5_vl", {"text_config": 5}, ""),
    ],
)
def test_a_config_of_the_wrong_types_is_refused_with_its_file_and_field(
    tmp_path: Path, *, model_type: str, given: dict[str, Any], said: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**TINY, "model_type": model_type, **given}))
    with pytest.raises(ModelLoadError) as caught:
        load_model_config(str(tmp_path))
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'config.json'} is not a valid {model_type} configuration: ")
    assert said in message


@pytest.mark.parametrize(
    "given", [{"rope_parameters": {"rope_type": "foo", "rope_theta": 1e4}}, {"rope_scaling": {"type": "foo"}}]
)
def test_a_rope_type_that_nobody_knows_is_refused_by_name(tmp_path: Path, given: dict[str, Any]) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**TINY, "model_type": "llama", **given}))
    with pytest.raises(UnsupportedModelError, match=r"has rope_type 'foo'; .* default, dynamic, linear, llama3"):
        load_model_config(str(tmp_path))


@pytest.mark.parametrize(
    ("model_type", "given", "error"),
    [
        ("cpmant", {"dim_head": 8, "dim_ff": 96}, InvalidConfigError),  # it has no longest sequence
        ("cpmant", {"dim_head": 8, "dim_ff": 96, "max_position_embeddings": 64}, UnsupportedModelError),
        ("roc_bert", {"num_attention_heads": 6}, UnsupportedModelError),
    ],
)
def test_what_transformers_makes_and_this_engine_does_not_run_is_refused_in_one_sentence(
    tmp_path: Path, model_type: str, given: dict[str, Any], error: type[Exception]
) -> None:
    sizes = {name: TINY[name] for name in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")}
    (tmp_path / "config.json").write_text(json.dumps({**sizes, "model_type": model_type, **given}))
    with pytest.raises(error):
        build_engine(EngineConfig(model=str(tmp_path), load_format=LoadFormat.RANDOM, device="cpu", num_kv_blocks=8))


def test_what_transformers_own_code_fails_at_is_its_models_error(tmp_path: Path) -> None:
    settings = {**TINY, "model_type": "gpt2", "activation_function": "foo"}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    with pytest.raises(ModelLoadError, match=r"gpt2 .*config\.json .*foo"):
        build_engine(EngineConfig(model=str(tmp_path), load_format=LoadFormat.RANDOM, device="cpu", num_kv_blocks=8))


@pytest.mark.parametrize("name", ["num_hidden_layers", "num_attention_heads", "hidden_size", "vocab_size"])
@pytest.mark.parametrize("size", [0, -1, 2**40])
def test_what_is_no_size_is_refused_before_anything_is_made_of_it(tmp_path: Path, *, name: str, size: int) -> None:
    for given in ({name: size}, {"text_config": {name: size}}):
        (tmp_path / "config.json").write_text(json.dumps({**TINY, "model_type": "llama", **given}))
        with pytest.raises(ModelLoadError, match=f"config.json has {name} {size}; it must be from 1 to"):
            load_model_config(str(tmp_path))


@pytest.mark.parametrize(("given", "expected"), [({}, "float32"), ({"dtype": None}, "float32"),
                                                 ({"torch_dtype": "bfloat16"}, "bfloat16")])  # fmt: skip
def test_the_dtype_is_the_one_of_config_json(tmp_path: Path, given: dict[str, Any], expected: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**TINY, "model_type": "llama", **given}))
    assert load_model_config(str(tmp_path)).dtype == expected


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("org/tiny", ("org/tiny", None)),
        ("org/tiny@v1.0", ("org/tiny", "v1.0")),
        ("org/tiny@refs/pr/7", ("org/tiny", "refs/pr/7")),
    ],
)
def test_a_hub_model_is_fetched_at_the_revision_that_its_name_pins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, expected: tuple[str, str | None]
) -> None:
    asked: list[tuple[str, str | None]] = []

    def fetch(hub_id: str, *, revision: str | None, **_: Any) -> str:
        asked.append((hub_id, revision))
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    assert resolve_model_path(model) == tmp_path
    assert asked == [expected]


@pytest.mark.parametrize(
    ("model", "message"), [("org/tiny@", "names no revision after @"), ("tiny@v1", "There is no model directory")]
)
def test_a_hub_model_without_a_revision_or_an_owner_is_refused(model: str, message: str) -> None:
    with pytest.raises(ModelLoadError, match=message):
        resolve_model_path(model)


def test_a_folder_may_have_an_at_sign_in_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "tiny@v1"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    assert resolve_model_path(str(folder)) == folder


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (errors.LocalEntryNotFoundError("no network"), "copy the model's folder"),
        (errors.GatedRepoError("401", response=response(401)), "Accept its terms"),
        (errors.RevisionNotFoundError("404", response=response(404)), "branch, tag or commit"),
        (errors.RepositoryNotFoundError("404", response=response(404)), "HF_TOKEN"),
        (OSError("disk full. "), "disk full"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_model_that_the_hub_does_not_give_is_one_sentence_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, error: Exception, advice: str
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("huggingface_hub.snapshot_download", refuse)
    with pytest.raises(ModelLoadError) as caught:
        resolve_model_path("org/none@v1")
    message = str(caught.value)
    assert message.startswith("org/none at v1 ")
    assert advice in message
    assert (message[-1], message[-2] == ".", "\n" in message) == (".", False, False)
