"""Divides the pages of a database's feed into the pages that the feeds of its collections would have.

A table of one collection keeps a position of its own collection. So each part of a page has a token of the
collection, made from that of the page, and the table may go on alone from it at any time.

A reading that several tables share begins before the position of each of them. Until it reaches the position
of a table, this one gets no event that is before it, and its position stays: what was before a position is
never delivered again, because it may be a change of an earlier collection of this name, or of a document
whose tombstone is gone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

import attrs

from multiclouddb_api import (
    AtTime,
    ChangeEvent,
    ChangeFeedPage,
    ChangeFeedRequest,
    EntireDatabase,
    MulticloudDbClient,
    Now,
    OperationOptions,
    ProviderOptions,
    ResourceAddress,
)
from multiclouddb_api.event import with_partition_ids
from multiclouddb_spi.abilities import CollectionPart, SupportsParts
from multiclouddb_spi.calls import PartsFound
from multiclouddb_spi.continuation.entry import Plan
from multiclouddb_spi.continuation.lineage import Lineage
from multiclouddb_spi.continuation.token import Envelope, decode_token, encode_token
from multiclouddb_spi.cursor import Cursor, InvalidCursor
from multiclouddb_spi.engine import Engine
from multiclouddb_spi.partition import encode_partition_id
from multiclouddb_spi.token_report import lineage_of

__all__ = ["Divided", "Part", "Parts", "incarnations", "parts_at"]


def parts_at(
    client: MulticloudDbClient,
    database: ResourceAddress,
    at: datetime,
    options: OperationOptions,
    provider_options: ProviderOptions | None = None,
) -> Parts:
    """Return the collections of a database, and the start of a reading of all of them at a time.

    Args:
        client: The client.
        database: The address of the database.
        at: The time.
        options: The time limit.
        provider_options: The options of the provider.

    Raises:
        MulticloudDbError: `UNSUPPORTED_CAPABILITY` if the provider cannot do it, and the errors of a read.
    """
    return Parts(_engine(client).parts(_request(database, AtTime(at), provider_options), options))


def incarnations(
    client: MulticloudDbClient,
    database: ResourceAddress,
    options: OperationOptions,
    provider_options: ProviderOptions | None = None,
) -> Mapping[str, str | None]:
    """Return the collections that exist now, each with its incarnation; the arguments are as in `parts_at`.

    Args:
        client: The client.
        database: The address of the database.
        options: The time limit.
        provider_options: The options of the provider.
    """
    return _engine(client).incarnations(_request(database, Now(), provider_options), options)


def _request(
    database: ResourceAddress, start: AtTime | Now, options: ProviderOptions | None
) -> ChangeFeedRequest:
    return ChangeFeedRequest(database, start, EntireDatabase(), provider_options=options)


def _engine(client: MulticloudDbClient) -> Engine:
    backend = client._live("read_changes")
    assert isinstance(backend, Engine)
    return backend


@attrs.frozen(eq=False)
class Divided:
    """A page of a database, divided by collection."""

    page: ChangeFeedPage
    """The page, without its events."""
    events: Mapping[str, Sequence[ChangeEvent]]
    """The events of each collection that has some."""
    envelope: Envelope
    """What the token of the page contains."""
    state: Cursor
    """The state of a collection's token."""
    last: tuple[str, Cursor] | None
    """The collection of the last event of all, and the state of its token, if this is another one."""
    place: tuple[Cursor, ...]
    """The positions of all partitions."""


class Parts:
    """The collections of a database that share one reading.

    Args:
        found: The collections, and where the reading begins.

    Attributes:
        start: A token of the database, with which the reading begins.
        now: The service's time after that; None if it is not known.
    """

    def __init__(self, found: PartsFound) -> None:
        self.start, self.now = found.start, found.now
        self._feed, self._collections = found.feed, found.collections
        self._envelope = decode_token(found.start)
        self._place = _place(lineage_of(self._envelope))
        self._last: ChangeEvent | None = None

    def part(self, token: str) -> Part | None:
        """Return the part of a collection that goes on from its own token.

        Args:
            token: The token.

        Returns:
            None if that cannot be shared: it is of another collection, the collection was made again since
            then, or the reading begins after the token.
        """
        own, whole = decode_token(token), self._envelope
        name, place = own.address.collection, _place(lineage_of(own))
        same = (own.provider_id, own.address.database, own.scope, own.options_digest) == (
            whole.provider_id, whole.address.database, "collection", whole.options_digest
        )  # fmt: skip
        if not same or own.skipped or place is None or self._place is None:
            return None
        there = self._collections.get(name or "")
        if there is None or there.incarnation != own.incarnation:
            return None
        if not self._feed.reaches(place, self._place):
            return None
        return Part(self._feed, there, token, own, place)

    def divided(self, page: ChangeFeedPage) -> Divided | None:
        """Divide a page of the reading; None if collections have no such position.

        Args:
            page: The page.
        """
        envelope = decode_token(page.continuation_token)
        lineage = lineage_of(envelope)
        place = _place(lineage)
        if lineage is None or place is None or envelope.skipped:
            return None
        self._last = last = page.events[-1] if page.events else self._last
        try:
            state = self._narrowed(lineage, None)
            own = state if last is None else self._narrowed(lineage, last)
        except InvalidCursor:
            return None
        events = dict[str, list[ChangeEvent]]()
        for event in page.events:
            events.setdefault(event.address.collection or "", []).append(event)
        of_last = None if last is None or own == state else (last.address.collection or "", own)
        return Divided(attrs.evolve(page, events=()), events, envelope, state, of_last, place)

    def _narrowed(self, lineage: Lineage, last: ChangeEvent | None) -> Cursor:
        entries = [
            attrs.evolve(each, said=tuple(self._feed.narrowed(cursor, last) for cursor in each.said))
            for each in lineage
            if not isinstance(each, Plan)
        ]
        return Lineage(entries, lineage.rules, lineage.audited).to_json()


class Part:
    """The reading of one collection, as a part of that of its database.

    Attributes:
        token: The token of the collection after the last page.
        address: The collection.
        incarnation: Its incarnation.
    """

    def __init__(
        self,
        feed: SupportsParts,
        collection: CollectionPart,
        token: str,
        envelope: Envelope,
        place: tuple[Cursor, ...],
    ) -> None:
        self.token, self.address, self.incarnation = token, envelope.address, envelope.incarnation
        self._feed, self._envelope, self._place = feed, envelope, place
        self._is_before, self._fits = feed.is_before(place), collection.fits
        self._is_reached = False

    def page(self, divided: Divided) -> ChangeFeedPage | None:
        """Return the part of a page, as a page of the collection's own feed.

        Its notices are left out.

        Args:
            divided: The next page of the database.

        Returns:
            None if it has an event of another collection that had this name. Read the collection alone then:
            its own feed says what is wrong.
        """
        events = divided.events.get(self.address.collection or "", ())
        if not self._is_reached:
            events = [event for event in events if not self._is_before(event)]
        if not all(map(self._fits, events)):
            return None
        if not self._is_reached:
            self._is_reached = self._feed.reaches(divided.place, self._place)
        own, resumed_from = self._envelope, None if self._envelope.fresh else self.token
        fresh = own.fresh and not events
        if self._is_reached:
            whole, state = divided.envelope, divided.state
            if divided.last is not None and divided.last[0] == self.address.collection:
                state = divided.last[1]
            own = attrs.evolve(
                own,
                state=state,
                issued_at=whole.issued_at,
                watermark=whole.watermark,
                read_until=whole.read_until,
                fresh=fresh,
            )
        elif fresh != own.fresh:
            own = attrs.evolve(own, fresh=fresh)
        if own is not self._envelope:
            self._envelope, self.token = own, encode_token(own)
        ids = {each: self._id(each) for each in {event.partition_id for event in events}}
        return attrs.evolve(
            divided.page,
            events=tuple(with_partition_ids(events, (ids[event.partition_id] for event in events))),
            continuation_token=self.token,
            notices=(),
            resumed_from=resumed_from,
        )

    def _id(self, partition_id: str) -> str:
        """Return the id that a partition has in the feed of the collection."""
        native, own = partition_id.split(":", 2)[2], self._envelope
        return encode_partition_id(own.provider_id, own.address, own.incarnation, native)


def _place(lineage: Lineage | None) -> tuple[Cursor, ...] | None:
    """Return the positions of all partitions; None if they are not those of changes alone."""
    if lineage is None or any(isinstance(each, Plan) or not each.listed for each in lineage):
        return None
    said = [each.said for each in lineage if not isinstance(each, Plan)]
    return tuple(cursor for each in said for cursor in each) if all(said) else None
