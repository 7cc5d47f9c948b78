"""Defines fault scripts: descriptions of the faults that every provider must survive.

If a provider has a scripted server, the server produces the faults on the wire: the harness overrides
`Harness.troubled`. Without a scripted server, `FaultyProvider` produces the faults in the reader.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from typing import Final, TypeAlias, assert_never

import attrs

from multiclouddb_api import ErrorCategory
from multiclouddb_conformance.delegating import (
    WrappedFeed,
    WrappedPlugin,
    WrappedProvider,
    WrappedReader,
)
from multiclouddb_spi import (
    Awaiting,
    Batch,
    Cursor,
    Deadline,
    Drained,
    Fault,
    Feed,
    FeedSpec,
    FeedStart,
    Head,
    Outcome,
    Partition,
    Provider,
    ProviderFault,
    ProviderPlugin,
    Seed,
    Survey,
)

__all__ = [
    "FAULTS",
    "ChildrenFirst",
    "DropMidPage",
    "ExpireIterator",
    "FaultScript",
    "FaultyPlugin",
    "FaultyProvider",
    "LateChildren",
    "LateSiblings",
    "LeavesOut",
    "MergeMidPage",
    "ServerFailure",
    "Silent",
    "Slow",
    "SplitMidPage",
    "Throttle",
    "Trimmed",
]

_MOST_SILENCE: Final = 60.0


@attrs.frozen
class Throttle:
    """The service throttles every second read.

    Attributes:
        retry_after: The number of seconds that the service asks the client to wait, or None.
        times: The number of refused reads.
    """

    retry_after: float | None = None
    times: int = 2


@attrs.frozen
class ServerFailure:
    """Every second read fails with a 5xx. If the number of failures has no limit, every read fails.

    Attributes:
        times: The number of failures, or None for no limit.
        partition_id: The public id of the only affected partition, or None if all partitions are affected.
    """

    times: int | None = 2
    partition_id: str | None = None


@attrs.frozen
class DropMidPage:
    """The connection is lost in the middle of an answer, after the service's iterator has advanced.

    Attributes:
        times: The number of answers that are lost.
    """

    times: int = 2


@attrs.frozen
class Slow:
    """Every read is slow.

    Attributes:
        seconds: The duration of each read.
    """

    seconds: float = 0.1


@attrs.frozen
class Silent:
    """No read gets an answer.

    Attributes:
        from_the_start: True if the call that opens the feed also hangs.
    """

    from_the_start: bool = False


@attrs.frozen
class ExpireIterator:
    """A reader's iterator expires after the reader's first answer.

    Attributes:
        times: The number of readers that are affected.
    """

    times: int = 2


@attrs.frozen
class SplitMidPage:
    """A partition splits while an answer with records is in progress."""


@attrs.frozen
class MergeMidPage:
    """Two partitions merge while an answer with records is in progress."""


@attrs.frozen
class ChildrenFirst:
    """Children are listed before their parents, and are named in reverse order."""


@attrs.frozen
class LateChildren:
    """A closed partition names its children late.

    Attributes:
        calls: The number of requests that are answered with "not yet".
    """

    calls: int = 2


@attrs.frozen
class LateSiblings:
    """A closed partition names only its first child, and reports that there may be other children."""


@attrs.frozen
class LeavesOut:
    """A start omits the last partition and its parents."""


@attrs.frozen
class Trimmed:
    """Retention removes all existing changes while an answer with records is in progress."""


FaultScript: TypeAlias = (
    Throttle
    | ServerFailure
    | DropMidPage
    | Slow
    | Silent
    | ExpireIterator
    | SplitMidPage
    | MergeMidPage
    | ChildrenFirst
    | LateChildren
    | LateSiblings
    | LeavesOut
    | Trimmed
)
"""The union of all fault scripts; use `match` on the class."""

FAULTS: Final[Mapping[str, FaultScript]] = {
    "throttle": Throttle(),
    "throttle with retry-after": Throttle(retry_after=0.2),
    "5xx": ServerFailure(),
    "drop mid-page": DropMidPage(),
    "slow": Slow(),
    "expired iterator": ExpireIterator(),
    "split mid-page": SplitMidPage(),
    "merge mid-page": MergeMidPage(),
    "child before parent": ChildrenFirst(),
    "children named late": LateChildren(),
    "trimmed": Trimmed(),
}
"""The fault scripts that one test of the suite runs, by name. Separate tests run the other scripts."""


def _failure(category: ErrorCategory, message: str, retry_after: float | None = None) -> ProviderFault:
    return ProviderFault(Fault(category, message, "scripted", retryable=True, retry_after=retry_after))


class FaultyProvider(WrappedProvider):
    """Wraps any provider and adds a fault to its readers.

    Args:
        inner: The provider.
        script: The fault script.
        act: A function that splits, merges or trims the collection directly in the service. Only
            some scripts need this function. The thread that reads calls the function once.

    Attributes:
        happened: The number of times that the fault has happened.
    """

    def __init__(self, inner: Provider, script: FaultScript, act: Callable[[], None] | None = None) -> None:
        super().__init__(inner)
        self._script, self._act = script, act
        self.happened = 0
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._asked = 0
        self._left = 0
        self._first: dict[str, str] = {}
        match script:
            case Throttle(times=times) | DropMidPage(times=times) | ExpireIterator(times=times):
                self._left = times
            case ServerFailure(times=int(times)):
                self._left = times
            case LateChildren(calls=calls):
                self._left = calls
            case _:
                self._left = 1

    def open_feed(self, spec: FeedSpec, deadline: Deadline) -> Feed:
        """Open the feed, unless the service gives no answer from the start."""
        if self._script == Silent(from_the_start=True):
            self._note()
            self._closed.wait(_MOST_SILENCE)
            raise _failure(ErrorCategory.TRANSIENT_FAILURE, "cancelled")
        return super().open_feed(spec, deadline)

    def close(self) -> None:
        """Release every read that hangs, and close the provider."""
        self._closed.set()
        super().close()

    def fetch(
        self, reader: WrappedReader, max_records: int, max_bytes: int, wait: float, deadline: Deadline
    ) -> Batch:
        """Fetch records, and cause the fault before or after the fetch."""
        script = self._script
        self._before(reader)
        batch = super().fetch(reader, max_records, max_bytes, wait, deadline)
        match script:
            case DropMidPage():
                if self._every_other():
                    raise _failure(ErrorCategory.TRANSIENT_FAILURE, "the connection was lost")
            case SplitMidPage() | MergeMidPage() | Trimmed():
                if len(batch) and self._act is not None and self._once():
                    self._act()
            case ChildrenFirst() | LateChildren() | LateSiblings():
                return attrs.evolve(batch, outcome=self._ending(batch.outcome))
            case Throttle() | ServerFailure() | Slow() | Silent() | ExpireIterator() | LeavesOut():
                pass
            case _:
                assert_never(script)
        return batch

    def start(
        self, feed: WrappedFeed, position: FeedStart, partition_id: str | None, deadline: Deadline
    ) -> list[Seed]:
        """Return the seeds (start positions). `ChildrenFirst` puts children before parents."""
        seeds = super().start(feed, position, partition_id, deadline)
        if isinstance(self._script, LeavesOut) and partition_id is None:
            missed = [seed for seed in seeds if not seed.ended][-1]
            return [seed for seed in seeds if seed is not missed and seed.partition_id not in missed.parents]
        return seeds[::-1] if isinstance(self._script, ChildrenFirst) else seeds

    def names_late(self, feed: WrappedFeed) -> bool:
        """Return True if the script names partitions late, or leaves one out."""
        return isinstance(self._script, LateChildren | LateSiblings | LeavesOut) or super().names_late(feed)

    def stated(
        self, survey: Survey, asked: Mapping[str, Cursor], expired: Collection[str], *, whole: bool
    ) -> Survey:
        """State what exists.

        `LateChildren` delays children, `LateSiblings` tells only one of them, and `ChildrenFirst` puts
        partitions before their parents.
        """
        del expired
        match self._script:
            case LateChildren() if not whole and self._once():
                return Survey()
            case ChildrenFirst():
                return attrs.evolve(survey, present=survey.present[::-1])
            case LateSiblings() if not whole:
                present = [each for each in survey.present if not self._is_later_sibling(each, asked)]
                return attrs.evolve(survey, present=tuple(present), final={})
            case _:
                return survey

    def _is_later_sibling(self, partition: Partition, asked: Collection[str]) -> bool:
        match partition.parents:
            case (parent,) if parent in asked:
                with self._lock:
                    return self._first.setdefault(parent, partition.partition_id) != partition.partition_id
            case _:
                return False

    def find_heads(
        self,
        feed: WrappedFeed,
        cursors: Mapping[str, Cursor],
        max_records: int | None,
        deadline: Deadline,
    ) -> dict[str, Head]:
        """Return the heads (end positions); they name the same children as a read does."""
        heads = super().find_heads(feed, cursors, max_records, deadline)
        return {name: attrs.evolve(head, outcome=self._ending(head.outcome)) for name, head in heads.items()}

    def _ending(self, outcome: Outcome) -> Outcome:
        """Apply the fault script to the outcome of a batch or a head."""
        match self._script, outcome:
            case ChildrenFirst(), Drained(children):
                self._note()
                return attrs.evolve(outcome, children=children[::-1])
            case LateChildren(), Drained():
                return Awaiting()
            case LateSiblings(), Drained((first, *_)):
                with self._lock:
                    self._first |= dict.fromkeys(first.parents, first.partition_id)
                return Drained((first,), complete=False)
            case _:
                return outcome

    def _before(self, reader: WrappedReader) -> None:
        match self._script:
            case Throttle(retry_after):
                if self._every_other():
                    raise _failure(ErrorCategory.THROTTLED, "too many requests", retry_after)
            case ServerFailure(times, where):
                here = where in (None, reader.feed.public_id(reader.partition_id))
                if here and (self._note() if times is None else self._every_other()):
                    raise _failure(ErrorCategory.TRANSIENT_FAILURE, "503")
            case ExpireIterator():
                if reader.fetches > 1 and self._once():
                    raise _failure(ErrorCategory.TRANSIENT_FAILURE, "the iterator has expired")
            case Slow(seconds):
                self._note()
                reader.cancelled.wait(seconds)
            case Silent():
                self._note()
                reader.cancelled.wait(_MOST_SILENCE)
                raise _failure(ErrorCategory.TRANSIENT_FAILURE, "cancelled")
            case _:
                pass

    def _every_other(self) -> bool:
        with self._lock:
            self._asked += 1
            odd = self._asked % 2 == 1
        return not odd and self._once()

    def _once(self) -> bool:
        """Return True until the script is over."""
        with self._lock:
            self._left -= 1
            self.happened += self._left >= 0
            return self._left >= 0

    def _note(self) -> bool:
        """Count one more occurrence of the endless fault."""
        with self._lock:
            self.happened += 1
        return True


class FaultyPlugin(WrappedPlugin):
    """A plugin that connects like another plugin and adds a fault to every reader.

    Args:
        inner: The plugin.
        script: The fault script.
        act: The same as the argument `act` of `FaultyProvider`.

    Attributes:
        providers: The providers that this plugin connected.
    """

    def __init__(
        self, inner: ProviderPlugin, script: FaultScript, act: Callable[[], None] | None = None
    ) -> None:
        super().__init__(inner)
        self._script, self._act = script, act
        self.providers: list[FaultyProvider] = []

    def wrap(self, provider: Provider) -> Provider:
        """Wrap the provider with the fault."""
        self.providers.append(FaultyProvider(provider, self._script, self._act))
        return self.providers[-1]
