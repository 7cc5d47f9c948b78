"""Plans micro-batches as Spark's driver does, without Spark, and reads the same changes in pages."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

import attrs

from multiclouddb_api import ChangeFeedRequest, FromContinuationToken, MulticloudDbClient, Now, connect
from multiclouddb_api.request import ResourceAddress

if TYPE_CHECKING:
    from pyspark.sql.datasource import InputPartition

    from multiclouddb_spi import Range

__all__ = ["Driver", "Pages", "Planned"]

_SECONDS: Final = 600.0
_THREADS: Final = 32


@attrs.frozen
class Planned:
    """What the driver has planned.

    Attributes:
        seconds: The time of planning.
        counted: How much the server's count has grown while the driver planned.
        tasks: The tasks of the micro-batches.
    """

    seconds: float
    counted: int
    tasks: list[InputPartition]


class Driver:
    """The driver of one query, which follows a feed from now on.

    Args:
        options: The options of the source.
        count: Returns a count of the server, for example of the calls that it has received.
        limit: The limit on the rows of a micro-batch; None for no limit.
    """

    def __init__(
        self, options: Mapping[str, str], count: Callable[[], int], limit: int | None = None
    ) -> None:
        from pyspark_multiclouddb.options import parse_options

        together = {"startingPosition": "now", "pollInterval": "0 seconds", **options}
        self._settings = parse_options(together).for_stream()
        self._count, self._limit = count, limit
        self.restart()
        self._offset = self._batches.after(self._batches.initial(), None)

    def restart(self, *, ends_by_itself: bool = False) -> None:
        """Continue as a new run of the query in the same process does, perhaps one that ends by itself."""
        from pyspark_multiclouddb.micro_batches import MicroBatches

        self._batches = MicroBatches(self._settings)
        self._batches.ends_by_itself = ends_by_itself

    def plan(self, records: int) -> Planned:
        """Plan until the micro-batches contain this many records.

        The ranges are read too, to count the records, but that does not count.

        Raises:
            ValueError: Raised if there are more or fewer records.
        """
        seconds, counted, found, tasks = 0.0, 0, 0, list[Any]()
        while found < records and seconds < _SECONDS:
            before, began = self._count(), time.perf_counter()
            end = self._batches.after(self._offset, self._limit)
            made = [] if end is self._offset else self._batches.tasks(self._offset, end)
            seconds += time.perf_counter() - began
            counted += self._count() - before
            self._offset = end
            found += self.read([part for task in made for part in task.value.ranges])
            tasks += made
        if found != records:
            raise ValueError(f"planned {found:,} of {records:,} records")
        return Planned(seconds, counted, tasks)

    def plan_only(self, records: int) -> int:
        """Plan until the micro-batches have this many records by the driver's own count; return the count."""
        found, soon = 0, time.perf_counter() + _SECONDS
        while found < records and time.perf_counter() < soon:
            end = self._batches.after(self._offset, self._limit)
            if end is not self._offset:
                self._offset = end
                found += (self._batches.report or {}).get("events") or 0
        return found

    def read(self, ranges: Sequence[Range]) -> int:
        """Return the number of records in ranges, which are read from the service at once."""
        from multiclouddb_spi import read_range
        from pyspark_multiclouddb.connection import connection_for

        connection = connection_for(self._settings)
        feed = connection.feed

        def count(part: Range) -> int:
            return sum(len(batch) for batch in read_range(connection.provider, feed, part))

        with ThreadPoolExecutor(_THREADS) as pool:
            return sum(pool.map(count, ranges))

    def rows(self, tasks: Sequence[InputPartition]) -> int:
        """Return the number of rows that the tasks deliver to Spark."""
        from pyspark_multiclouddb.rows import read_work

        return sum(rows.num_rows for task in tasks for rows in read_work(self._settings, task))


class Pages:
    """Reads the changes of a feed from now on, in pages of a client.

    Args:
        client: The client.
        address: The collection.
    """

    def __init__(self, client: MulticloudDbClient, address: ResourceAddress) -> None:
        self._client, self._address = client, address
        self.token = client.read_changes(ChangeFeedRequest(address, Now())).continuation_token

    @classmethod
    def as_configured(cls, options: Mapping[str, str], address: ResourceAddress) -> Pages:
        """Connect with the configuration that a query with these options has."""
        from pyspark_multiclouddb.options import parse_options

        return cls(connect(parse_options(options).config), address)

    def read(self, records: int, *, until_idle: bool = False) -> float:
        """Return the seconds until the pages had this many events.

        Args:
            records: The number of events.
            until_idle: True to also wait for the page that says that there is nothing more.

        Raises:
            ValueError: Raised if there are more or fewer events.
        """
        began, found, idle = time.perf_counter(), 0, not until_idle
        while not (found >= records and idle) and time.perf_counter() - began < _SECONDS:
            request = ChangeFeedRequest(self._address, FromContinuationToken(self.token))
            page = self._client.read_changes(request)
            self.token, found = page.continuation_token, found + len(page.events)
            idle = page.idle or not until_idle
        if found != records:
            raise ValueError(f"the pages had {found:,} of {records:,} events")
        return time.perf_counter() - began

    def reconnect(self) -> None:
        """Continue with a new client, which has no readers yet."""
        config = self._client.config
        self._client.close()
        self._client = connect(config)

    def close(self) -> None:
        """Close the client."""
        self._client.close()
