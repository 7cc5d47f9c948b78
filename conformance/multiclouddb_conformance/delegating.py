"""Defines a provider that wraps another provider, with one method for each answer that a test may change.

The fault scripts (`faults.py`) and the mutants (`mutants/`) use this wrapper. Without overrides,
the wrapper changes nothing and supports exactly what the wrapped object supports. Therefore, each
wrapper has every member of the contract, including those with a default implementation. A wrapper
has the members of a protocol such as `SupportsHeads` only if the wrapped object has them;
`tests/test_delegating.py` checks this.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs

from multiclouddb_api import (
    CapabilitySet,
    ChangeEvent,
    ClientConfig,
    LookupAnswer,
    MulticloudDbKey,
    ProviderOptions,
    ResourceAddress,
)
from multiclouddb_spi import (
    Batch,
    Cursor,
    Deadline,
    Fault,
    Feed,
    FeedSpec,
    FeedStart,
    Head,
    Mapper,
    Position,
    Provider,
    ProviderPlugin,
    Reader,
    Scan,
    ScanPlan,
    Seed,
    Segment,
    SupportsBackfill,
    SupportsChangeMark,
    SupportsCollections,
    SupportsCommands,
    SupportsHeads,
    SupportsInterrupts,
    SupportsLookup,
    SupportsParts,
    SupportsRenewal,
    SupportsSnapshot,
    Survey,
)

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["WrappedFeed", "WrappedMapper", "WrappedPlugin", "WrappedProvider", "WrappedReader"]


@attrs.frozen(eq=False)
class WrappedMapper(Mapper):
    """A mapper that wraps another mapper; a subclass changes the results."""

    inner: Mapper

    def cursor_after(self, records: Any, count: int) -> Cursor:
        return self.inner.cursor_after(records, count)

    def events(self, records: Any, start: int, stop: int) -> list[ChangeEvent]:
        return self.inner.events(records, start, stop)

    def arrow(self, records: Any, start: int, stop: int) -> pa.RecordBatch | None:
        return self.inner.arrow(records, start, stop)


class WrappedReader(Reader):
    """A reader whose fetches are passed through `WrappedProvider.fetch`."""

    def __init__(self, inner: Reader, feed: WrappedFeed, partition_id: str, cursor: Cursor) -> None:
        self.inner, self.feed, self.partition_id, self.cursor = inner, feed, partition_id, cursor
        self.fetches = 0
        self.cancelled = threading.Event()

    def fetch(self, max_records: int, max_bytes: int, wait: float, deadline: Deadline) -> Batch:
        self.fetches += 1
        return self.feed.provider.fetch(self, max_records, max_bytes, wait, deadline)

    def fetch_at_once(self, max_records: int, max_bytes: int) -> Batch | None:
        # The engine does not call it, because the wrapped feed says no: every fetch passes the method above.
        return self.inner.fetch_at_once(max_records, max_bytes)

    def longest_fetch(self) -> float:
        return self.inner.longest_fetch()

    def cancel(self) -> None:
        self.cancelled.set()
        self.inner.cancel()

    def close(self) -> None:
        self.feed.provider.close_reader(self)


class WrappedFeed(Feed):
    """A feed whose answers are passed through the methods of `WrappedProvider`."""

    def __init__(self, inner: Feed, provider: WrappedProvider) -> None:
        self.inner, self.provider = inner, provider
        self.spec, self.identity = inner.spec, inner.identity
        if isinstance(inner, SupportsHeads):
            vars(self).update(heads=partial(provider.find_heads, self))
        if isinstance(inner, SupportsSnapshot):
            vars(self).update(
                snapshot=partial(provider.snapshot, self), segments=partial(provider.cut_segments, self)
            )
        if isinstance(inner, SupportsBackfill):
            vars(self).update(backfill=inner.backfill)
        if isinstance(inner, SupportsLookup):
            vars(self).update(lookup=partial(provider.look_up, self))
        if isinstance(inner, SupportsChangeMark):
            vars(self).update(change_mark=inner.change_mark)
        if isinstance(inner, SupportsParts):
            vars(self).update(
                parts=inner.parts, narrowed=inner.narrowed, reaches=inner.reaches, is_before=inner.is_before
            )

    @property
    def lists_parents(self) -> bool:  # type: ignore[override]  # the instance has it, not the class
        return self.inner.lists_parents

    @property
    def waits_at_service(self) -> bool:  # type: ignore[override]  # the instance has it, not the class
        return self.inner.waits_at_service

    def resumes(self, incarnation: str | None) -> bool:
        return self.inner.resumes(incarnation)

    def longest_wait(self) -> float:
        return self.inner.longest_wait()

    def for_one_call(self) -> Feed:
        inner = self.inner.for_one_call()
        return self if inner is self.inner else WrappedFeed(inner, self.provider)

    def clock(self, deadline: Deadline) -> datetime | None:
        return self.inner.clock(deadline)

    def start(self, position: FeedStart, partition_id: str | None, deadline: Deadline) -> list[Seed]:
        return self.provider.start(self, position, partition_id, deadline)

    def open(self, partition_id: str, cursor: Cursor, until: Cursor | None = None) -> Reader:
        reader = WrappedReader(self.inner.open(partition_id, cursor, until), self, partition_id, cursor)
        self.provider.readers.add(reader)
        return reader

    def open_segment(self, segment: Segment) -> Reader:
        inner, name = self.inner.open_segment(segment), segment.segment_id
        reader = WrappedReader(inner, self, name, segment.cursor)
        self.provider.readers.add(reader)
        return reader

    @property
    def names_late(self) -> bool:  # type: ignore[override]  # the wrapped feed's may change while it is open
        return self.provider.names_late(self)

    def survey(
        self,
        asked: Mapping[str, Cursor],
        deadline: Deadline,
        *,
        expired: Collection[str] = frozenset(),
        since: datetime | None = None,
        whole: bool = True,
    ) -> Survey:
        stated = self.inner.survey(asked, deadline, expired=expired, since=since, whole=whole)
        return self.provider.stated(stated, asked, expired, whole=whole)

    def visible_after(self) -> float | None:
        return self.inner.visible_after()

    def can_audit_early(self) -> bool:
        return self.inner.can_audit_early()

    def headroom(self, cursor: Cursor, now: datetime) -> float | None:
        return self.inner.headroom(cursor, now)

    def join(self, child_id: str, cursors: Sequence[Cursor]) -> Cursor:
        return self.inner.join(child_id, cursors)

    def without_hints(self, cursor: Cursor) -> Cursor:
        return self.inner.without_hints(cursor)

    def compare(self, a: Cursor, b: Cursor) -> int | None:
        return self.inner.compare(a, b)

    def moment(self, cursor: Cursor) -> int | None:
        return self.provider.moment(self, cursor)

    def describe(self, cursor: Cursor) -> Position:
        return self.inner.describe(cursor)


class WrappedProvider(Provider):
    """A provider that forwards every call; override the method whose answer should change."""

    provider_id = "wrapped"

    def __init__(self, inner: Provider) -> None:
        self.inner = inner
        # In this class, these attributes belong to the instance; in other providers, they belong to the
        # class.
        vars(self).update(
            provider_id=inner.provider_id, options_type=inner.options_type, page_records=inner.page_records
        )
        if isinstance(inner, SupportsCommands):
            vars(self).update(run_command=inner.run_command, run_cursor_command=inner.run_cursor_command)
        if isinstance(inner, SupportsCollections):
            vars(self).update(collections=inner.collections)
        if isinstance(inner, SupportsRenewal):
            vars(self).update(renew=inner.renew)
        if isinstance(inner, SupportsInterrupts):
            vars(self).update(interrupted=self._interrupted)
        self.readers: weakref.WeakSet[WrappedReader] = weakref.WeakSet()

    def _interrupted(self) -> None:
        assert isinstance(self.inner, SupportsInterrupts)
        self.inner.interrupted()

    def capabilities(self) -> CapabilitySet:
        return self.inner.capabilities()

    def complete(self, options: ProviderOptions) -> ProviderOptions:
        return self.inner.complete(options)

    def full_address(self, address: ResourceAddress) -> ResourceAddress:
        return self.inner.full_address(address)

    def open_feed(self, spec: FeedSpec, deadline: Deadline) -> Feed:
        return WrappedFeed(self.inner.open_feed(spec, deadline), self)

    def classify(self, error: Exception) -> Fault:
        return self.inner.classify(error)

    def close(self) -> None:
        for reader in list(self.readers):
            reader.cancel()
        self.inner.close()

    # -- Methods for a wrapper to override

    def fetch(
        self, reader: WrappedReader, max_records: int, max_bytes: int, wait: float, deadline: Deadline
    ) -> Batch:
        """Return the answer of `Reader.fetch`."""
        return reader.inner.fetch(max_records, max_bytes, wait, deadline)

    def close_reader(self, reader: WrappedReader) -> None:
        """Do what `Reader.close` does."""
        self.readers.discard(reader)
        reader.inner.close()

    def start(
        self, feed: WrappedFeed, position: FeedStart, partition_id: str | None, deadline: Deadline
    ) -> list[Seed]:
        """Return the answer of `Feed.start`."""
        return feed.inner.start(position, partition_id, deadline)

    def names_late(self, feed: WrappedFeed) -> bool:
        """Return `Feed.names_late`."""
        return feed.inner.names_late

    def stated(
        self, survey: Survey, asked: Mapping[str, Cursor], expired: Collection[str], *, whole: bool
    ) -> Survey:
        """Return the answer of `Feed.survey`, given what the wrapped feed states."""
        del asked, expired, whole
        return survey

    def moment(self, feed: WrappedFeed, cursor: Cursor) -> int | None:
        """Return the answer of `Feed.moment`."""
        return feed.inner.moment(cursor)

    def find_heads(
        self,
        feed: WrappedFeed,
        cursors: Mapping[str, Cursor],
        max_records: int | None,
        deadline: Deadline,
    ) -> dict[str, Head]:
        """Return the answer of `SupportsHeads.heads`, for a feed that has this method."""
        assert isinstance(feed.inner, SupportsHeads)
        return feed.inner.heads(cursors, max_records, deadline)

    def look_up(
        self, feed: WrappedFeed, keys: Sequence[MulticloudDbKey], deadline: Deadline
    ) -> Mapping[MulticloudDbKey, LookupAnswer]:
        """Return the answer of `SupportsLookup.lookup`, for a feed that has this method."""
        assert isinstance(feed.inner, SupportsLookup)
        return feed.inner.lookup(keys, deadline)

    def snapshot(self, feed: WrappedFeed, segments: int | None, deadline: Deadline) -> ScanPlan:
        """Return the answer of `SupportsSnapshot.snapshot`, for a feed that has this method."""
        assert isinstance(feed.inner, SupportsSnapshot)
        return feed.inner.snapshot(segments, deadline)

    def cut_segments(
        self, feed: WrappedFeed, scan: Scan, rest: Cursor, count: int, deadline: Deadline
    ) -> tuple[list[Segment], Cursor | None]:
        """Return the answer of `SupportsSnapshot.segments`, for a feed that has this method."""
        assert isinstance(feed.inner, SupportsSnapshot)
        return feed.inner.segments(scan, rest, count, deadline)


class WrappedPlugin(ProviderPlugin):
    """A plugin that connects like another plugin and wraps its providers; override `wrap`."""

    provider_id = "wrapped"

    def __init__(self, inner: ProviderPlugin) -> None:
        self.inner = inner
        declared = getattr(inner, "declared", None)
        vars(self).update(provider_id=inner.provider_id, declared=declared, config_type=inner.config_type)

    def capabilities(self) -> CapabilitySet:
        """Return the capabilities of the wrapped plugin."""
        return self.inner.capabilities()

    def check(self, config: ClientConfig) -> None:
        self.inner.check(config)

    def connect(self, config: ClientConfig, native_client: object | None) -> Provider:
        return self.wrap(self.inner.connect(config, native_client))

    def wrap(self, provider: Provider) -> Provider:
        """Return the provider to use instead of the given one."""
        return provider
