"""Turn the lines of an OpenAI batch file into a workload: real text, tokenized for one model. Runs no model.

Outputs end where the model ends them, and an answer's JSON schema is kept.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engine.models.paths import resolve_model_path
from engine.tokenizer import load_tokenizer


class BatchLineError(ValueError):
    """A batch file is missing, or one of its lines cannot be part of a workload."""


def requests_of_lines(path: Path, model: str) -> Iterator[dict[str, Any]]:
    """Yield the requests of a workload, one per line; all arrive at the start.

    Raises BatchLineError, or ModelLoadError if the model or its tokenizer cannot be read.
    """
    if not path.is_file():
        raise BatchLineError(f"There is no batch file at {path}.")
    tokenizer = load_tokenizer(resolve_model_path(model))
    if tokenizer is None or not tokenizer.chat_template:
        raise BatchLineError(f"{model} has no tokenizer with a chat template; give the model of the lines.")
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                try:
                    yield _request(json.loads(line)["body"], tokenizer)
                except (ValueError, TypeError, KeyError) as error:
                    raise BatchLineError(
                        f"{path} line {number} is not a chat completion that can be measured: {error!r}."
                    ) from error


def _request(body: dict[str, Any], tokenizer: Any) -> dict[str, Any]:
    if "tools" in body:
        raise ValueError("it has tools; use a line without tools, or with a response_format of type json_schema")
    prompt = tokenizer.apply_chat_template(
        body["messages"], add_generation_prompt=True, tokenize=True, return_dict=False
    )
    request = {
        "prompt_token_ids": prompt,
        "max_tokens": body["max_tokens"],
        "ignore_eos": False,
        "arrival_seconds": 0.0,
    }
    form = body.get("response_format", {"type": "text"})
    if form["type"] == "json_schema":
        return {**request, "json_schema": json.dumps(form["json_schema"]["schema"])}
    if form["type"] != "text":
        raise ValueError(f"its response_format is {form['type']!r}; text and json_schema are supported")
    return request
