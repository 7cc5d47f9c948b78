"""Computes the partition of a key: partitions are ranges of the hash of the partition key."""

from __future__ import annotations

import hashlib
from itertools import pairwise
from typing import Final

from multiclouddb_api import MulticloudDbKey

HASH_END: Final = 2**62
"""Hashes are in `[0, HASH_END)`.

Hashes have 62 bits, so that the end also fits into SQLite's signed integers.
"""


def partition_identity(key: MulticloudDbKey) -> bytes:
    """Return the canonical JSON of a key's partition key."""
    if len(key.components) > key.partition_components:
        key = MulticloudDbKey(key.partition_key, key.partition_components)
    return key.canonical()


def partition_hash(identity: bytes) -> int:
    """Return the hash of a partition key, which is computed from its `partition_identity`."""
    return int.from_bytes(hashlib.blake2b(identity, digest_size=8).digest(), "big") >> 2


def even_ranges(count: int) -> list[tuple[int, int]]:
    """Return `count` adjacent ranges `[low, high)` of about equal size, which together cover every hash."""
    bounds = [HASH_END * number // count for number in range(count + 1)]
    return list(pairwise(bounds))
