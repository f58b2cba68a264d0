"""The errors of the domain, as one tree. Messages say what was given, what is allowed and what to do.

TokenmillError
├── InputError              the caller's input is invalid                         400
│   ├── AuthenticationError no key, an unknown key, a revoked key                 401
│   ├── ForbiddenError      the caller may not do this; an operator can change that  403
│   ├── NotFoundError       no such object, or another tenant's                   404
│   ├── GoneError           the object exists, but the requested part has expired  410
│   ├── ConflictError       the object's state does not allow this                409
│   ├── TooLargeError       a limit on size or count is exceeded                  413
│   ├── LimitError          a limit on what the tenant has at once is reached     429
│   ├── RateLimitError      too many calls: the same call may succeed later       429
│   ├── OverBudgetError     the tenant's token budget does not cover the work     429
│   ├── UnservedError       no worker serves what this needs at the moment        503
│   └── LateError           the awaited result did not come in time               504
├── FencedOutError          another worker owns this chunk: roll back, stop its sequences
└── ServiceError            Postgres, the broker or the object store is not usable  503
    └── StorageFullError    the object store, or a store of a tenant's, has no room  503

The domain suggests a status; only the API turns it into a response.
"""

from __future__ import annotations

from tokenmill.errors import InputError, TokenmillError

__all__ = [
    "AuthenticationError",
    "ConflictError",
    "FencedOutError",
    "ForbiddenError",
    "GoneError",
    "InputError",
    "LateError",
    "LimitError",
    "NotFoundError",
    "OverBudgetError",
    "RateLimitError",
    "ServiceError",
    "StorageFullError",
    "StoreAwayError",
    "TokenmillError",
    "TooLargeError",
    "UnservedError",
]


class AuthenticationError(InputError):
    status = 401
    code = "invalid_api_key"


class ForbiddenError(InputError):
    status = 403
    code = "forbidden"


class NotFoundError(InputError):
    status = 404
    code = "not_found"


class GoneError(InputError):
    status = 410
    code = "gone"


class ConflictError(InputError):
    status = 409
    code = "conflict"


class TooLargeError(InputError):
    status = 413
    code = "too_large"


class LimitError(InputError):
    status = 429
    code = "limit_exceeded"


class RateLimitError(InputError):
    """`retry_after_seconds` says when another try makes sense."""

    status = 429
    code = "rate_limit_exceeded"

    def __init__(self, message: str, *, retry_after_seconds: float, code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.retry_after_seconds = retry_after_seconds


class OverBudgetError(InputError):
    """The work needs `needed` tokens, against `limit` − `spent` − `reserved` of the tenant. Retrying does not help."""

    status = 429
    code = "insufficient_quota"

    def __init__(
        self, *, limit: int, spent: int, reserved: int, needed: int, of_key: str | None = None, is_money: bool = False
    ) -> None:
        """`of_key`: the budget is that of a key; `is_money`: the numbers are pico-units, and the budget is used up."""
        whose = "" if of_key is None else f" of key {of_key}"
        message = (
            f"this work needs about {needed:,} tokens and {limit - spent - reserved:,} are available: the limit{whose} "
            f"is {limit:,}, {spent:,} are spent and {reserved:,} are reserved by batches in progress. "
            "Lower max_tokens, submit fewer lines, wait for batches to end, or ask for a higher limit."
        )
        if is_money:
            message = f"the budget of money{whose} is used up; `GET /v1/quota` has its numbers. Ask for a higher limit."
        super().__init__(message)
        self.limit = limit
        self.spent = spent
        self.reserved = reserved
        self.needed = needed


class UnservedError(InputError):
    status = 503
    code = "unserved"


class LateError(InputError):
    status = 504
    code = "late"


class FencedOutError(TokenmillError):
    code = "fenced_out"


class ServiceError(TokenmillError):
    status = 503
    code = "service_unavailable"


class StorageFullError(ServiceError):
    code = "storage_full"


class StoreAwayError(ServiceError):
    """The folder or the bucket is missing: not mounted, or removed. A retry may find it."""

    code = "store_away"

    def __init__(self, name: str) -> None:
        super().__init__(f"the store {name!r} is away: its folder or bucket is not there; ask your operator")
