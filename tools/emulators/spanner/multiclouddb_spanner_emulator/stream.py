"""Represents a change stream: the tables and columns that it watches, its retention, and its partitions."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Final

from multiclouddb_spanner_emulator.clock import SECOND
from multiclouddb_spanner_emulator.errors import ServiceError, invalid
from multiclouddb_spanner_emulator.habits import Habits
from multiclouddb_spanner_emulator.partition import HASHES, Partition, halves, new_token, place_of
from multiclouddb_spanner_emulator.record import Children
from multiclouddb_spanner_emulator.schema import Watch

__all__ = ["ChangeStream"]

_UNITS: Final = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_DAY: Final = 86400
_numbers: Final = itertools.count()


def _seconds(text: str) -> float:
    found = re.fullmatch(r"(\d+)([dhms])", text)
    seconds = int(found[1]) * _UNITS[found[2]] if found is not None else 0
    if not _DAY <= seconds <= 30 * _DAY:
        raise invalid(f"retention_period must be between 1d and 30d, got {text}")
    return seconds


class ChangeStream:
    """A change stream with its partitions.

    Attributes:
        name: Its name.
        watch: The tables and columns that the stream watches.
        options: The options that were set.
        created: The time at which the stream was created.
        partitions: Every partition that ever existed, by token.
    """

    def __init__(
        self, name: str, watch: Watch, options: dict[str, str], created: int, habits: Habits
    ) -> None:
        self.name = name
        self.watch = watch
        self.options: dict[str, str] = {}
        self.created = created
        self.partitions: dict[str, Partition] = {}
        self._habits = habits
        self._watched = [(0, watch)]
        self._had: list[tuple[int, dict[str, str]]] = []
        self._number = next(_numbers)
        self.set_options(options, 0)
        for share in halves(((0, HASHES),), habits.initial_partitions):
            self._add(created, share, ())

    @property
    def capture(self) -> str:
        """Return the value capture type of the stream."""
        return self.options.get("value_capture_type", "OLD_AND_NEW_VALUES")

    @property
    def open(self) -> list[Partition]:
        """Return the partitions that accept changes, oldest first."""
        return [each for each in self.partitions.values() if each.end is None]

    def set_options(self, options: dict[str, str], moment: int) -> None:
        """From a given time on, have other options. The value `null` removes an option."""
        chosen = {**self.options, **options}
        self.options = {name: value for name, value in chosen.items() if value.lower() != "null"}
        self._had.append((moment, self.options))
        self._retention = _seconds(self.options.get("retention_period", self._habits.default_retention))

    def set_watch(self, watch: Watch, moment: int) -> None:
        """From a given time on, watch other tables or columns."""
        self.watch = watch
        self._watched.append((moment, watch))

    def watch_at(self, moment: int) -> Watch:
        """Return what the stream watched at a given time."""
        return next(watch for since, watch in reversed(self._watched) if since <= moment)

    def options_at(self, moment: int) -> dict[str, str]:
        """Return the options that the stream had at a given time."""
        return next(options for since, options in reversed(self._had) if since <= moment)

    def horizon(self, now: int) -> int:
        """Return the earliest time that can be read."""
        return max(self.created, now - round(self._retention * SECOND))

    def excludes(self, kind: str) -> bool:
        """Return True if the stream does not report changes of the given kind."""
        return self.options.get(f"exclude_{kind.lower()}", "").lower() == "true"

    def home(self, key: str) -> Partition:
        """Return the partition that receives a key's next change."""
        found = self.open
        if self._habits.first_partition_only:
            return found[0]
        place = place_of(key)
        if self._habits.moves_keys:
            place = (place + len(self.partitions) * (HASHES * 5 // 13)) % HASHES
        return next(each for each in found if each.holds(place))

    def partition(self, token: str) -> Partition:
        """Find a partition by its token."""
        if token not in self.partitions:
            raise invalid(
                "Specified partition_token is invalid, as it does not belong to the Change Stream "
                f"associated with the TVF. Received partition_token: {token}."
            )
        return self.partitions[token]

    def reshape(self, tokens: Sequence[str], count: int, moment: int) -> list[str]:
        """End open partitions, and continue in the given number of new partitions.

        Each new partition is a child of all the old partitions.
        """
        parents = [self.partitions[token] for token in tokens]
        if len(set(tokens)) != len(tokens) or not tokens or any(each.end is not None for each in parents):
            raise ValueError("name one or more open partitions, and none of them twice")
        ranges = tuple(piece for each in parents for piece in each.ranges)
        children = tuple(self._add(moment, share, tuple(tokens)) for share in halves(ranges, count))
        for each in parents:
            each.end = moment
            each.children = children
        return [child.token for child in children]

    def root(self, moment: int) -> list[Children]:
        """Return the answer to a query without a token.

        The answer names the partitions that are open at `moment`, but not the parents of these
        partitions.
        """
        alive = [each for each in self.partitions.values() if each.lives_at(moment)]
        if self._habits.children_first:
            alive.reverse()
        return [Children(moment, number, ((each.token, ()),)) for number, each in enumerate(alive)]

    def ending(self, partition: Partition) -> list[Children]:
        """Return the records at the end of a partition."""
        named = [(child.token, child.parents) for child in partition.children]
        if self._habits.children_first:
            named.reverse()
        size = self._habits.children_per_record or len(named)
        told = [tuple(named[at : at + size]) for at in range(0, len(named), size)]
        start = partition.children[0].start
        records = [Children(start, number, each) for number, each in enumerate(told)]
        return records * (1 + self._habits.repeat_children)

    def ends_silently(self) -> bool:
        """Return True if the query that is at the end of its partition says nothing more."""
        left = self._habits.silent_ends
        if left:
            self._habits.silent_ends = left - 1
        return left is None or left > 0

    def check_readable(self) -> None:
        """Refuse a stream that the emulator cannot read."""
        if self.options.get("partition_mode", "IMMUTABLE_KEY_RANGE") != "IMMUTABLE_KEY_RANGE":
            raise ServiceError(
                "UNIMPLEMENTED", f"The scripted server cannot read {self.name}: it has a partition_mode"
            )

    def _add(self, start: int, share: tuple[tuple[int, int], ...], parents: tuple[str, ...]) -> Partition:
        token = new_token(f"{self.name} {self._number}", len(self.partitions))
        self.partitions[token] = Partition(token, start, share, parents)
        return self.partitions[token]
