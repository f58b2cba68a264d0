"""Asks a server the requests of its probes, one after the other, within a budget of tokens and time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import httpx
import orjson

from jobs.lines.endpoints import LineKind
from workers.remote.dialects import Dialect
from workers.remote.exchange import Address, Patience, TooLargeError, open_client, post
from workers.remote.probing.bodies import body_of, most_tokens
from workers.remote.probing.effects import Facts
from workers.remote.probing.probes import COUNTING, Fields, Probe
from workers.remote.probing.replies import CONCLUSIVE, Reply, Seen

PROBE_SECONDS = 30.0
"""For the answer to one request: with more it is late."""
_MOST_UNANSWERED = 3
"""In a row; then the others are left for the next time."""
_REFUSALS = frozenset({400, 404, 405, 413, 415, 422, 501})


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """The server to ask."""

    address: Address
    dialect: Dialect
    model: str
    """The model's name there."""
    is_chat: bool
    kind: LineKind = LineKind.GENERATE
    """Of the lines that it answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one probe showed."""

    seen: Seen
    num_tokens: int


def ask(
    server: Server, probes: Sequence[Probe], *, budget: int, seconds: float = PROBE_SECONDS
) -> tuple[dict[str, Finding], int]:
    """Return the findings of probes, as far as budget and patience reach, and the tokens of all requests."""
    if not probes:
        return {}, 0
    return asyncio.run(_ask(server, probes, budget=budget, seconds=seconds))


async def _ask(
    server: Server, probes: Sequence[Probe], *, budget: int, seconds: float
) -> tuple[dict[str, Finding], int]:
    async with open_client(server.address, patience=Patience(stall_seconds=seconds)) as client:
        asker = _Asker(server, client, budget=budget, seconds=seconds)
        return await asker.ask(probes), asker.num_tokens


class _Asker:
    """One round of probes."""

    def __init__(
        self,
        server: Server,
        client: httpx.AsyncClient,
        *,
        budget: int,
        seconds: float,
    ) -> None:
        self._server = server
        self._client = client
        self._patience = Patience(answer_seconds=seconds, stall_seconds=seconds)
        self._budget = budget
        self._prompt_tokens: int | None = None
        self._baselines: list[tuple[Fields, Reply]] = []
        self._num_unanswered = 0
        self.num_tokens = 0

    async def ask(self, probes: Sequence[Probe]) -> dict[str, Finding]:
        """Return the findings of probes, in their order, as far as budget and patience reach."""
        plain = await self._reply({"prompt": COUNTING})
        if plain is None or plain.seen is not Seen.YES:
            seen = Seen.NEVER if plain is None else plain.seen
            # Not even a plain request is answered: that says nothing of a parameter.
            tokens = [self.num_tokens, *[0] * len(probes)]
            return {
                probe.name: Finding(seen=_undecided(seen), num_tokens=num)
                for probe, num in zip(probes, tokens, strict=False)
            }
        facts = Facts(is_chat=self._server.is_chat, plain=plain)
        findings: dict[str, Finding] = {}
        before = 0  # what was asked for all counts with the first
        for probe in probes:
            shown = await self._seen(probe, facts)
            if shown is None:
                break
            findings[probe.name] = Finding(seen=shown, num_tokens=self.num_tokens - before)
            before = self.num_tokens
        first = {probes[0].name: Finding(seen=Seen.NEVER, num_tokens=0)}
        return _with_rest(findings or first, self.num_tokens - before)

    async def _seen(self, probe: Probe, facts: Facts) -> Seen | None:
        """Return what a probe shows; None if budget or patience are used up."""
        if probe.baseline is not None:
            baseline = await self._baseline(probe.baseline)
            if baseline is None or baseline.seen is not Seen.YES:
                return None if baseline is None else _without_baseline(baseline.seen)
            facts = replace(facts, baseline=baseline)
        replies: list[Reply] = []
        for fields in probe.requests(facts):
            reply = await self._reply(fields)
            if reply is None:
                return None
            if reply.seen is not Seen.YES:
                return reply.seen
            replies.append(reply)
        return _judged(probe.has_effect(replies, facts))

    async def _baseline(self, fields: Fields) -> Reply | None:
        """Return the answer that several probes compare with."""
        known = next((reply for asked, reply in self._baselines if asked == fields), None)
        if known is None and (known := await self._reply(fields)) is not None:
            self._baselines.append((fields, known))
        return known

    async def _reply(self, fields: Mapping[str, Any]) -> Reply | None:
        """Ask once; None, without asking, if that might exceed the budget, or if nothing is answered any more."""
        most = most_tokens(fields, prompt_tokens=self._prompt_tokens)
        if self.num_tokens + most > self._budget or self._num_unanswered >= _MOST_UNANSWERED:
            return None
        server = self._server
        path, body = body_of(fields, server.dialect, model=server.model, is_chat=server.is_chat)
        reply = await self._exchange(path, body)
        if reply.seen in CONCLUSIVE:
            self._num_unanswered = 0
        else:
            self._num_unanswered += 1
        if reply.seen is not Seen.ABSENT:  # what was refused was not computed
            self.num_tokens += _used(reply, most)
        if self._prompt_tokens is None:
            self._prompt_tokens = reply.count("prompt_tokens")
        return reply

    async def _exchange(self, path: str, body: Mapping[str, Any]) -> Reply:
        headers = {"Content-Type": "application/json"}
        try:
            async with asyncio.timeout(self._patience.answer_seconds):
                status, _, content = await post(self._client, path, orjson.dumps(body), headers, self._patience)
        except TimeoutError:
            return _unanswered(Seen.LATE)
        except TooLargeError:
            return _unanswered(Seen.NO)
        except httpx.HTTPError:
            return _unanswered(Seen.NEVER)
        return _read(status, content)


def _judged(has_effect: bool | None) -> Seen:
    if has_effect is None:
        return Seen.UNCLEAR
    return Seen.YES if has_effect else Seen.NO


def _without_baseline(seen: Seen) -> Seen:
    """Return what a probe shows whose baseline was refused or got no answer."""
    return Seen.UNCLEAR if seen in CONCLUSIVE else seen


def _with_rest(findings: dict[str, Finding], num_tokens: int) -> dict[str, Finding]:
    """Count with the last finding what was used for a probe that the budget did not let end."""
    name, last = next(reversed(findings.items()))
    return findings | {name: replace(last, num_tokens=last.num_tokens + num_tokens)}


def _undecided(seen: Seen) -> Seen:
    return seen if seen not in CONCLUSIVE else Seen.NEVER


def _used(reply: Reply, most: int) -> int:
    """Return the tokens of a reply; what a server does not count, or counts wrongly, is taken as the most."""
    prompt, answer = reply.count("prompt_tokens"), reply.count("completion_tokens")
    return most if prompt is None or answer is None else prompt + answer


def _unanswered(seen: Seen) -> Reply:
    return Reply(seen=seen, body={})


def _read(status: int, content: bytes) -> Reply:
    """Return what came: nonsense with status 200 is an answer without the effect."""
    if status in _REFUSALS:
        return _unanswered(Seen.ABSENT)
    if status != 200:
        return _unanswered(Seen.NEVER)
    try:
        body = orjson.loads(content)
    except orjson.JSONDecodeError:
        return _unanswered(Seen.NO)
    if not isinstance(body, dict) or ("error" in body and "choices" not in body):
        return _unanswered(Seen.NO)
    return Reply(seen=Seen.YES, body=body)
