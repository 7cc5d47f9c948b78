"""The hooks for an application's metrics."""

from __future__ import annotations

from multiclouddb_api.address import ResourceAddress
from multiclouddb_api.notice import Gap, PartitionFoundLate
from multiclouddb_api.page import ChangeFeedPage

__all__ = ["Observer"]


class Observer:
    """Gets calls about events inside a client; every method does nothing until it is overridden.

    Methods are called from the thread that does the work, several at once: make them short and
    thread-safe. An exception from a method is logged and not raised.
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
            attempt: Which attempt has failed; the first is 1.
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
        """Changes were lost to retention, and the read continued after them.

        Args:
            address: The collection that is read.
            gap: The lost range.
        """

    def partition_found_late(self, address: ResourceAddress, found: PartitionFoundLate) -> None:
        """An audit found a partition that the feed did not cover; it is read from here on.

        Args:
            address: The collection that is read.
            found: The partition, and where it is read from.
        """

    def snapshot_interleaved(self, address: ResourceAddress, seconds: float) -> None:
        """A scan with `SnapshotOrder.AUTO` takes long: changes are read beside it from now on.

        Args:
            address: The collection that is read.
            seconds: How long the oldest position of the changes is still kept.
        """

    def retention_headroom_low(self, address: ResourceAddress, partition_id: str, seconds: float) -> None:
        """A partition's position is kept for less than the configured limit; called once a minute for a feed.

        Args:
            address: The collection that is read.
            partition_id: The public id of the partition that is kept for the shortest time.
            seconds: How long the position is still kept.
        """
