"""Stores the state of one call, and makes tokens from this state."""

from __future__ import annotations

import attrs

from multiclouddb_api import PhysicalPartition
from multiclouddb_spi.batch import Child
from multiclouddb_spi.continuation.entry import AnyEntry, Entry
from multiclouddb_spi.continuation.lineage import Lineage
from multiclouddb_spi.continuation.state import FeedOver, FeedState
from multiclouddb_spi.continuation.times import ReadUntil
from multiclouddb_spi.continuation.token import Envelope, encode_token, scope_text
from multiclouddb_spi.contract import Feed
from multiclouddb_spi.cursor import Cursor

__all__ = ["Finished", "Session"]


@attrs.frozen
class Finished:
    """The content of a token after which no change can follow.

    If a request contains this kind of token, the engine answers without asking the service.

    Attributes:
        token: The request's token.
        over: Why the feed ended.
        skipped: Undecodable records that the token skips.
    """

    token: str
    over: FeedOver
    skipped: tuple[tuple[str, str], ...]


@attrs.frozen
class Session:
    """The state of one call.

    Attributes:
        feed: The opened feed.
        state: The lineage that the call changes, or the way in which the feed ended.
        scope: The scope in the form that tokens store.
        digest: The digest of the options that change positions.
        watermark: The highest watermark reported so far, in µs since 1970, or None.
        skipped: Undecodable records that the request's token skips.
        read_until: The moment before which every change has been returned, or None.
    """

    feed: Feed
    state: FeedState
    scope: str
    digest: str
    watermark: int | None = None
    skipped: tuple[tuple[str, str], ...] = ()
    read_until: ReadUntil | None = None

    def envelope(
        self,
        state: Cursor,
        *,
        scope: str | None = None,
        watermark: int | None = None,
        read_until: ReadUntil | None = None,
        skipped: tuple[tuple[str, str], ...] = (),
    ) -> Envelope:
        """Return the content of a token for this feed; `encode_token` converts it to the token.

        Args:
            state: The state of the feed as JSON.
            scope: A scope that differs from the session's: the scope of a child or of a planned partition.
            watermark: The watermark to store in the token.
            read_until: The moment to store in the token.
            skipped: The undecodable records that the token skips.
        """
        identity = self.feed.identity
        return Envelope(
            identity.provider_id,
            identity.address,
            identity.incarnation,
            scope or self.scope,
            self.digest,
            state,
            watermark=watermark,
            read_until=read_until,
            skipped=skipped,
        )

    def alone(self, entry: AnyEntry) -> Lineage:
        """Return a lineage that contains only one partition.

        Args:
            entry: The partition.
        """
        return Lineage([entry], self.feed)

    def partition_token(self, partition_id: str, lineage: Lineage, *, with_descendants: bool = False) -> str:
        """Make a token for one physical partition of this feed.

        The token contains the skipped records of that partition.

        Args:
            partition_id: The service's own id of the partition, or the id of a segment.
            lineage: The lineage that is being read.
            with_descendants: True to continue in the partition's descendants,
                `PhysicalPartition.with_descendants`.
        """
        public_id = self.feed.public_id(partition_id)
        skipped = tuple(item for item in self.skipped if item[0] == public_id)
        scope = PhysicalPartition(public_id, with_descendants=with_descendants)
        scoped = scope_text(scope, partition_id)
        return encode_token(self.envelope(lineage.to_json(), scope=scoped, skipped=skipped))

    def child_token(self, child: Child) -> str:
        """Make a token for a child partition, at the start position that the parent gave."""
        return self.partition_token(
            child.partition_id, self.alone(Entry.read(child.partition_id, child.cursor))
        )
