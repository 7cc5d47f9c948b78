"""The MongoDB provider compared with hand-written PyMongo code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Final

from benchmarks.arrow import AS_A_TASK, plan_ranges, read_arrow
from benchmarks.mongo import ADDRESS, Backlog, backlog
from benchmarks.processes import on_client_core
from benchmarks.row import Bench, Done, Section, Sides, row
from multiclouddb_api import ChangeFeedRequest, ChangeType, FromContinuationToken, connect

_EVENTS: Final = 40_000
# The best batch size for the empty loop. The measured rates in thousands of changes per second are 74 by
# default (the first batch has 101 changes), 83 with batches of 100, 91 with 250, 94 with 500, 92 with 1000,
# 88 with 2000, 72 with 5000. For the loop that makes dicts, the best size is the same.
BATCH_SIZE: Final = 500
_READ: Final = (
    "40,000 inserts of 300 bytes, from the change stream of one mongod. In both programs the client runs on "
    "one core and the server on another. Both sides connect, resume from a position before the first "
    "insert, and stop after the last insert."
)
_EMPTY: Final = (
    "PyMongo's `for change in collection.watch()` with an empty loop body, in batches of 500, which"
    " is the fastest size. The loop decodes each change to a dict and drops it."
)


# -- PyMongo by hand

_TYPES: Final = {"insert": ChangeType.CREATE, "update": ChangeType.UPDATE, "delete": ChangeType.DELETE}


def empty_loop(client: Any, resume_token: Any, size: int) -> Done:
    """Count changes as PyMongo returns them."""
    collection = client[ADDRESS.database][ADDRESS.collection]
    with collection.watch(start_after=resume_token, batch_size=BATCH_SIZE) as stream:
        for _ in islice(stream, size):
            pass
    return Done(size)


def dict_loop(client: Any, resume_token: Any, size: int) -> Done:
    """Read each change into a dict with the fields of an event."""
    collection = client[ADDRESS.database][ADDRESS.collection]
    ids: list[str] = []
    with collection.watch(start_after=resume_token, batch_size=BATCH_SIZE) as stream:
        for change in islice(stream, size):
            event = {
                "event_id": change["_id"]["_data"],
                "key": change["documentKey"],
                "type": _TYPES[change["operationType"]],
                "timestamp": change["wallTime"],
                "new_item_state": change.get("fullDocument"),
                "old_item_state": change.get("fullDocumentBeforeChange"),
                "order_key": change["_id"]["_data"],
                "by_expiry": None,
                "backfilled": False,
                "address": (change["ns"]["db"], change["ns"]["coll"]),
                "partition_id": "0",
            }
            ids.append(event["event_id"])
    return Done(len(ids), ids)


def _by_hand(changes: Backlog, loop: Callable[[Any, Any, int], Done], size: int) -> Done:
    with on_client_core(), changes.client() as client:
        return loop(client, changes.resume_token, size)


# -- Our side


def _through_the_client(changes: Backlog) -> Done:
    ids: list[str] = []
    token = changes.token
    with on_client_core(), connect(changes.config) as client:
        while len(ids) < changes.size:
            page = client.read_changes(ChangeFeedRequest(ADDRESS, FromContinuationToken(token)))
            ids += [event.event_id for event in page.events]
            token = page.continuation_token
    return Done(len(ids), ids)


def _counted(changes: Backlog, done: Done) -> Done:
    """Check the events of our side here, because the other side's loop keeps no ids to compare.

    Raises:
        ValueError: Raised if the library's side has missed a change or has read one twice.
    """
    assert not isinstance(done.ids, int)
    if (different := len(set(done.ids))) != changes.size or done.count != changes.size:
        raise ValueError(f"read {done.count:,} events, {different:,} different, of {changes.size:,}")
    return Done(done.count)


def _through_arrow(changes: Backlog) -> Callable[[], Done]:
    parts = plan_ranges(changes.config, ADDRESS, changes.size, changes.token)

    def run() -> Done:
        with on_client_core():
            return read_arrow(changes.config, ADDRESS, parts)

    return run


# -- Rows


@row(
    "mongo-events",
    Section.RATES,
    title="MongoDB, events",
    question="How many changes a second come from MongoDB?",
    goal=1.25,
    about=f"The client reads {_READ}",
    against=(
        "PyMongo's `for change in collection.watch()`, in batches of 500, which is the fastest "
        "size. The loop makes a dict with the fields of an event. The baseline's client decodes "
        "times as aware datetimes, as our client does."
    ),
)
def mongo_events(bench: Bench) -> Iterator[Sides]:
    """In this row, both sides make the same fields from each change."""
    with backlog(bench.folder, bench.size(_EVENTS)) as changes:
        yield Sides(
            lambda: _through_the_client(changes),
            lambda: _by_hand(changes, dict_loop, changes.size),
        )


@row(
    "mongo-arrow",
    Section.RATES,
    title="MongoDB, Arrow",
    question="How many changes a second come as Arrow?",
    goal=1.1,
    about=f"{AS_A_TASK}, with documents as JSON text: {_READ}",
    against=_EMPTY,
    same_work=False,
)
def mongo_arrow(bench: Bench) -> Iterator[Sides]:
    """This row reads events in the form that Spark needs."""
    with backlog(bench.folder, bench.size(_EVENTS)) as changes:
        ours = _through_arrow(changes)
        yield Sides(
            lambda: _counted(changes, ours()),
            lambda: _by_hand(changes, empty_loop, changes.size),
        )
