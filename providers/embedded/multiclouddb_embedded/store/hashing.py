"""Where a key belongs: partitions are ranges of the hash of the partition key."""

from __future__ import annotations

import hashlib
from itertools import pairwise
from typing import Final

from multiclouddb_api import MulticloudDbKey

__all__ = ["HASH_END", "even_ranges", "key_hash", "partition_hash"]

HASH_END: Final = 2**62
"""Hashes are in `[0, HASH_END)`; 62 bits, so that the end too fits SQLite's signed integers."""


def partition_hash(canonical: bytes) -> int:
    """The hash of a partition key, from its `MulticloudDbKey.canonical()`."""
    return int.from_bytes(hashlib.blake2b(canonical, digest_size=8).digest(), "big") >> 2


def key_hash(key: MulticloudDbKey) -> tuple[bytes, int]:
    """The canonical partition key of a document's key, and its hash."""
    count = key.partition_components
    if len(key.components) > count:
        key = MulticloudDbKey(key.partition_key, count)
    canonical = key.canonical()
    return canonical, partition_hash(canonical)


def even_ranges(count: int) -> list[tuple[int, int]]:
    """`count` adjacent ranges `[low, high)` of about the same size that cover every hash."""
    bounds = [HASH_END * number // count for number in range(count + 1)]
    return list(pairwise(bounds))
