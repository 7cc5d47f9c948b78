"""Injects faults on demand: the given number of next calls of an operation fail in the requested way."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import attrs

from multiclouddb_dynamo_emulator.errors import ServiceError

__all__ = [
    "AFTER",
    "BEFORE",
    "Act",
    "Damage",
    "Delay",
    "Drop",
    "Empty",
    "Fail",
    "Hang",
    "Rewrite",
    "Trouble",
    "Troubles",
]


@attrs.frozen
class Fail:
    """The call is answered with an error."""

    error: ServiceError


@attrs.frozen
class Drop:
    """The connection is closed in the middle of the answer, or before the answer."""

    mid_body: bool
    reset: bool = False


@attrs.frozen
class Delay:
    """The answer to the call is delayed."""

    seconds: float


@attrs.frozen
class Hang:
    """The call is not answered until the fault is over."""


@attrs.frozen
class Empty:
    """The call returns a page without records, although records exist."""


@attrs.frozen
class Act:
    """The fault calls a function after the data is read and before the answer is sent."""

    act: Callable[[], object]


@attrs.frozen
class Rewrite:
    """The answer is changed by a function before it is sent."""

    change: Callable[[dict[str, Any]], object]


@attrs.frozen
class Damage:
    """A part of the answer is replaced on its way, so that its sum is that of another text."""

    text: bytes
    by: bytes


Action: TypeAlias = Fail | Drop | Delay | Hang | Empty | Act | Rewrite | Damage
BEFORE: Final = (Fail, Drop, Delay, Hang, Empty)
AFTER: Final = (Drop, Act, Rewrite, Damage)


@attrs.define(eq=False)
class Trouble:
    """A requested fault.

    Attributes:
        action: The action.
        operation: The calls that the fault affects; None for all.
        shard: The fault affects only calls for this shard; None for all calls.
        times: The number of times that the fault happens; None means always.
        every: The interval: 1 means each call; 2 means every second call, beginning with the second.
        each_shard: True to count the calls of each shard separately.
        renewed_only: True if the fault affects only calls whose iterator comes from `GetRecords`.
        with_records: True if the fault affects only answers that contain records.
        happened: The number of times that the fault has happened.
        over: An event that is set when the fault has ended.
    """

    action: Action
    operation: str | None = None
    shard: str | None = None
    times: int | None = None
    every: int = 1
    each_shard: bool = False
    renewed_only: bool = False
    with_records: bool = False
    happened: int = 0
    over: threading.Event = attrs.field(factory=threading.Event, init=False)
    _asked: Counter[str | None] = attrs.field(factory=Counter, init=False)
    _done: Counter[str | None] = attrs.field(factory=Counter, init=False)

    def end(self) -> None:
        """End the fault. Hanging calls continue."""
        self.over.set()

    def strikes(self, operation: str, shard: str | None, renewed: bool, records: int | None) -> bool:
        """Return True if the fault must be applied to this call.

        `records` is None before the answer is known.
        """
        if self.over.is_set() or self.operation not in (None, operation) or self.shard not in (None, shard):
            return False
        if (self.renewed_only and not renewed) or (self.with_records and not records):
            return False
        counter = shard if self.each_shard else None
        if self.times is not None and self._done[counter] >= self.times:
            return False
        self._asked[counter] += 1
        if self._asked[counter] % self.every:
            return False
        self._done[counter] += 1
        self.happened += 1
        return True


class Troubles:
    """The faults that were requested from a server.

    Each method adds one fault. Several threads can use this object.

    The arguments of the methods are the same as for `Trouble`. `operation=None` means every operation of both
    services.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: list[Trouble] = []

    def fail(
        self,
        operation: str | None,
        code: str,
        times: int | None = 1,
        *,
        message: str | None = None,
        status: int | None = None,
        retry_after: float | None = None,
        shard: str | None = None,
        every: int = 1,
        renewed_only: bool = False,
    ) -> Trouble:
        """Answer a call with an error; `errors.KNOWN` lists the codes with their status and message."""
        error = ServiceError(code, message, status, retry_after)
        return self._add(
            Trouble(Fail(error), operation, shard, times, every=every, renewed_only=renewed_only)
        )

    def expire(self, times: int | None = 1, *, shard: str | None = None, every: int = 1) -> Trouble:
        """Expire the iterators that `GetRecords` has returned.

        New iterators, which `GetShardIterator` returns, still work.
        """
        return self.fail(
            "GetRecords", "ExpiredIteratorException", times, shard=shard, every=every, renewed_only=True
        )

    def drop(
        self,
        operation: str | None,
        times: int | None = 1,
        *,
        mid_body: bool = False,
        reset: bool = False,
        with_records: bool = False,
        shard: str | None = None,
        every: int = 1,
    ) -> Trouble:
        """Close the connection before the answer, or in the middle of the answer.

        A connection that closes in the middle of an answer is dangerous for a client that uses
        botocore. botocore does not compare the length of the answer with `Content-Length`. If
        botocore cannot parse the JSON, it treats the answer as an answer without members. If
        `reset` is True, botocore raises an error.
        """
        if (with_records or reset) and not mid_body:
            raise ValueError("with_records and reset can only be used with mid_body")
        return self._add(
            Trouble(Drop(mid_body, reset), operation, shard, times, every, with_records=with_records)
        )

    def delay(
        self, operation: str | None, seconds: float, times: int | None = None, *, shard: str | None = None
    ) -> Trouble:
        """Answer calls late."""
        return self._add(Trouble(Delay(seconds), operation, shard, times))

    def hang(self, operation: str | None, times: int | None = None, *, shard: str | None = None) -> Trouble:
        """Do not answer before `Trouble.end` is called."""
        return self._add(Trouble(Hang(), operation, shard, times))

    def empty_pages(self, times: int | None, *, shard: str | None = None) -> Trouble:
        """For each shard, return the next `times` pages without records.

        The iterator does not advance.
        """
        return self._add(Trouble(Empty(), "GetRecords", shard, times, each_shard=True))

    def act(
        self,
        act: Callable[[], object],
        times: int | None = 1,
        *,
        operation: str = "GetRecords",
        shard: str | None = None,
    ) -> Trouble:
        """Call a function after an answer is ready and before it is sent.

        For `GetRecords`, the function is called only if the answer contains records.
        """
        with_records = operation == "GetRecords"
        return self._add(Trouble(Act(act), operation, shard, times, with_records=with_records))

    def rewrite(
        self,
        change: Callable[[dict[str, Any]], object],
        times: int | None = None,
        *,
        operation: str,
        shard: str | None = None,
    ) -> Trouble:
        """Let a function change an answer in place before it is sent.

        The function gets the answer in the form that the protocol uses. With it, the server answers as other
        servers of the same protocol do, for example without a field that the API calls optional.
        """
        return self._add(Trouble(Rewrite(change), operation, shard, times))

    def damage(self, text: bytes, by: bytes, times: int | None = 1, *, operation: str) -> Trouble:
        """Replace a part of an answer after its sum (`x-amz-crc32`) was computed."""
        return self._add(Trouble(Damage(text, by), operation, None, times))

    def end(self) -> None:
        """End all faults."""
        with self._lock:
            for trouble in self._all:
                trouble.end()
            self._all.clear()

    def striking(
        self,
        kinds: tuple[type[Action], ...],
        operation: str,
        shard: str | None,
        renewed: bool,
        records: int | None = None,
    ) -> list[Trouble]:
        """Return the faults to apply to a call, in the order in which they were requested.

        After a fault that ends the call, no more faults are returned.
        """
        struck: list[Trouble] = []
        after = records is not None
        with self._lock:
            for trouble in self._all:
                wanted = isinstance(trouble.action, kinds)
                if isinstance(trouble.action, Drop):
                    wanted = trouble.action.mid_body == after
                if wanted and trouble.strikes(operation, shard, renewed, records):
                    struck.append(trouble)
                    if isinstance(trouble.action, Fail | Drop):
                        break
        return struck

    def _add(self, trouble: Trouble) -> Trouble:
        with self._lock:
            self._all.append(trouble)
        return trouble
