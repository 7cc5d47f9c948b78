"""The application that writes the data: it creates, updates and deletes flights; `python -m demo.writer`.

Half of the flights exist before the mirror starts. The embedded store has already removed the changes that
created these flights. While the application writes the other half of the flights, partitions split and merge.
It writes its last changes one by one, and ends when the table has been compared beside it.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Final

from demo.flights import KEY, Flight, load_flights
from demo.places import COLLECTION, Places, append_line
from demo.table import look
from multiclouddb_embedded import Delete, EmbeddedStore, Operation, Put

__all__ = ["write"]

_BATCH: Final = 1000
_POLL_SECONDS: Final = 0.05
_BEHIND: Final = 4
"""The number of batches between the scheduling of a flight and its departure."""
_SECONDS: Final = 120
"""The time over which the changes are spread, as a live application does. `FAST=1` writes them at once."""


def write(places: Places, rows: int) -> None:
    """Write the first half of the flights in their final state, then the changes of the other half."""
    flights = load_flights(rows)
    with EmbeddedStore(places.store) as store:
        store.create_collection(COLLECTION, partitions=4, partition_key=KEY[:2])
        total, reshapes = 0, _reshapes(store)
        for past in _past(islice(flights, rows // 2)):
            store.batch(COLLECTION, past)
            total += len(past)
        # The store forgets these changes, so only a scan can find their documents.
        store.trim(COLLECTION, max_count=0)
        append_line(places.written, at=time.time(), writes=total)
        # The mirror must start first, or these writes would become rows of its copy instead of changes.
        while total and not look(places.table).rows:
            time.sleep(_POLL_SECONDS)
        began, existed, changes = time.monotonic(), total, 2 * (rows - rows // 2)

        def put(operations: list[Operation]) -> None:
            nonlocal total
            if operations:
                at = time.time()  # no change is older than this, so none seems to be missing that is there
                store.batch(COLLECTION, operations)
                total += len(operations)
                append_line(places.written, at=at, writes=total)

        batches = _batches(flights)
        last = next(batches)
        for number, batch in enumerate(batches):
            operations, last = last, batch
            if not os.environ.get("FAST"):
                due = began + _SECONDS * (total - existed) / changes
                time.sleep(max(0.0, due - time.monotonic()))
            put(operations)
            if number % max(1, rows // (_BATCH * 6)) == 0:
                next(reshapes)
        while not places.proved.exists():
            put(last[:1])
            last = last[1:]
            time.sleep(_POLL_SECONDS)
        put(last)
    append_line(places.written, at=time.time(), writes=total)


def _reshapes(store: EmbeddedStore) -> Iterator[object]:
    """Split and merge partitions alternately; each call of `next` makes one step."""
    while True:
        first = store.partitions(COLLECTION)[0].partition_id
        yield store.split(COLLECTION, first)
        one, other = (each.partition_id for each in store.partitions(COLLECTION)[:2])
        yield store.merge(COLLECTION, one, other)


def _past(flights: Iterator[Flight]) -> Iterator[list[Operation]]:
    """Yield batches of past flights."""
    while past := list(islice(flights, _BATCH)):
        yield [Put(flight.key, flight.actual) for flight in past if flight.actual is not None]


def _batches(flights: Iterator[Flight]) -> Iterator[list[Operation]]:
    """Yield batches of creates, and between them the updates and deletes of earlier flights."""
    waiting: deque[list[Flight]] = deque()
    while scheduled := list(islice(flights, _BATCH)):
        yield [Put(flight.key, flight.scheduled) for flight in scheduled]
        waiting.append(scheduled)
        if len(waiting) > _BEHIND:
            yield [_outcome(flight) for flight in waiting.popleft()]
    for scheduled in waiting:
        yield [_outcome(flight) for flight in scheduled]


def _outcome(flight: Flight) -> Operation:
    return Delete(flight.key) if flight.actual is None else Put(flight.key, flight.actual)


if __name__ == "__main__":
    write(Places(sys.argv[1]), int(sys.argv[2]))
