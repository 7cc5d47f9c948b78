"""What troubles a simulated service has, and how it tells things: chosen by seed, not by chance.

Every partition has dice of its own, rolled once a fetch in the order of its fetches, so that a
seed means the same however threads take turns.
"""

from __future__ import annotations

import random
from enum import Enum
from typing import Any

import attrs

__all__ = ["CaughtUp", "Dice", "Listing", "ServiceBehaviour"]


class CaughtUp(Enum):
    """What `Batch.caught_up` says."""

    EXACT = "exact"
    """True as soon as a batch reaches the end, with records or without."""
    WHEN_EMPTY = "when_empty"
    """True on an empty batch only: a batch with records may have been the last, or not."""
    UNKNOWN = "unknown"
    """None, always."""


class Listing(Enum):
    """What a listing of partitions holds."""

    ALL = "all"
    """Open and closed ones, with their parents."""
    OPEN_WITH_RANGES = "open with ranges"
    """Open ones, with their parents; every id stands for a range of keys."""
    OPEN = "open"
    """Open ones, without parents: a partition's own log names its children. It can be had as of a moment."""


def _chance(instance: object, attribute: attrs.Attribute[Any], value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"{attribute.name} is a chance from 0 to 1, got {value}")


def _chance_field() -> float:
    value: float = attrs.field(default=0.0, validator=_chance)
    return value


@attrs.frozen(kw_only=True)
class ServiceBehaviour:
    """Troubles and habits of a simulated service; the default has none.

    Chances are per fetch, from 0 to 1. At most one trouble happens to a fetch.

    Attributes:
        seed: Which of the possible courses it takes.
        throttle: Chance of `ThrottledError`.
        retry_after: Seconds that a throttle asks for, or None to say nothing.
        drop: Chance of a connection lost in the middle of the answer: the reader that goes on all
            the same has lost those records.
        server_error: Chance of a 5xx.
        expired_iterator: Chance that the reader is too old; the next reader works at once.
        slow: Chance that a fetch takes `latency`.
        latency: Real seconds that a slow fetch takes, cut short by `cancel`.
        silent: Chance that a fetch blocks until it is cancelled, whatever its deadline.
        vendor_retried: True when the vendor's client has retried already.
        faults_in_row: So many troubles in a row at most, for one partition.
        control: Chance that a call on the feed (start, partitions, discover, oldest, heads) fails
            with a 5xx.
        redeliver: Up to so many earlier records come again from a newly opened reader, once at
            each position; never with `until`.
        empty_batch: Chance of an empty batch that is not caught up, as while a filter scans.
        short_batch: Chance that a batch holds fewer records than it could.
        page_limit: The service's own bound on records of a batch, or None.
        scan_limit: How many commits one fetch looks at, or None.
        ignore_max_bytes: True when the service cannot be told a size.
        separate_end: Chance, per partition, that its end comes on an empty batch of its own.
        late_children: A partition's children are named after up to so many calls of `discover`.
        late_siblings: One child is named at first, each other one after up to so many further calls of
            `discover`.
        proves_children: False for a service that never says that it has named all children.
        listing: The form of its listings.
        late_listing: A partition that comes of others is listed after up to so many looks (a start, a
            listing, an audit).
        incomplete_listing: Chance, per look and partition, that a listing leaves it out.
        jumble: True to name children and list partitions in arbitrary order.
        repeat_children: True to name some children twice.
        caught_up: What `Batch.caught_up` says.
        heartbeats: True when the position of an idle partition moves.
        strict_retention: True when a position that is too old is refused, as services do; False when
            it is only where something behind it was forgotten, so that a partition that stays where
            it is does not expire.
        watermarks: True when batches have a watermark.
        poll_after: Seconds to wait before asking a partition again that has nothing.
        seed_descendants: True when a start lists the descendants of closed partitions as well,
            False when they are found through their parents only.
        poison_at_fetch: True when a record that cannot be decoded fails the fetch, False when it
            fails the mapping.
        drop_notice: True when the feed of a dropped collection ends with a notice, False when it
            fails.
        moves_keys: True when a split or merge of any partition moves keys to partitions that do not
            descend from theirs: links between partitions say nothing about the order of a key.
        splits_itself: After every so many commits the service splits, merges or rolls
            partitions by itself; None for never.
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

    @classmethod
    def rough(cls, seed: int, **changes: Any) -> ServiceBehaviour:
        """Every trouble that a client has to live through, none that stops it."""
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
    """The dice of one partition; not for several threads at once."""

    def __init__(self, seed: int, partition_id: str) -> None:
        # Text, since only text and bytes seed a Random the same in every process.
        self._random = random.Random(f"{seed} {partition_id}")

    def happens(self, chance: float) -> bool:
        """True with that chance."""
        return self._random.random() < chance

    def up_to(self, most: int) -> int:
        """A number from 0 to `most`."""
        return self._random.randint(0, most)

    def jumbled(self, items: list[Any]) -> list[Any]:
        """The items in another order."""
        return self._random.sample(items, len(items))
