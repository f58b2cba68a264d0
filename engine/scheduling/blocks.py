"""The pool of KV-cache blocks and its prefix cache. Block ids only: no tensors, no torch.

A block is used (it has owners), cached (free, but its content can be found by hash) or free. Free and cached blocks
are in one intrusive LRU list; a cached block can be found until it is handed out again. Block 0 is never handed out:
padded rows may point at it.

A full block's digest is sha-256 over its parent's digest and its own tokens; the first block's content starts with the
tenant's name, so two tenants never share. A hit is checked against the stored content and the identity of the block
before it, so a hash collision costs a miss and never gives a wrong answer.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

NULL_BLOCK = 0
NO_PARENT = 0
UNPUBLISHED = -1
"""Chain position of a sequence whose blocks can no longer be published, because a digest collided."""


def sha256_digest(content: bytes) -> bytes:
    """Return the digest under which a block's content is found."""
    return hashlib.sha256(content).digest()


def num_blocks_for(num_tokens: int, block_size: int) -> int:
    """Return how many blocks hold that many tokens."""
    return -(-num_tokens // block_size)


class PrefixChain:
    """Content and digests of one sequence's full blocks, computed once and on demand."""

    __slots__ = ("_block_size", "_contents", "_digest", "_digests", "_salt")

    def __init__(
        self, owner: str, block_size: int, digest: Callable[[bytes], bytes], *, has_long_angles: bool = False
    ) -> None:
        self._salt = owner.encode() + (b"\1" if has_long_angles else b"\0")
        self._block_size = block_size
        self._digest = digest
        self._contents: list[bytes] = []
        self._digests: list[bytes] = []

    def at(self, index: int, token_ids: Sequence[int]) -> tuple[bytes, bytes]:
        """Return digest and content of block `index`; `token_ids` must reach its end."""
        while len(self._digests) <= index:
            start = len(self._digests) * self._block_size
            content = array("I", token_ids[start : start + self._block_size]).tobytes()
            parent = self._digests[-1] if self._digests else b""
            if not self._digests:
                content = self._salt + content
            self._contents.append(content)
            self._digests.append(self._digest(parent + content))
        return self._digests[index], self._contents[index]


class BlockPool:
    """Hand out, share and take back blocks. `num_blocks` includes the null block."""

    def __init__(self, num_blocks: int, block_size: int, *, digest: Callable[[bytes], bytes] = sha256_digest) -> None:
        assert num_blocks >= 2, "the pool needs the null block and at least one more"
        self.block_size = block_size
        self.num_blocks = num_blocks
        self._digest = digest
        self._owners = [0] * num_blocks
        self._free = _LruList(num_blocks)
        for block in range(1, num_blocks):
            self._free.append(block)
        self._by_digest: dict[bytes, int] = {}
        self._digest_of: list[bytes | None] = [None] * num_blocks
        self._content_of: list[bytes] = [b""] * num_blocks
        self._parent_of = [NO_PARENT] * num_blocks
        self._serial_of = [NO_PARENT] * num_blocks
        self._findable_serials = {NO_PARENT}
        self._next_serial = NO_PARENT + 1

    @property
    def capacity(self) -> int:
        """Return how many blocks sequences can hold together."""
        return self.num_blocks - 1

    @property
    def num_available(self) -> int:
        """Return how many blocks can be handed out now, cached ones included."""
        return self._free.size

    @property
    def num_used(self) -> int:
        """Return how many blocks have an owner."""
        return self.capacity - self._free.size

    @property
    def num_cached(self) -> int:
        """Return how many blocks, owned or not, can be found by content."""
        return len(self._by_digest)

    def chain(self, owner: str, *, has_long_angles: bool = False) -> PrefixChain:
        """Return an empty chain for one sequence of `Request.prefix_owner`; keys with different rotary angles are never
        shared."""
        return PrefixChain(owner, self.block_size, self._digest, has_long_angles=has_long_angles)

    def allocate(self, count: int) -> list[int]:
        """Hand out blocks, least recently used first, and drop their cached content. Needs `num_available ≥ count`."""
        assert count <= self._free.size, f"{count} blocks asked for, {self._free.size} available"
        blocks = []
        for _ in range(count):
            block = self._free.pop_first()
            if self._digest_of[block] is not None:
                self._forget(block)
            self._owners[block] = 1
            blocks.append(block)
        return blocks

    def share(self, blocks: Iterable[int]) -> None:
        """Add an owner to each block, taking cached ones out of the free list."""
        for block in blocks:
            if self._owners[block] == 0:
                self._free.remove(block)
            self._owners[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Remove an owner from each block, given in sequence order.

        They enter the list last block first: the end of a prefix is reused before its beginning, without which the end
        could not be found. Blocks without cached content go to the front.
        """
        for block in reversed(blocks):
            assert self._owners[block] > 0, f"block {block} released twice"
            self._owners[block] -= 1
            if self._owners[block] == 0:
                if self._digest_of[block] is None:
                    self._free.append_first(block)
                else:
                    self._free.append(block)

    def num_unowned(self, blocks: Iterable[int]) -> int:
        """Return how many of the blocks are in the free list (sharing them takes them from it)."""
        return sum(1 for block in blocks if self._owners[block] == 0)

    def num_freed_by(self, blocks: Iterable[int], *, kept: Iterable[int]) -> int:
        """Return how many blocks besides the kept ones would become free if each mention removed one owner."""
        given_up = Counter(blocks)
        for block in kept:
            del given_up[block]
        return sum(1 for block, count in given_up.items() if count == self._owners[block])

    def match(self, chain: PrefixChain, token_ids: Sequence[int], max_blocks: int) -> tuple[list[int], int]:
        """Find the longest cached prefix of at most `max_blocks` full blocks; return them and the chain position."""
        blocks: list[int] = []
        parent = NO_PARENT
        for index in range(max_blocks):
            digest, content = chain.at(index, token_ids)
            block = self._by_digest.get(digest)
            if block is None or self._parent_of[block] != parent or self._content_of[block] != content:
                break
            blocks.append(block)
            parent = self._serial_of[block]
        return blocks, parent

    def publish(self, block: int, *, digest: bytes, content: bytes, parent: int) -> int:
        """Make a fully computed block findable; return the chain position after it.

        If the same content was published before, the first block is kept, unless its parent can no longer be found:
        then the block itself cannot be found either, and this one replaces it. After a collision nothing further is
        published.
        """
        if parent == UNPUBLISHED or self._digest_of[block] is not None:
            return UNPUBLISHED
        existing = self._by_digest.get(digest)
        if existing is not None and self._is_orphan(existing):
            self._forget(existing)
            self._put_first(existing)
        elif existing is not None:
            is_same = self._parent_of[existing] == parent and self._content_of[existing] == content
            return self._serial_of[existing] if is_same else UNPUBLISHED
        self._by_digest[digest] = block
        self._digest_of[block] = digest
        self._content_of[block] = content
        self._parent_of[block] = parent
        self._serial_of[block] = self._next_serial
        self._findable_serials.add(self._next_serial)
        self._next_serial += 1
        return self._serial_of[block]

    def forget(self, digests: Iterable[bytes]) -> None:
        """Make blocks unfindable, and with them the blocks that follow them."""
        for digest in digests:
            if (block := self._by_digest.get(digest)) is not None:
                self._forget(block)
                self._put_first(block)

    def check_integrity(self, owned: Iterable[int]) -> None:
        """Raise AssertionError unless free + cached + used = total and each refcount equals its owners in `owned`."""
        owners = Counter(owned)
        for block, count in enumerate(self._owners):
            assert count == owners.get(block, 0), f"block {block}: refcount {count}, {owners.get(block, 0)} owners"
        listed = list(self._free)
        assert len(listed) == len(set(listed)) == self._free.size, "the free list is broken"
        assert all(self._owners[block] == 0 for block in listed), "a used block is in the free list"
        assert NULL_BLOCK not in listed
        assert NULL_BLOCK not in owners
        num_cached_free = sum(1 for block in listed if self._digest_of[block] is not None)
        num_free = len(listed) - num_cached_free
        assert num_free + num_cached_free + len(owners) == self.capacity, "a block is lost"
        for digest, block in self._by_digest.items():
            assert self._digest_of[block] == digest, f"block {block} is found under a digest that is not its own"
        serials = {self._serial_of[block] for block in self._by_digest.values()}
        assert self._findable_serials == {NO_PARENT, *serials}, "a serial is lost"

    def _is_orphan(self, block: int) -> bool:
        """Tell whether this block's parent was handed out again; serials are never reused."""
        return self._parent_of[block] not in self._findable_serials

    def _put_first(self, block: int) -> None:
        """Move a free block without cached content to the front of the list."""
        if self._owners[block] == 0:
            self._free.remove(block)
            self._free.append_first(block)

    def _forget(self, block: int) -> None:
        digest = self._digest_of[block]
        assert digest is not None
        del self._by_digest[digest]
        self._findable_serials.remove(self._serial_of[block])
        self._digest_of[block] = None
        self._content_of[block] = b""


class _LruList:
    """A doubly linked list of block ids in two arrays: removal from the middle in O(1), no allocation."""

    __slots__ = ("_end", "_next", "_previous", "size")

    def __init__(self, num_blocks: int) -> None:
        self._end = num_blocks
        self._next = [0] * num_blocks + [num_blocks]
        self._previous = [0] * num_blocks + [num_blocks]
        self.size = 0

    def append(self, block: int) -> None:
        self._insert(block, before=self._end)

    def append_first(self, block: int) -> None:
        self._insert(block, before=self._next[self._end])

    def pop_first(self) -> int:
        block = self._next[self._end]
        assert block != self._end, "the list is empty"
        self.remove(block)
        return block

    def remove(self, block: int) -> None:
        before, after = self._previous[block], self._next[block]
        self._next[before] = after
        self._previous[after] = before
        self.size -= 1

    def __iter__(self) -> Iterator[int]:
        block = self._next[self._end]
        while block != self._end:
            yield block
            block = self._next[block]

    def _insert(self, block: int, *, before: int) -> None:
        previous = self._previous[before]
        self._next[previous] = block
        self._previous[block] = previous
        self._next[block] = before
        self._previous[before] = block
        self.size += 1
