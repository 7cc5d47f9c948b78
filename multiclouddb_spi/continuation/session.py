"""The state of one call, and the tokens made from it."""

from __future__ import annotations

import attrs

from multiclouddb_api import PhysicalPartition
from multiclouddb_spi.batch import Child
from multiclouddb_spi.continuation.entry import Active, Entry
from multiclouddb_spi.continuation.lineage import Lineage
from multiclouddb_spi.continuation.state import FeedOver, FeedState
from multiclouddb_spi.continuation.token import Envelope, encode_token, scope_text
from multiclouddb_spi.contract import Feed
from multiclouddb_spi.cursor import Cursor

__all__ = ["Finished", "Session"]


@attrs.frozen
class Finished:
    """The content of a token after which nothing will ever follow; the engine does not ask the service.

    Attributes:
        token: The request's token.
        over: The end of the feed, with its reason.
        skipped: Poison records that the token skips.
    """

    token: str
    over: FeedOver
    skipped: tuple[tuple[str, str], ...]


@attrs.frozen
class Session:
    """The state of one call.

    Attributes:
        feed: The opened feed.
        state: The lineage that the call changes, or how the feed ended.
        scope: The scope's text for tokens.
        digest: The digest of the options that change positions.
        watermark: The highest watermark reported so far, in µs since 1970, or None.
        skipped: Poison records that the request's token skips.
    """

    feed: Feed
    state: FeedState
    scope: str
    digest: str
    watermark: int | None = None
    skipped: tuple[tuple[str, str], ...] = ()

    def envelope(
        self,
        state: Cursor,
        *,
        scope: str | None = None,
        watermark: int | None = None,
        skipped: tuple[tuple[str, str], ...] = (),
    ) -> Envelope:
        """The content of a token for this feed; `encode_token` makes the token.

        Args:
            state: The state as JSON.
            scope: A scope other than the session's: that of a child or of a planned partition.
            watermark: The watermark to remember.
            skipped: The poison records that the token skips.
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
            skipped=skipped,
        )

    def alone(self, entry: Entry) -> Lineage:
        """A lineage of one partition.

        Args:
            entry: The partition.
        """
        return Lineage([entry], self.feed.join)

    def partition_token(self, partition_id: str, lineage: Lineage, *, with_descendants: bool = False) -> str:
        """A token for one physical partition of this feed; it keeps the skipped records of that partition.

        Args:
            partition_id: The service's own id, or a segment's.
            lineage: The lineage that is read.
            with_descendants: As in `PhysicalPartition`.
        """
        public_id = self.feed.public_id(partition_id)
        skipped = tuple(item for item in self.skipped if item[0] == public_id)
        scope = PhysicalPartition(public_id, with_descendants=with_descendants)
        scoped = scope_text(scope, partition_id)
        return encode_token(self.envelope(lineage.to_json(), scope=scoped, skipped=skipped))

    def child_token(self, child: Child) -> str:
        """A token for a child partition, at the start position that the parent gave."""
        return self.partition_token(child.partition_id, self.alone(Active(child.partition_id, child.cursor)))
