"""The hooks for an application's metrics."""

from __future__ import annotations

from multiclouddb_api.address import ResourceAddress
from multiclouddb_api.notice import Gap, PartitionFoundLate
from multiclouddb_api.page import ChangeFeedPage

__all__ = ["Observer"]


class Observer:
    """Its methods are called for events inside a client; every method does nothing until it is overridden.

    Each method is called in the thread that does the work, so several calls may run at once: make the methods
    short and thread-safe. An exception from a method is logged and not raised.
    """

    def page(self, address: ResourceAddress, page: ChangeFeedPage) -> None:
        """A page is about to be returned.

        Args:
            address: The collection that is read.
            page: The page.
        """

    def retry(
        self, address: ResourceAddress, partition_id: str, attempt: int, wait_seconds: float, reason: str
    ) -> None:
        """A call to the service failed and is retried after `wait_seconds`.

        Args:
            address: The collection that is read.
            partition_id: The partition's public id.
            attempt: The number of the failed attempt; the first is 1.
            wait_seconds: The wait before the next attempt.
            reason: The failure; one line.
        """

    def reader_opened(self, address: ResourceAddress, partition_id: str) -> None:
        """A reader of one partition was opened.

        Args:
            address: The collection that is read.
            partition_id: The partition's public id.
        """

    def reader_closed(self, address: ResourceAddress, partition_id: str) -> None:
        """A reader of one partition was closed.

        Args:
            address: The collection that is read.
            partition_id: The partition's public id.
        """

    def partition_retired(
        self, address: ResourceAddress, partition_id: str, children: tuple[str, ...]
    ) -> None:
        """A partition ended and was drained; its children are read next.

        Args:
            address: The collection that is read.
            partition_id: The partition's public id.
            children: Public ids of the children; empty when there are none.
        """

    def gap(self, address: ResourceAddress, gap: Gap) -> None:
        """Changes were lost because they were older than retention, and the read continued after them.

        Args:
            address: The collection that is read.
            gap: The lost range.
        """

    def partition_found_late(self, address: ResourceAddress, found: PartitionFoundLate) -> None:
        """An audit found a partition that the feed did not cover; the feed reads it from here on.

        Args:
            address: The collection that is read.
            found: The partition, and the position where reading it starts.
        """

    def snapshot_interleaved(self, address: ResourceAddress, seconds: float) -> None:
        """A scan with `SnapshotOrder.AUTO` takes long, so changes are read during the scan from now on.

        Args:
            address: The collection that is read.
            seconds: How long the service will still keep the oldest position of the changes.
        """

    def outage(self, address: ResourceAddress, seconds: float, reason: str) -> None:
        """A `ChangeFeedIterator` gets no page; called within 2 seconds, and then every 30 seconds.

        Args:
            address: The collection that is read.
            seconds: How long the service has not answered.
            reason: The last failure, or that the service has not answered yet; one line.
        """

    def outage_ended(self, address: ResourceAddress, seconds: float) -> None:
        """A `ChangeFeedIterator` gets pages again.

        Args:
            address: The collection that is read.
            seconds: How long the outage was.
        """

    def retention_headroom_low(self, address: ResourceAddress, partition_id: str, seconds: float) -> None:
        """A position will expire sooner than the configured limit; called at most once a minute for a feed.

        Args:
            address: The collection that is read.
            partition_id: The public id of the partition whose position expires first.
            seconds: How long the service will still keep the position.
        """
