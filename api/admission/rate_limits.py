"""Rate limits: three buckets per tenant in Redis or Valkey, shared by all API processes.

While the broker is down each process counts for itself, and logs it.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from jobs.accounts.limits import Limits

TIMEOUT_SECONDS = 0.25
PAUSE_SECONDS = 5.0
BURST_SECONDS = 10.0
"""Size of the bucket of requests, in seconds of the rate; that of tokens holds a minute."""
_CONNECTIONS = 10

_MOST_LOCAL = 10_000
"""Tenants whose buckets one process keeps while the broker is down; the longest idle one is dropped, so full again."""

# A bucket that gave more than it had is in debt: it refills from below zero. Time is the server's. `refilled` below
# does the same for one process.
_SCRIPT = """
local rpm, tpm, bpm, burst = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local requests, tokens, bytes = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local kept = redis.call('HMGET', KEYS[1], 'requests', 'tokens', 'bytes', 'at')
local passed = math.max(0, now - (tonumber(kept[4]) or now))
local r = math.min(burst, (tonumber(kept[1]) or burst) + passed * rpm / 60)
local t = math.min(tpm, (tonumber(kept[2]) or tpm) + passed * tpm / 60)
local b = math.min(bpm, (tonumber(kept[3]) or bpm) + passed * bpm / 60)
local passes = rpm > 0 and r >= requests and (requests == 0 or bytes == 0 or b > 0)
if passes then r = r - requests end
if passes then b = b - bytes end
t = t - tokens
redis.call('HSET', KEYS[1], 'requests', r, 'tokens', t, 'bytes', b, 'at', string.format('%.6f', now))
local seconds = 60 + math.max(0, (tpm - t) * 60 / math.max(tpm, 1), (bpm - b) * 60 / math.max(bpm, 1))
redis.call('EXPIRE', KEYS[1], math.ceil(math.min(seconds, 31536000)))
return {passes and 1 or 0, tostring(r), tostring(t), tostring(b)}
"""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """The contents of a tenant's buckets after a request was taken from them or refused."""

    limits: Limits
    passes: bool
    requests: float
    tokens: float
    """Below 0: that much was submitted too early."""
    bytes: float
    """Below 0: that much was sent too early."""

    @property
    def seconds_to_request(self) -> float:
        return _seconds(1 - self.requests, self.limits.requests_per_minute)

    @property
    def seconds_to_tokens(self) -> float:
        return _seconds(1 - self.tokens, self.limits.tokens_per_minute)

    @property
    def seconds_to_bytes(self) -> float:
        return _seconds(1 - self.bytes, self.limits.bytes_per_minute)

    def headers(self) -> Mapping[str, str]:
        """Return OpenAI's headers; `reset` is the time until a bucket is full again."""
        per_minute = {"requests": self.limits.requests_per_minute, "tokens": self.limits.tokens_per_minute}
        full = _full(self.limits)
        burst = {"requests": full.requests, "tokens": full.tokens}
        left = {"requests": self.requests, "tokens": self.tokens}
        headers = {}
        for kind, limit in per_minute.items():
            headers[f"x-ratelimit-limit-{kind}"] = str(limit)
            headers[f"x-ratelimit-remaining-{kind}"] = str(max(0, int(left[kind])))
            headers[f"x-ratelimit-reset-{kind}"] = f"{_seconds(burst[kind] - left[kind], limit):.3f}s"
        return headers


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The amounts to take from a tenant's buckets."""

    requests: int = 0
    tokens: int = 0
    bytes: int = 0


class LocalBuckets:
    """The buckets of one process."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._kept: OrderedDict[str, tuple[Rates, float]] = OrderedDict()

    def spend(self, tenant_id: str, limits: Limits, cost: Wanted) -> Rates:
        now = self._monotonic()
        rates, at = self._kept.pop(tenant_id, (_full(limits), now))
        left = taken(refilled(rates, limits, seconds=now - at), cost)
        self._kept[tenant_id] = left, now
        if len(self._kept) > _MOST_LOCAL:
            self._kept.popitem(last=False)
        return left


def refilled(rates: Rates, limits: Limits, *, seconds: float) -> Rates:
    full, minutes = _full(limits), seconds / 60
    return replace(
        full,
        requests=min(full.requests, rates.requests + minutes * limits.requests_per_minute),
        tokens=min(full.tokens, rates.tokens + minutes * limits.tokens_per_minute),
        bytes=min(full.bytes, rates.bytes + minutes * limits.bytes_per_minute),
    )


def taken(rates: Rates, cost: Wanted) -> Rates:
    """Take a request with its bytes if the buckets allow it; amounts without a request are always taken."""
    has_bytes = not cost.requests or not cost.bytes or rates.bytes > 0
    passes = rates.limits.requests_per_minute > 0 and rates.requests >= cost.requests and has_bytes
    return replace(
        rates,
        passes=passes,
        requests=rates.requests - (cost.requests if passes else 0),
        tokens=rates.tokens - cost.tokens,
        bytes=rates.bytes - (cost.bytes if passes else 0),
    )


def _full(limits: Limits) -> Rates:
    return Rates(
        limits=limits,
        passes=True,
        requests=max(1.0, limits.requests_per_minute * BURST_SECONDS / 60),
        tokens=limits.tokens_per_minute,
        bytes=limits.bytes_per_minute,
    )


class RateLimiter:
    """Calls the broker of `redis_url` once per request; after a failure, not for PAUSE_SECONDS."""

    def __init__(self, redis_url: str, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        pool: BlockingConnectionPool = BlockingConnectionPool.from_url(
            redis_url,
            max_connections=_CONNECTIONS,
            timeout=TIMEOUT_SECONDS,
            socket_connect_timeout=TIMEOUT_SECONDS,
            socket_timeout=TIMEOUT_SECONDS,
            retry=Retry(NoBackoff(), 0),
            decode_responses=True,
        )
        self._redis: Any = Redis.from_pool(pool)  # closes the pool as well
        self._script = self._redis.register_script(_SCRIPT)
        self._monotonic = monotonic
        self._paused_until = 0.0
        self._local = LocalBuckets(monotonic)

    async def spend(self, tenant_id: str, limits: Limits, cost: Wanted) -> Rates:
        """Take a request with its bytes if the buckets allow it; amounts without a request are always taken."""
        if self._monotonic() < self._paused_until:
            return self._local.spend(tenant_id, limits, cost)
        burst = _full(limits).requests
        rates = (limits.requests_per_minute, limits.tokens_per_minute, limits.bytes_per_minute, burst)
        arguments = [*rates, cost.requests, cost.tokens, cost.bytes]
        try:
            passes, requests, tokens, num_bytes = await self._script(
                keys=[f"tokenmill:rate:{tenant_id}"], args=arguments
            )
        except (RedisError, OSError) as error:
            self._paused_until = self._monotonic() + PAUSE_SECONDS
            logger.warning(
                "broker unreachable, rates are of one process pause_seconds=%g reason=%s", PAUSE_SECONDS, error
            )
            return self._local.spend(tenant_id, limits, cost)
        return Rates(
            limits=limits, passes=bool(passes), requests=float(requests), tokens=float(tokens), bytes=float(num_bytes)
        )

    async def close(self) -> None:
        await self._redis.aclose()


def _seconds(missing: float, per_minute: int) -> float:
    return max(0.0, missing) * 60 / per_minute if per_minute else 60.0
