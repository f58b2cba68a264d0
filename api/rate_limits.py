"""How fast a tenant may ask: two token buckets a tenant in Redis or Valkey, shared by all API processes.

Fails open: without its broker it lets everything pass, at once, and says so in the log. Knows no request and no batch.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from jobs.accounts.limits import Limits

TIMEOUT_SECONDS = 0.25
PAUSE_SECONDS = 5.0
BURST_SECONDS = 10.0
"""Of requests, that may come at once; of tokens a minute's may."""
_CONNECTIONS = 10

# A bucket that took more than it had is in debt: it refills from below zero. Time is the server's.
_SCRIPT = """
local rpm, tpm, requests, tokens = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local burst = math.max(1, rpm * tonumber(ARGV[5]) / 60)
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local kept = redis.call('HMGET', KEYS[1], 'requests', 'tokens', 'at')
local passed = math.max(0, now - (tonumber(kept[3]) or now))
local r = math.min(burst, (tonumber(kept[1]) or burst) + passed * rpm / 60)
local t = math.min(tpm, (tonumber(kept[2]) or tpm) + passed * tpm / 60)
local passes = rpm > 0 and r >= requests
if passes then r = r - requests end
t = t - tokens
redis.call('HSET', KEYS[1], 'requests', r, 'tokens', t, 'at', string.format('%.6f', now))
local seconds = 60 + math.max(0, (tpm - t) * 60 / math.max(tpm, 1))
redis.call('EXPIRE', KEYS[1], math.ceil(math.min(seconds, 31536000)))
return {passes and 1 or 0, tostring(r), tostring(t)}
"""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What a tenant's buckets hold after a request was taken from them, or refused."""

    limits: Limits
    passes: bool
    requests: float
    tokens: float
    """Below 0: that much was submitted too early."""

    @property
    def seconds_to_request(self) -> float:
        return _seconds(1 - self.requests, self.limits.requests_per_minute)

    @property
    def seconds_to_tokens(self) -> float:
        return _seconds(1 - self.tokens, self.limits.tokens_per_minute)

    def headers(self) -> Mapping[str, str]:
        """Return what OpenAI calls them; `reset` is when a bucket is full again."""
        per_minute = {"requests": self.limits.requests_per_minute, "tokens": self.limits.tokens_per_minute}
        burst = {"requests": max(1.0, per_minute["requests"] * BURST_SECONDS / 60), "tokens": per_minute["tokens"]}
        left = {"requests": self.requests, "tokens": self.tokens}
        headers = {}
        for kind, limit in per_minute.items():
            headers[f"x-ratelimit-limit-{kind}"] = str(limit)
            headers[f"x-ratelimit-remaining-{kind}"] = str(max(0, int(left[kind])))
            headers[f"x-ratelimit-reset-{kind}"] = f"{_seconds(burst[kind] - left[kind], limit):.3f}s"
        return headers


class RateLimiter:
    """Asks the broker of `redis_url` once a request; while it is away, does not even try for PAUSE_SECONDS."""

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
        self._redis: Any = Redis.from_pool(pool)  # which it closes, too
        self._script = self._redis.register_script(_SCRIPT)
        self._monotonic = monotonic
        self._paused_until = 0.0

    async def spend(self, tenant_id: str, limits: Limits, *, requests: int = 0, tokens: int = 0) -> Rates | None:
        """Spend `requests` if they are there, and `tokens` in any case. None where nobody can tell: let it pass."""
        if self._monotonic() < self._paused_until:
            return None
        arguments = [limits.requests_per_minute, limits.tokens_per_minute, requests, tokens, BURST_SECONDS]
        try:
            passes, left, tokens_left = await self._script(keys=[f"tokenmill:rate:{tenant_id}"], args=arguments)
        except (RedisError, OSError) as error:
            self._paused_until = self._monotonic() + PAUSE_SECONDS
            logger.warning("broker unreachable, no rate is limited pause_seconds=%g reason=%s", PAUSE_SECONDS, error)
            return None
        return Rates(limits=limits, passes=bool(passes), requests=float(left), tokens=float(tokens_left))

    async def close(self) -> None:
        await self._redis.aclose()


def _seconds(missing: float, per_minute: int) -> float:
    return max(0.0, missing) * 60 / per_minute if per_minute else 60.0
