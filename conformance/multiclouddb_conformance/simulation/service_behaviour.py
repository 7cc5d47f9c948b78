"""The troubles of a simulated service and the form of its answers: a seed makes them repeatable.

Every partition has its own random numbers, drawn once for each of its fetches in order. So a seed gives the
same result whatever the threads do.
"""

from __future__ import annotations

import random
from enum import Enum
from typing import Any

import attrs

__all__ = ["CaughtUp", "Dice", "Listing", "ServiceBehaviour"]


class CaughtUp(Enum):
    """The value of `Batch.caught_up`."""

    EXACT = "exact"
    """True as soon as a batch reaches the end, with records or without."""
    WHEN_EMPTY = "when_empty"
    """True only on an empty batch: a batch with records may or may not have been the last."""
    UNKNOWN = "unknown"
    """Always None."""


class Listing(Enum):
    """The contents of a partition listing."""

    ALL = "all"
    """Open and closed partitions, with their parents."""
    OPEN_WITH_RANGES = "open with ranges"
    """Open partitions with their parents; every id means a range of keys."""
    OPEN = "open"
    """Open partitions without parents: a partition's log names its children. A listing can be of a past
    moment."""


def _chance(instance: object, attribute: attrs.Attribute[Any], value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"{attribute.name} must be a probability from 0 to 1, got {value}")


def _chance_field() -> float:
    value: float = attrs.field(default=0.0, validator=_chance)
    return value


@attrs.frozen(kw_only=True)
class ServiceBehaviour:
    """Troubles and behaviour of a simulated service; by default it has no troubles.

    Probabilities are for each fetch, from 0 to 1. A fetch has at most one trouble.

    Attributes:
        seed: The seed of its random numbers.
        throttle: Probability of `ThrottledError`.
        retry_after: The seconds that a throttle asks for, or None.
        drop: Probability that the connection is lost in the middle of the answer; a reader that ignores this
            loses those records.
        server_error: Probability of a 5xx.
        expired_iterator: Probability that the reader has expired; the next reader works at once.
        slow: Probability that a fetch takes `latency`.
        latency: Real seconds that a slow fetch takes, cut short by `cancel`.
        silent: Probability that a fetch blocks until it is cancelled, whatever its deadline.
        vendor_retried: True when the vendor's client has already retried.
        faults_in_row: The maximum number of troubles in a row in one partition.
        control: Probability that a call on the feed (start, partitions, discover, oldest, heads) fails with a
            5xx.
        redeliver: The maximum number of earlier records that a newly opened reader repeats, once at each
            position; never with `until`.
        empty_batch: Probability of an empty batch that is not caught up, as from a filter that still scans.
        short_batch: Probability that a batch has fewer records than it could.
        page_limit: The service's own maximum of records in a batch, or None.
        scan_limit: The maximum number of commits that one fetch scans, or None.
        ignore_max_bytes: True when the service ignores a requested size.
        separate_end: Probability, for each partition, that its end comes on a separate empty batch.
        late_children: The maximum number of calls of `discover` until a partition's children are named.
        late_siblings: One child is named first. This is the maximum number of further calls of `discover`
            until each other child is named.
        proves_children: False for a service that never says that it has named all children.
        listing: The form of its listings.
        late_listing: The maximum number of looks (a start, a listing, an audit) until a child partition is
            listed.
        incomplete_listing: Probability, for each look and partition, that a listing leaves it out.
        jumble: True to name children and list partitions in arbitrary order.
        repeat_children: True to name some children twice.
        caught_up: The value of `Batch.caught_up`.
        heartbeats: True when the position of an idle partition moves.
        strict_retention: True to refuse every expired position, as services do. False to refuse it only if a
            later record was removed; then a partition that does not move does not expire.
        watermarks: True when batches have a watermark.
        poll_after: The seconds to wait before an idle partition may be asked again.
        seed_descendants: True when a start also lists the descendants of closed partitions. False when only
            their parents name them.
        poison_at_fetch: True when a record that cannot be decoded fails the fetch, False when it
            fails the mapping.
        drop_notice: True when the feed of a dropped collection ends with a notice, False when it
            fails.
        moves_keys: True if a split or merge of any partition moves keys to partitions that do not descend
            from theirs. Then the links between partitions say nothing about the order of a key.
        splits_itself: The number of commits after which the service splits, merges or rolls partitions by
            itself; None for never.
        segments: The number of segments of a snapshot if the request names no number.
        point_in_time: True if a scan shows all rows as of the start of the snapshot, False if it shows each
            row as of the moment when it is read.
        splits_segments: Probability, for each fetch, that a segment ends and its rest is read in two pieces.
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

    @classmethod
    def rough(cls, seed: int, **changes: Any) -> ServiceBehaviour:
        """Every trouble that a client has to survive, and none that stops it."""
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
    """The random numbers of one partition; not for several threads at once."""

    def __init__(self, seed: int, partition_id: str) -> None:
        # A Random gives the same numbers in every process only if its seed is text or bytes.
        self._random = random.Random(f"{seed} {partition_id}")

    def happens(self, chance: float) -> bool:
        """True with this probability."""
        return self._random.random() < chance

    def up_to(self, most: int) -> int:
        """A number from 0 to `most`."""
        return self._random.randint(0, most)

    def jumbled(self, items: list[Any]) -> list[Any]:
        """The items in a random order."""
        return self._random.sample(items, len(items))
