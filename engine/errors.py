"""The errors the engine raises. Each message says what was given, what is allowed and what to do.

EngineError
├── InvalidParamsError     a sampling parameter is out of range (also a ValueError)
├── InvalidConfigError     an engine setting is out of range (also a ValueError)
├── InvalidRequestError    a request cannot be run as given (also a ValueError)
├── ModelLoadError         the model's files are missing, incomplete or unreadable
│   └── UnsupportedModelError   the model needs something this engine does not have
├── EngineStartError       the engine process did not become ready
├── BrokenRowError         a pooling model's result for a text is NaN or infinite
├── EngineForked           an `LLM` is used in a fork of the process that made it
├── EngineBroken           a step of `LLM` was interrupted half done
└── EngineDied             the engine process ended while in use
"""

from __future__ import annotations

from collections.abc import Iterable


class EngineError(Exception):
    """Base of every error of the engine."""


class InvalidParamsError(EngineError, ValueError):
    """A sampling parameter is out of range."""


class InvalidConfigError(EngineError, ValueError):
    """An engine setting is out of range."""


class InvalidRequestError(EngineError, ValueError):
    """A request cannot be run as given: empty, too long for the model, or larger than the KV cache."""


class ModelLoadError(EngineError):
    """The model directory is missing, incomplete or unreadable."""


class UnsupportedModelError(ModelLoadError):
    """The model's configuration needs a feature that this engine does not have."""


class EngineStartError(EngineError):
    """The engine process did not become ready; the message is the child's reason in one sentence."""


class BrokenRowError(EngineError):
    """A pooling model's result for a text is NaN or infinite."""


class EngineForked(EngineError):
    """An `LLM` is used in a fork of the process that made it, which lacks the threads that compute its steps."""

    def __init__(self, made_in: int) -> None:
        super().__init__(
            f"This LLM was made in process {made_in}, and this process is a fork of it without its threads: a step "
            "would wait for them for ever. Make the LLM in this process, or start the process by spawn, not fork."
        )


class EngineBroken(EngineError):
    """A step of `LLM` was interrupted half done, by a second Ctrl-C or an error; all later calls fail."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"A step of this LLM was interrupted half done by {reason}. Its requests and cache may be inconsistent, "
            "so it runs nothing more. Make a new LLM, and drop this one first if memory is short."
        )


class EngineDied(EngineError):
    """The engine process ended while in use.

    `exit_code` is negative for a signal (−9 = SIGKILL) and None while unknown; `request_ids` are the requests that were
    in flight, which will not report again.
    """

    def __init__(self, exit_code: int | None, request_ids: Iterable[int], reason: str | None = None) -> None:
        self.exit_code = exit_code
        self.request_ids = tuple(request_ids)
        self.reason = reason
        tail = f": {reason}" if reason else "."
        super().__init__(
            f"The engine process ended with exit code {exit_code} and {len(self.request_ids)} requests in flight{tail}"
        )
