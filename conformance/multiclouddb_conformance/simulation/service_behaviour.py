"""Describes the faults of a simulated service and the form of its answers; a seed makes them repeatable.

Every partition has its own sequence of random numbers, and each fetch of the partition takes the
next one. Therefore, a seed gives the same result even if the threads run in another order.
"""

from __future__ import annotations

import random
from enum import Enum
from typing import Any

import attrs

__all__ = ["CaughtUp", "Dice", "Listing", "ServiceBehaviour"]


class CaughtUp(Enum):
    """The ways in which a service can set `Batch.caught_up`."""

    EXACT = "exact"
    """True as soon as a batch reaches the end, whether it contains records or not."""
    WHEN_EMPTY = "when_empty"
    """True only on an empty batch. A batch with records does not show whether more records follow."""
    UNKNOWN = "unknown"
    """Always None."""


class Listing(Enum):
    """The contents of a partition listing."""

    ALL = "all"
    """Open and closed partitions, with their parents."""
    OPEN_WITH_RANGES = "open with ranges"
    """Open partitions with their parents; every id represents a range of keys.

    So the service knows which partitions follow one that no longer exists.
    """
    OPEN = "open"
    """Open partitions without their parents: the log of each partition names the partition's children.

    Such a service names and lists every partition at once. When a partition no longer exists, it tells only
    which partitions existed at the oldest moment that can be read.
    """


def _chance(instance: object, attribute: attrs.Attribute[Any], value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"{attribute.name} must be a probability from 0 to 1, got {value}")


def _chance_field() -> float:
    value: float = attrs.field(default=0.0, validator=_chance)
    return value


@attrs.frozen(kw_only=True)
class ServiceBehaviour:
    """The faults and the behaviour of a simulated service; by default it has no faults.

    The probabilities apply to each fetch and lie between 0 and 1. A fetch has at most one fault.

    Attributes:
        seed: The seed of the random numbers.
        throttle: The probability of `ThrottledError`.
        retry_after: The number of seconds for which a throttled answer asks the client to wait, or None.
        drop: The probability that the connection is lost in the middle of the answer. A reader that ignores
            this fault loses records.
        server_error: The probability of a 5xx answer.
        expired_iterator: The probability that the reader's iterator has expired. A new reader works
            at once.
        slow: The probability of a slow fetch, which takes the time `latency`.
        latency: The real duration of a slow fetch in seconds; `cancel` ends it early.
        silent: The probability that a fetch blocks until its deadline and then fails.
        vendor_retried: True if the vendor's client has already retried.
        faults_in_row: The maximum number of consecutive faults in one partition.
        control: The probability that a call on the feed (start, survey, heads) fails
            with a 5xx answer.
        redeliver: The maximum number of earlier records that a new reader delivers again. At each
            position, this redelivery happens only once. A reader with `until` never delivers
            records again.
        empty_batch: The probability of an empty batch without `caught_up`. A service that scans
            with a filter can return such a batch.
        short_batch: The probability that a batch contains fewer records than it could contain.
        page_limit: The service's own maximum of records in a batch, or None.
        scan_limit: The maximum number of commits that one fetch scans, or None.
        ignore_max_bytes: True if the service ignores a requested size.
        separate_end: The probability, for each partition, that its end is delivered in a separate empty
            batch.
        late_children: The maximum number of calls of `survey` until a partition's children are named. A
            service that names or lists partitions late does not merge them (C1). None is late with
            `Listing.OPEN`, or after a merge.
        late_siblings: The service names the children of a closed partition one by one. After one
            child is named, the service names the next child after at most this number of calls of
            `survey`.
        proves_children: True if the service reports when it has named all children of a partition.
        listing: The form in which the service lists partitions.
        late_listing: The maximum number of requests until a child partition is listed. Each start
            and each survey of the whole service is one request.
        incomplete_listing: The probability that a start or a survey omits a given partition.
        jumble: True if the service names children and lists partitions in a random order.
        repeat_children: True to name some children twice.
        caught_up: The value of `Batch.caught_up`.
        heartbeats: True if the position of an idle partition advances. It always advances after a merge (C3).
        strict_retention: True to refuse every expired position, as real services do. False to
            refuse an expired position only if a later record was removed. If the value is False,
            the position of a partition without changes never expires.
        watermarks: True if batches have a watermark.
        poll_after: The number of seconds to wait before the client may read an idle partition again.
        seed_descendants: True if a start also lists the descendants of closed partitions. False if
            the client finds descendants only through their parents.
        poison_at_fetch: True if the fetch of a record that cannot be decoded fails. False if only
            the mapping of such a record fails.
        drop_notice: True if the feed of a dropped collection ends with a notice, False if it fails.
        moves_keys: True if a split or merge may move a key to an unrelated partition. An unrelated
            partition does not descend from the key's old partition. If keys may move in this way,
            the lineage says nothing about the order of a key's changes.
        splits_itself: The number of commits after which the service itself splits, merges or rolls
            partitions; None for never.
        segments: The number of segments of a snapshot if the request does not specify it.
        point_in_time: True if a scan shows every row as it was at the start of the snapshot. False
            if a scan shows every row as it is when the row is read.
        latest: True if the feed contains only the newest version of each document that exists, as an
            `UPDATE`.
        splits_segments: The probability that a fetch ends its segment early. The remaining rows of
            the segment are then read as two new segments.
    """

    seed: int = 0
    throttle: float = _chance_field()
    retry_after: float | None = None
    drop: float = _chance_field()
    server_error: float = _chance_field()
    expired_iterator: float = _chance_field()
    slow: float = _chance_field()
    latency: float = 0.001
    silent: float = _chance_field()
    vendor_retried: bool = False
    faults_in_row: int = 2
    control: float = _chance_field()
    redeliver: int = 0
    empty_batch: float = _chance_field()
    short_batch: float = _chance_field()
    page_limit: int | None = None
    scan_limit: int | None = None
    ignore_max_bytes: bool = False
    separate_end: float = _chance_field()
    late_children: int = 0
    late_siblings: int = 0
    proves_children: bool = True
    listing: Listing = Listing.ALL
    late_listing: int = 0
    incomplete_listing: float = _chance_field()
    jumble: bool = False
    repeat_children: bool = False
    caught_up: CaughtUp = CaughtUp.EXACT
    heartbeats: bool = True
    strict_retention: bool = True
    watermarks: bool = True
    poll_after: float = 0.0
    seed_descendants: bool = True
    poison_at_fetch: bool = False
    drop_notice: bool = False
    moves_keys: bool = False
    splits_itself: int | None = None
    segments: int | None = None
    point_in_time: bool = False
    splits_segments: float = _chance_field()
    latest: bool = False

    @classmethod
    def rough(cls, seed: int, **changes: Any) -> ServiceBehaviour:
        """Return a behaviour with every fault that a client must survive, and no other faults."""
        dice = random.Random(f"rough {seed}")
        habits: dict[str, Any] = {
            "throttle": dice.choice([0.0, 0.1]),
            "retry_after": dice.choice([None, 0.0, 0.001]),
            "drop": dice.choice([0.0, 0.1]),
            "server_error": dice.choice([0.0, 0.1]),
            "expired_iterator": dice.choice([0.0, 0.1]),
            "redeliver": dice.choice([0, 3]),
            "empty_batch": dice.choice([0.0, 0.2]),
            "short_batch": dice.choice([0.0, 0.3]),
            "page_limit": dice.choice([None, 1, 2, 5]),
            "scan_limit": dice.choice([None, 1, 3]),
            "ignore_max_bytes": dice.choice([False, True]),
            "separate_end": dice.choice([0.0, 0.5, 1.0]),
            "late_children": dice.choice([0, 0, 2]),
            "jumble": dice.choice([False, True]),
            "repeat_children": dice.choice([False, True]),
            "caught_up": dice.choice(list(CaughtUp)),
            "heartbeats": dice.choice([False, True]),
            "watermarks": dice.choice([False, True]),
            "seed_descendants": dice.choice([False, True]),
            "control": dice.choice([0.0, 0.1]),
            "listing": dice.choice(list(Listing)),
            "proves_children": dice.choice([True, True, False]),
        }
        habits["strict_retention"] = habits["heartbeats"]
        return cls(seed=seed, **{**habits, **changes})


class Dice:
    """The random numbers of one partition; only one thread at a time may use them."""

    def __init__(self, seed: int, partition_id: str) -> None:
        # A Random gives the same numbers in every process only if its seed is text or bytes.
        self._random = random.Random(f"{seed} {partition_id}")

    def happens(self, chance: float) -> bool:
        """Return True with this probability."""
        return self._random.random() < chance

    def up_to(self, most: int) -> int:
        """Return a random number from 0 to `most`."""
        return self._random.randint(0, most)

    def jumbled(self, items: list[Any]) -> list[Any]:
        """Return the items in a random order."""
        return self._random.sample(items, len(items))
