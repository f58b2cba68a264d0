from __future__ import annotations

import pytest

from engine.scheduling.blocks import NO_PARENT, NULL_BLOCK, BlockPool, PrefixChain

TOKENS = list(range(100, 140))


def publish(pool: BlockPool, chain: PrefixChain, blocks: list[int], tokens: list[int] = TOKENS) -> None:
    parent = NO_PARENT
    for index, block in enumerate(blocks):
        digest, content = chain.at(index, tokens)
        parent = pool.publish(block, digest=digest, content=content, parent=parent)


def cached_pool(num_blocks: int = 8, count: int = 3) -> tuple[BlockPool, list[int]]:
    pool = BlockPool(num_blocks, 4)
    blocks = pool.allocate(count)
    publish(pool, pool.chain(""), blocks)
    return pool, blocks


def test_the_null_block_is_never_handed_out() -> None:
    pool = BlockPool(9, 4)
    assert NULL_BLOCK not in pool.allocate(pool.capacity)
    assert pool.num_available == 0


def test_a_freed_block_keeps_its_content_until_it_is_reused() -> None:
    pool, blocks = cached_pool()
    pool.release(blocks)
    assert pool.match(pool.chain(""), TOKENS, 3)[0] == blocks
    pool.allocate(pool.capacity)
    assert pool.match(pool.chain(""), TOKENS, 3)[0] == []
    assert pool.num_cached == 0


def test_the_end_of_a_prefix_is_reused_before_its_beginning() -> None:
    pool, blocks = cached_pool(num_blocks=4)
    pool.release(blocks)
    pool.allocate(1)
    assert pool.match(pool.chain(""), TOKENS, 3)[0] == blocks[:2]


def test_blocks_without_content_are_reused_first() -> None:
    pool, blocks = cached_pool()
    plain = pool.allocate(2)
    pool.release(blocks)
    pool.release(plain)
    pool.allocate(4)
    assert pool.match(pool.chain(""), TOKENS, 3)[0] == blocks


def test_a_shared_block_is_free_only_after_its_last_owner() -> None:
    pool, blocks = cached_pool()
    pool.share(blocks)
    pool.release(blocks)
    pool.check_integrity(blocks)
    assert pool.num_used == 3
    pool.release(blocks)
    pool.check_integrity([])


def test_a_double_release_is_noticed() -> None:
    pool, blocks = cached_pool()
    pool.release(blocks)
    with pytest.raises(AssertionError, match="released twice"):
        pool.release(blocks)


def test_two_tenants_never_share_a_block() -> None:
    pool, blocks = cached_pool()
    assert pool.match(pool.chain("other"), TOKENS, 3)[0] == []
    assert pool.match(pool.chain(""), TOKENS, 3)[0] == blocks


def test_a_constant_hash_never_gives_a_wrong_block() -> None:
    pool = BlockPool(8, 4, digest=lambda _: b"same")
    chain = pool.chain("")
    same_block_twice = [1, 2, 3, 4, 1, 2, 3, 4, 9]
    blocks = pool.allocate(2)
    publish(pool, chain, blocks, same_block_twice)
    assert pool.match(pool.chain(""), same_block_twice, 2)[0] == blocks[:1]
    assert pool.match(pool.chain(""), [5, 6, 7, 8], 1)[0] == []


def test_the_same_content_computed_twice_keeps_the_first_block() -> None:
    pool, blocks = cached_pool()
    again = pool.allocate(3)
    publish(pool, pool.chain(""), again)
    assert pool.match(pool.chain(""), TOKENS, 3)[0] == blocks
    pool.release(again)
    pool.release(blocks)
    pool.check_integrity([])


@pytest.mark.parametrize("is_owned", [True, False])
def test_a_block_that_lost_its_parent_is_replaced_when_its_content_is_computed_again(*, is_owned: bool) -> None:
    pool, blocks = cached_pool(num_blocks=6)
    held = blocks[1:] if is_owned else []
    pool.release(blocks[:1])
    if not is_owned:
        pool.release(blocks[1:])
    pool.release(pool.allocate(3))  # the two plain ones, and the first of the chain
    again = pool.allocate(2)
    publish(pool, pool.chain(""), again)
    pool.check_integrity([*held, *again])
    assert pool.match(pool.chain(""), TOKENS, 3)[0] == again
    if not is_owned:
        assert pool.allocate(1) == blocks[1:2], "what lost its content is reused first"
    else:
        pool.release(held)
        pool.check_integrity(again)


def test_a_block_with_a_parent_is_not_replaced_by_one_of_the_same_digest() -> None:
    pool = BlockPool(8, 4, digest=lambda content: content[-16:])  # of a block's own tokens alone
    first, other = pool.allocate(2), pool.allocate(2)
    publish(pool, pool.chain(""), first, [1, 2, 3, 4, 9, 9, 9, 9])
    publish(pool, pool.chain(""), other, [5, 6, 7, 8, 9, 9, 9, 9])
    assert pool.match(pool.chain(""), [1, 2, 3, 4, 9, 9, 9, 9], 2)[0] == first
    assert pool.match(pool.chain(""), [5, 6, 7, 8, 9, 9, 9, 9], 2)[0] == other[:1]
    pool.check_integrity([*first, *other])


def test_the_integrity_check_notices_a_leak() -> None:
    pool, blocks = cached_pool()
    with pytest.raises(AssertionError, match="refcount"):
        pool.check_integrity(blocks[:2])
