"""Defines the hooks that an application uses to collect metrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from multiclouddb_api.page import ChangeFeedPage, Gap, PartitionFoundLate
from multiclouddb_api.request import ResourceAddress


class Observer:
    """Receives what happens inside a client, for metrics: override the methods that you need.

    Keep them short and thread-safe, because each is called in the thread that does the work, and several
    calls may run at the same time. An exception does not end the read: its class and its place in your code
    are logged, but not its text, which may contain a key or a document.
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
        """Called after a request to the service has failed, before it is repeated.

        Args:
            address: The collection that is read.
            partition_id: The public id of the partition.
            attempt: The number of the failed attempt; the first attempt is 1.
            wait_seconds: How many seconds pass before the next attempt.
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
        """Called when changes are lost because the service no longer keeps them; the read goes on after them.

        Args:
            address: The collection that is read.
            gap: The lost range.
        """

    def partition_found_late(self, address: ResourceAddress, found: PartitionFoundLate) -> None:
        """Called after the service has listed a partition late; see `PartitionFoundLate`.

        Args:
            address: The collection that is read.
            found: The partition, and the position at which reading it starts.
        """

    def snapshot_interleaved(self, address: ResourceAddress, seconds: float) -> None:
        """Called when a long scan with `SnapshotOrder.AUTO` becomes `INTERLEAVED`: changes are now read too.

        Args:
            address: The collection that is read.
            seconds: In how many seconds the oldest position in the stream of changes expires.
        """

    def outage(self, address: ResourceAddress, seconds: float, reason: str) -> None:
        """Called within 2 seconds after a `ChangeFeedIterator` stops getting pages, then every 30 seconds.

        Args:
            address: The collection that is read.
            seconds: How long ago the outage began, in seconds.
            reason: The last failure on one line, or that the service has not answered yet.
        """

    def outage_ended(self, address: ResourceAddress, seconds: float) -> None:
        """Called when a `ChangeFeedIterator` gets pages again.

        Args:
            address: The collection that is read.
            seconds: How long the outage lasted, in seconds.
        """

    def retention_headroom_low(self, address: ResourceAddress, partition_id: str, seconds: float) -> None:
        """Called at most once a minute for each feed while a position is close to expiry.

        `ClientConfig.headroom_warning_seconds` decides what is close.

        Args:
            address: The collection that is read.
            partition_id: The public id of the partition whose position expires first.
            seconds: For how many seconds the service will still keep the position.
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
