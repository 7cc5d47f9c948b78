"""Defines the hooks that an application uses to collect metrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from multiclouddb_api.page import ChangeFeedPage, Gap, PartitionFoundLate
from multiclouddb_api.request import ResourceAddress


class Observer:
    """Receives notifications from inside a client; a method does nothing unless it is overridden.

    Each method is called in the thread that does the work, so several calls may run at the same time. Make
    them short and thread-safe. An exception is not raised. Its class and its place in your code are logged,
    but not its text, because this may contain a key or a document.
    """

    def page(self, address: ResourceAddress, page: ChangeFeedPage) -> None:
        """Called before a page is returned.

        Args:
            address: The collection that is read.
            page: The page.
        """

    def retry(
        self, address: ResourceAddress, partition_id: str, attempt: int, wait_seconds: float, reason: str
    ) -> None:
        """Called after a request to the service failed; it will be retried after `wait_seconds`.

        Args:
            address: The collection that is read.
            partition_id: The public id of the partition.
            attempt: The number of the failed attempt; the first attempt is 1.
            wait_seconds: The wait before the next attempt.
            reason: The failure, on one line.
        """

    def reader_opened(self, address: ResourceAddress, partition_id: str) -> None:
        """Called after a reader of one partition was opened.

        Args:
            address: The collection that is read.
            partition_id: The public id of the partition.
        """

    def reader_closed(self, address: ResourceAddress, partition_id: str) -> None:
        """Called after a reader of one partition was closed.

        Args:
            address: The collection that is read.
            partition_id: The public id of the partition.
        """

    def partition_retired(
        self, address: ResourceAddress, partition_id: str, children: tuple[str, ...]
    ) -> None:
        """Called after all changes of an ended partition were read; its children are read next.

        Args:
            address: The collection that is read.
            partition_id: The public id of the partition.
            children: The public ids of the children; empty if there are none.
        """

    def gap(self, address: ResourceAddress, gap: Gap) -> None:
        """Called when changes were lost because they were older than the retention.

        The read continues after the lost changes.

        Args:
            address: The collection that is read.
            gap: The lost range.
        """

    def partition_found_late(self, address: ResourceAddress, found: PartitionFoundLate) -> None:
        """Called after a partition was found that was listed late; the feed now reads or names it.

        Args:
            address: The collection that is read.
            found: The partition, and the position at which reading it starts.
        """

    def snapshot_interleaved(self, address: ResourceAddress, seconds: float) -> None:
        """Called when a long scan with `SnapshotOrder.AUTO` switches to `INTERLEAVED`.

        From now on, changes are read during the scan.

        Args:
            address: The collection that is read.
            seconds: The number of seconds until the oldest position in the stream of changes expires.
        """

    def outage(self, address: ResourceAddress, seconds: float, reason: str) -> None:
        """Called within 2 seconds after a `ChangeFeedIterator` stops getting pages, then every 30 seconds.

        Args:
            address: The collection that is read.
            seconds: The number of seconds since the outage began.
            reason: The last failure on one line, or a text that says that the service has not answered yet.
        """

    def outage_ended(self, address: ResourceAddress, seconds: float) -> None:
        """Called when a `ChangeFeedIterator` gets pages again.

        Args:
            address: The collection that is read.
            seconds: How long the outage lasted.
        """

    def retention_headroom_low(self, address: ResourceAddress, partition_id: str, seconds: float) -> None:
        """Called when a position will soon expire, at most once a minute per feed.

        Args:
            address: The collection that is read.
            partition_id: The public id of the partition whose position expires first.
            seconds: How long the service will still keep the position.
        """


def tell(logger: str, method: Callable[..., None], *arguments: Any) -> None:
    """Call a method of an observer; an exception of the application's code does not end a read.

    Args:
        logger: The name of the logger that an exception is reported to.
        method: The method.
        arguments: Its arguments.
    """
    try:
        method(*arguments)
    except Exception as error:  # noqa: BLE001 - it is logged
        # These modules are imported only here, because their import takes milliseconds.
        import logging
        import traceback

        logging.getLogger(logger).error(  # noqa: TRY400 - without the text
            "the observer's %s failed with %s:\n%s",
            method.__name__,
            type(error).__qualname__,
            "".join(traceback.format_tb(error.__traceback__)),
        )
