"""Checks of single values of a request body, and the messages for wrong ones.

Pure; `jobs.lines.sampling` and `jobs.lines.bodies` assign checks to parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jobs.errors import InputError
from jobs.lines.reading import shown
from protocol.sampling import BIAS, MAX_INT, RANGES, TOKEN_ID, Number, Range, Whole

MAX_STOPS = 32  # OpenAI allows 4; each costs a search per token
MAX_WORD_CHARACTERS = 256  # of a stop string, whose beginnings are searched at each token, and of a bad word
MAX_BAD_WORDS = 1024  # these three are written out for every sampled token
MAX_BIASES = 1024  # OpenAI documents no limit
MAX_STOP_TOKEN_IDS = 1024
MAX_ALLOWED_TOKEN_IDS = 16_384  # a step costs the same with one; a waiting line holds 36 bytes for each
MAX_PROMPTS = 2048  # of one completion line; a line is one unit of result, so it must not be a batch of its own
MAX_ANSWERS = 2048  # of one line: its prompts times n, each of them a running sequence and a stored text

MAX_SCORES = 1_000_000
"""Log-probabilities of the prompts in a line's answer, and as many of the outputs, 80 MB each: for a million tokens
their own only, for 47,000 tokens the 20 likeliest besides."""
MAX_ECHO_BYTES = 16 * 2**20  # of one line's answers: the echoed prompts, as UTF-8


class BodyError(InputError):
    """A body that cannot be run: becomes its line's error with status 400; other lines are not affected."""

    def __init__(self, param: str | None, message: str, *, code: str = "invalid_value") -> None:
        super().__init__(message, param=param, code=code)


Check = Callable[[str, Any], Any]
"""Takes the parameter's name and its non-null value; returns the parsed value or raises BodyError."""


# --- checks of one value ---------------------------------------------------------------------------------------------


def wrong(name: str, value: object, allowed: str, *, code: str = "invalid_value") -> BodyError:
    return BodyError(name, f"{name} is {shown(value)}; it must be {allowed}", code=code)


def unsupported(name: str, message: str) -> BodyError:
    return BodyError(name, message, code="unsupported_parameter")


@dataclass(frozen=True, slots=True)
class Within:
    """Check for a number in a range; numbers that need not be whole become floats."""

    allowed: Range

    def __call__(self, name: str, value: Any) -> Any:
        if not self.allowed.is_kind(value):
            raise wrong(name, value, str(self.allowed), code="invalid_type")
        if value not in self.allowed:
            raise wrong(name, value, str(self.allowed))
        return float(value) if isinstance(self.allowed, Number) else value

    @property
    def shown(self) -> str:
        """Return the range as documented, without an upper end that is only that of the type."""
        low, high = (
            f"{end:g}" if isinstance(end, float) else str(end) for end in (self.allowed.low, self.allowed.high)
        )
        return f"{low} … {'' if high == str(MAX_INT) else high}".replace("-", "−").strip()


def _shown(end: float) -> str:
    return f"{end:g}" if isinstance(end, float) else str(end)


def whole(low: int, high: int = MAX_INT) -> Within:
    """Return the check for a whole number from `low` to `high`."""
    return Within(Whole(low, high))


def in_range(name: str) -> Within:
    """Return the check for a sampling parameter that is a number."""
    return Within(RANGES[name])


def top_p(name: str, value: Any) -> Any:
    if value == 0 and type(value) is not bool:
        raise wrong(name, value, "above 0 and at most 1; for greedy decoding set temperature to 0")
    return in_range(name)(name, value)


def of_type(kind: type, title: str) -> Check:
    def check(name: str, value: Any) -> Any:
        if type(value) is not kind:
            raise wrong(name, value, title, code="invalid_type")
        return value

    return check


flag = of_type(bool, "true or false")
text = of_type(str, "a string")
object_ = of_type(dict, "an object")


def only(*harmless: object) -> Check:
    """Return a check that accepts the values without effect and refuses all others."""

    def check(name: str, value: Any) -> Any:
        if any(type(value) is type(allowed) and value == allowed for allowed in harmless):
            return value
        allowed_text = " or ".join(shown(allowed) for allowed in harmless)
        remedy = f"only {allowed_text} is accepted" if harmless else "remove it"
        raise unsupported(name, f"{name} is {shown(value)}; this service does not support it, {remedy}")

    return check


refused = only()


def stops(name: str, value: Any) -> tuple[str, ...]:
    stops = [value] if type(value) is str else value
    if type(stops) is not list or not all(type(stop) is str for stop in stops):
        raise wrong(name, value, "a string or a list of strings", code="invalid_type")
    if len(stops) > MAX_STOPS or not all(stops):
        raise wrong(name, value, f"at most {MAX_STOPS} non-empty strings")
    _check_lengths(name, stops)
    return tuple(stops)


def token_ids(name: str, value: Any) -> tuple[int, ...]:
    if type(value) is not list:
        raise wrong(name, value, "a list of token ids", code="invalid_type")
    if not TOKEN_ID.holds_all(value):
        first = next(token_id for token_id in value if token_id not in TOKEN_ID)
        raise wrong(name, first, "a list of token ids, whole numbers from 0")
    return tuple(value)


def stop_token_ids(name: str, value: Any) -> tuple[int, ...]:
    ids = token_ids(name, value)
    _check_num_ids(name, ids, allowed=MAX_STOP_TOKEN_IDS)
    return ids


def allowed_token_ids(name: str, value: Any) -> tuple[int, ...]:
    ids = token_ids(name, value)
    if not ids:
        raise wrong(name, value, "at least one token id")
    _check_num_ids(name, ids, allowed=MAX_ALLOWED_TOKEN_IDS)
    return ids


def _check_num_ids(name: str, ids: Sequence[int], *, allowed: int) -> None:
    if len(ids) > allowed:
        raise BodyError(name, f"{name} holds {len(ids):,} token ids; at most {allowed:,} are allowed")


def bad_words(name: str, value: Any) -> tuple[str, ...]:
    if type(value) is not list or not all(type(word) is str for word in value):
        raise wrong(name, value, "a list of strings", code="invalid_type")
    if len(value) > MAX_BAD_WORDS or not all(word.strip() for word in value):
        raise wrong(name, value, f"at most {MAX_BAD_WORDS} strings that are not blank")
    _check_lengths(name, value)
    return tuple(value)


def _check_lengths(name: str, words: list[str]) -> None:
    longest = max(map(len, words), default=0)
    if longest > MAX_WORD_CHARACTERS:
        message = f"{name} holds a string of {longest:,} characters; at most {MAX_WORD_CHARACTERS} are allowed in each"
        raise BodyError(name, message)


def logit_bias(name: str, value: Any) -> tuple[tuple[int, float], ...]:
    """Return pairs of token id and bias; JSON has the ids as strings."""
    if type(value) is not dict:
        raise wrong(name, value, "an object from token ids to numbers", code="invalid_type")
    if len(value) > MAX_BIASES:
        raise BodyError(name, f"{name} holds {len(value)} token ids; at most {MAX_BIASES} are allowed")
    return tuple((_bias_token(name, key), Within(BIAS)(f"{name}.{key}", bias)) for key, bias in value.items())


def _bias_token(name: str, key: str) -> int:
    if not (key.isascii() and key.isdigit() and len(key) <= 10 and int(key) in TOKEN_ID):
        raise wrong(name, key, "an object whose names are token ids, whole numbers from 0")
    return int(key)


# --- prompts ---------------------------------------------------------------------------------------------------------


def prompts(name: str, value: Any) -> tuple[str | tuple[int, ...], ...]:
    if type(value) is str:
        return (value,)
    if type(value) is not list:
        raise wrong(name, value, "a string, a list of strings, token ids or a list of token ids", code="invalid_type")
    if not value:
        raise wrong(name, value, f"at least one {name}")
    if type(value[0]) is int:
        return (_prompt_ids(name, value),)
    if len(value) > MAX_PROMPTS:
        raise BodyError(name, f"{name} holds {len(value)} {name}s; {MAX_PROMPTS} are allowed in a line. Use more lines")
    return tuple(_one_prompt(f"{name}[{index}]", prompt) for index, prompt in enumerate(value))


def _one_prompt(name: str, value: Any) -> str | tuple[int, ...]:
    if type(value) is str:
        return value
    if type(value) is not list:
        raise wrong(name, value, "a string or a list of token ids", code="invalid_type")
    return _prompt_ids(name, value)


def _prompt_ids(name: str, value: list[Any]) -> tuple[int, ...]:
    if not value:
        raise wrong(name, value, "at least one token id")
    return token_ids(name, value)


def only_known(body: Mapping[str, Any], parameters: Mapping[str, Check]) -> dict[str, Any]:
    """Return the checked parameters of a body; a null means "not given". Raises BodyError for unknown ones."""
    values = {}
    for name, value in body.items():
        if name not in parameters:
            message = f"{name} is not a parameter of this endpoint; remove it"
            raise BodyError(name, message, code="unknown_parameter")
        if value is not None:
            values[name] = parameters[name](name, value)
    return values


def refuse_unknown(name: str, value: Mapping[str, Any], known: set[str]) -> None:
    """Raise BodyError for a key of the object `value`, called `name`, that is not in `known`."""
    for key in value.keys() - known:
        raise BodyError(f"{name}.{key}", f"{name}.{key} is not a field of {name}", code="unknown_parameter")
