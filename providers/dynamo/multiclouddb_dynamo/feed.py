"""Implements a feed that reads the stream of one table."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from datetime import datetime
from typing import Final

import attrs
from attrs import define
from botocore.exceptions import ClientError

from multiclouddb_api import ErrorCategory, ErrorReason, LookupAnswer, MulticloudDbKey, Now
from multiclouddb_dynamo.catalog import elsewhere, find_table, replaced
from multiclouddb_dynamo.errors import MISSING, PROVIDER_ID, code_of
from multiclouddb_dynamo.mapping import DynamoView
from multiclouddb_dynamo.position import compare, cursor_of, describe, headroom, join, place_of, without_trail
from multiclouddb_dynamo.reader import DynamoReader
from multiclouddb_dynamo.shards import Listing
from multiclouddb_dynamo.snapshots import SameTable, SegmentReader, cut, look_up_items, plan_scan
from multiclouddb_dynamo.source import ReaderContext
from multiclouddb_dynamo.starts import Resolution
from multiclouddb_dynamo.survey import survey_of_children, survey_of_listing
from multiclouddb_spi import (
    Cursor,
    Deadline,
    Feed,
    FeedIdentity,
    FeedStart,
    Position,
    ProviderFault,
    Reader,
    Scan,
    ScanPlan,
    Seed,
    Segment,
    Survey,
)

_ARN_PARTS: Final = 5


@define
class _Learned:  # the partial results that the attempts of one call share
    resolution: Resolution
    listing: Listing = attrs.field(factory=Listing)


def _place_of(arn: str | None) -> str | None:
    """Return the region and the account in the ARN of a stream; None if the text is no ARN."""
    parts = (arn or "").split(":")
    return f"region {parts[3]} of account {parts[4]}" if len(parts) > _ARN_PARTS and all(parts[3:5]) else None


class DynamoFeed(Feed):
    """A feed that reads the stream of one table."""

    names_late = True

    def __init__(self, source: ReaderContext) -> None:
        self.spec = source.spec
        self.identity = FeedIdentity(PROVIDER_ID, self.spec.address, source.arn)
        self._source, self._shards = source, source.shards
        self._learned: _Learned | None = None
        self._unfinished: list[Listing] = []
        self._same = SameTable(source)

    def resumes(self, incarnation: str | None) -> bool:
        """Return True for a token of this stream; refuse one of the table's replica in another region."""
        own = self._source.arn
        here, there = _place_of(own), _place_of(incarnation)
        if None not in (here, there) and here != there:
            raise ProviderFault.of(
                ErrorCategory.INVALID_REQUEST,
                f"continuation_token: is of a table in {there}, and this client reads {here}: each region of "
                "a global table, and each account, has a stream of its own, in which the position means "
                "nothing; connect to the region that it came from, or start again here with a Snapshot()",
                reason=ErrorReason.WRONG_RESOURCE,
            )
        return incarnation == own

    def for_one_call(self) -> DynamoFeed:
        """Return a feed that reuses the partial results of earlier attempts of the same call."""
        feed = copy(self)
        feed._learned = _Learned(Resolution(self._source))
        return feed

    def clock(self, deadline: Deadline) -> datetime | None:
        return self._source.calls.now()

    def start(self, position: FeedStart, partition_id: str | None, deadline: Deadline) -> list[Seed]:
        """List the shards, and for `Now` request an iterator at the end of each open shard."""
        table, arn = find_table(self._source.calls, self.spec.address)
        if arn != self._source.arn:
            raise ProviderFault.of(
                ErrorCategory.NOT_FOUND,
                f"the stream of table {self.spec.address.collection!r} was replaced by another",
            )
        if not table.enabled:
            raise ProviderFault.of(
                ErrorCategory.INVALID_REQUEST,
                f"the stream of table {self.spec.address.collection!r} is disabled "
                "(StreamSpecification.StreamEnabled); enable it, or continue from a token to read the rest",
                reason=ErrorReason.NOT_PROVISIONED,
            )
        learned = self._learned or _Learned(Resolution(self._source))
        with self._explained(deadline):
            seeds = learned.resolution.seeds(position, partition_id, deadline)
        learned.resolution = Resolution(self._source)
        return seeds

    def open(self, partition_id: str, cursor: Cursor, until: Cursor | None = None) -> Reader:
        view = self._view(self.public_id(partition_id), partition_id)
        bound = place_of(until) if until is not None else None
        return DynamoReader(self._source, view, place_of(cursor), bound)

    def open_segment(self, segment: Segment) -> Reader:
        return SegmentReader(
            self._source, self._same, self._view(self.public_id(segment.segment_id), ""), segment
        )

    def survey(
        self,
        asked: Mapping[str, Cursor],
        deadline: Deadline,
        *,
        expired: Collection[str] = frozenset(),
        since: datetime | None = None,
        whole: bool = True,
    ) -> Survey:
        if not whole:
            return survey_of_children(self._source, asked, deadline)
        bound = None if since is None else int(since.timestamp())
        shards = self._listing(deadline, continues=bool(asked)).shards
        return survey_of_listing(self._source, shards, asked, expired, bound, deadline)

    def can_audit_early(self) -> bool:
        """Return True if the rate limit of the stream allows a listing, or if one is unfinished."""
        return self._shards.can_list_early() or any(not each.is_old for each in self._unfinished)

    def _listing(self, deadline: Deadline, *, continues: bool) -> Listing:
        learned = self._learned
        own = Listing() if learned is None else learned.listing
        if not continues or own.is_whole:
            return self._shards.read(deadline, own)
        try:
            listing = self._unfinished.pop()
        except IndexError:
            listing = own
        if listing.is_old:
            listing = own
        try:
            self._shards.read_again(deadline, listing)
        except Exception:
            self._unfinished.append(listing)
            raise
        if learned is not None:
            learned.listing = listing
        return listing

    def headroom(self, cursor: Cursor, now: datetime) -> float | None:
        return headroom(place_of(cursor), now)

    def join(self, child_id: str, cursors: Sequence[Cursor]) -> Cursor:
        return cursor_of(join(map(place_of, cursors)))

    def compare(self, a: Cursor, b: Cursor) -> int | None:
        """Compare sequence numbers as integers."""
        return compare(place_of(a), place_of(b))

    def without_hints(self, cursor: Cursor) -> Cursor:
        return without_trail(cursor)

    def describe(self, cursor: Cursor) -> Position:
        return describe(place_of(cursor))

    def snapshot(self, segments: int | None, deadline: Deadline) -> ScanPlan:
        seeds = self.start(Now(), None, deadline)
        with self._explained(deadline):
            return plan_scan(self._source, seeds, segments)

    def segments(
        self, scan: Scan, rest: Cursor, count: int, deadline: Deadline
    ) -> tuple[list[Segment], Cursor | None]:
        return cut(scan, rest, count)

    def lookup(
        self, keys: Sequence[MulticloudDbKey], deadline: Deadline
    ) -> dict[MulticloudDbKey, LookupAnswer]:
        """Return the items of at most 100 keys with one call."""
        return look_up_items(self._source, self._same, self._view("", ""), keys)

    @contextmanager
    def _explained(self, deadline: Deadline) -> Iterator[None]:
        """Say why something that was there a moment ago is missing."""
        try:
            yield
        except ClientError as error:
            if code_of(error) != MISSING:
                raise
            calls, arn = self._source.calls, self._source.arn
            fault = replaced(calls, self.spec.address, arn)
            fault = fault or elsewhere(calls, self.spec.address, arn, deadline)
            if fault is None:
                raise
            raise fault from error

    def _view(self, public_id: str, shard_id: str) -> DynamoView:
        spec = self.spec
        return DynamoView(
            spec.address,
            public_id,
            shard_id,
            self._source.table.key_names,
            with_new=spec.with_new,
            with_old=spec.with_old,
            native=spec.include_native,
            replicated=self._source.table.replicated,
        )
