"""Runs change stream queries: checks the arguments, and yields records as time passes."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from threading import Condition
from typing import Final

import attrs

from multiclouddb_spanner_emulator.clock import MICROSECOND, SECOND, Clock, to_text
from multiclouddb_spanner_emulator.errors import ServiceError, invalid, out_of_range
from multiclouddb_spanner_emulator.habits import Habits
from multiclouddb_spanner_emulator.partition import Partition
from multiclouddb_spanner_emulator.record import DataChange, Heartbeat, Record
from multiclouddb_spanner_emulator.stream import ChangeStream

__all__ = ["Reading", "StreamQuery", "checked"]

_AHEAD: Final = 600 * SECOND
_ZONE: Final = "+00:00"
_LONGEST_WAIT: Final = 0.5


@attrs.frozen
class StreamQuery:
    """The arguments of a change stream query.

    Attributes:
        stream: The stream's name.
        start: The start time.
        end: The end time; None to read until the partition ends.
        token: The partition; None for the list of the partitions that are alive at `start`.
        heartbeat: The interval of heartbeats in milliseconds.
    """

    stream: str
    start: int | None
    end: int | None
    token: str | None
    heartbeat: int | None


def checked(query: StreamQuery, stream: ChangeStream, now: int, habits: Habits) -> None:
    """Refuse the arguments that the service refuses.

    Raises:
        ServiceError: Raised if the arguments are not valid.
    """
    start, end, beat = query.start, query.end, query.heartbeat
    if start is None:
        raise invalid("start_timestamp must not be null.")
    if beat is None:
        raise invalid("heartbeat_milliseconds must not be null.")
    if not 100 <= beat <= 300_000:
        raise out_of_range(
            "heartbeat_milliseconds must be within min 100 and max 300000. "
            f"Received heartbeat_milliseconds: {beat}."
        )
    received = f"Received start_timestamp: {to_text(start, _ZONE)}"
    if end is not None and end < start:
        raise invalid(
            "If end_timestamp is specified, start_timestamp must be <= end_timestamp. "
            f"{received}, end_timestamp: {to_text(end, _ZONE)}."
        )
    horizon = stream.horizon(now)
    earliest = (
        f"within the earliest read timestamp: {to_text(horizon, _ZONE)}" if habits.names_horizon else ""
    )
    if start < horizon:
        raise out_of_range(
            "Specified start_timestamp is too far in the past. "
            f"Please specify a start_timestamp {earliest or 'that is later'}. {received}."
        )
    if start > now + _AHEAD:
        raise out_of_range(
            "Specified start_timestamp is too far in the future. Please specify a start_timestamp "
            f"{earliest}, and the current maximum start timestamp: {to_text(now + _AHEAD, _ZONE)}. "
            f"{received}."
        )
    if query.token is not None:
        _check_life(stream.partition(query.token), start, received, named=habits.names_lifetime)


def _check_life(partition: Partition, start: int, received: str, *, named: bool) -> None:
    end = partition.end
    if start < partition.start or (end is not None and start > end):
        until = "infinite-future" if end is None else to_text(end, _ZONE)
        life = f"within {to_text(partition.start, _ZONE)} and {until}" if named else "of its lifetime"
        raise out_of_range(
            "Specified start_timestamp is invalid for the partition. Please specify a start_timestamp "
            f"{life}. {received}."
        )


class Reading:
    """One running change stream query.

    Args:
        query: The checked arguments of the query.
        stream: The stream.
        clock: The server's clock.
        changed: The condition that a thread must hold while it reads or changes the server. The
            server notifies this condition after every change.
        is_active: A function that returns False if the client is no longer listening.
        mix: A random generator that interleaves transactions with the same commit timestamp; None
            to keep the order of the transactions.
    """

    def __init__(
        self,
        query: StreamQuery,
        stream: ChangeStream,
        clock: Clock,
        changed: Condition,
        is_active: Callable[[], bool],
        *,
        mix: random.Random | None = None,
    ) -> None:
        self._mix = mix
        self._query = query
        self._stream = stream
        self._clock = clock
        self._changed = changed
        self._is_active = is_active
        self._start: int = query.start or 0
        self._beat = (query.heartbeat or 1000) * SECOND // 1000
        self._told = self._start
        self._anything = False

    def records(self) -> Iterator[list[Record]]:
        """Yield batches of records until the end time of the query or the end of the partition."""
        if self._query.token is None:
            self._wait_for(self._start)
            with self._changed:
                told = self._stream.root(self._start)
            yield list(told)
            return
        partition = self._stream.partitions[self._query.token]
        at = partition.index(self._start)
        while self._is_active():
            with self._changed:
                found, at, over = self._step(partition, at)
                if not found and not over:
                    self._changed.wait(self._pause())
            if found:
                yield found
            if over:
                return

    def _step(self, partition: Partition, at: int) -> tuple[list[Record], int, bool]:
        """Return the records up to now and the index of the next record.

        Also return True if the answer ends.
        """
        now, end = self._clock.nanoseconds(), self._query.end
        bound = now if end is None else min(now, end)
        stop = at
        while stop < len(partition.log) and partition.log[stop].commit <= bound:
            stop += 1
        told = partition.log[at:stop]
        found: list[Record] = list(told if self._mix is None else _mixed(told, self._mix))
        ended = partition.end is not None and partition.end <= bound
        if ended and not partition.hidden and self._stream.ends_silently():
            return [], stop, True
        if found:
            self._told = bound
        else:
            found = self._heartbeats(partition, bound)
        self._anything = self._anything or bool(found)
        if ended:
            if partition.hidden:
                return found, stop, False
            return [*found, *self._stream.ending(partition)], stop, True
        over = end is not None and now >= end
        if over and end is not None and not self._anything:
            found.append(Heartbeat(end))
        return found, stop, over

    def _heartbeats(self, partition: Partition, bound: int) -> list[Record]:
        """Return the heartbeats that are due since the last check."""
        last = bound if partition.end is None else min(bound, partition.end - MICROSECOND)
        moments = range(self._told + self._beat, last + 1, self._beat)
        if moments:
            self._told = moments[-1]
        return [Heartbeat(moment) for moment in moments]

    def _pause(self) -> float:
        now = self._clock.nanoseconds()
        until = min(self._told + self._beat, self._query.end or now + SECOND)
        return min(max((until - now) / SECOND, 0.001), _LONGEST_WAIT)

    def _wait_for(self, moment: int) -> None:
        with self._changed:
            while self._is_active() and self._clock.nanoseconds() < moment:
                self._changed.wait(_LONGEST_WAIT)
        if not self._is_active():
            raise ServiceError("CANCELLED", "The call was cancelled")


def _mixed(records: list[DataChange], dice: random.Random) -> Iterator[DataChange]:
    """Return the records; randomly interleave transactions that have the same commit timestamp."""
    for _, same in itertools.groupby(records, key=lambda record: record.commit):
        hands: dict[str, list[DataChange]] = {}
        for record in same:
            hands.setdefault(record.transaction, []).append(record)
        turns = [name for name, hand in hands.items() for _ in hand]
        dice.shuffle(turns)
        for name in turns:
            yield hands[name].pop(0)
