"""The Spanner provider compared with the library's own change stream query."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from benchmarks.processes import on_client_core
from benchmarks.row import Bench, Done, Section, Sides, row
from benchmarks.spanner import Backlog, backlog
from multiclouddb_api import ChangeFeedRequest, FromContinuationToken, connect

_EVENTS: Final = 20_000
_AT_ONCE: Final = 100
_READ: Final = (
    "from Google's emulator, with churn turned off. A row has nine columns, which are about 300 bytes "
    "of JSON. In both programs the client runs on one core and the emulator on another. Both sides "
    "connect, resume before the first change, and stop after the last change."
)
_EMULATOR: Final = (
    "Measured by hand: both sides wait for the emulator, which takes more than half of the wall time. The "
    "CPU time of our side is half of the loop's. Most of it is converting values from Spanner's types."
)
_LOOP: Final = (
    "A loop over the change stream query of google-cloud-spanner (`execute_sql` on `READ_…`), "
    "partition by partition. The loop makes a dict for each record, and a dict for each change in the "
    "record, but no event."
)


# -- The library by hand


def dict_loop(changes: Backlog) -> Done:
    """Read records as the library returns them, and make dicts."""
    end, count = changes.now(), 0
    for token in changes.partitions():
        for data, _, _ in changes.query(token, end=end):
            for fields in data:
                record = dict(zip(changes.fields, fields, strict=True))
                for keys, new, old in record["mods"]:
                    _ = {"keys": keys, "new_values": new, "old_values": old}
                    count += 1
    return Done(count)


def _by_hand(changes: Backlog) -> Done:
    with on_client_core():
        return _counted(changes, dict_loop(changes))


# -- Our side


def _through_the_client(changes: Backlog) -> Done:
    ids: set[str] = set()
    count, token = 0, changes.token
    with on_client_core(), connect(changes.config) as client:
        while count < changes.size:
            page = client.read_changes(ChangeFeedRequest(changes.address, FromContinuationToken(token)))
            ids.update(event.event_id for event in page.events)
            count += len(page.events)
            token = page.continuation_token
    return _counted(changes, Done(count, len(ids)))


def _counted(changes: Backlog, done: Done) -> Done:
    """Check that each change was delivered exactly once.

    Raises:
        ValueError: Raised if a change is missing or was delivered twice.
    """
    if done.count != changes.size or done.ids not in (0, changes.size):
        raise ValueError(f"read {done.count:,} changes, {done.ids} different, of {changes.size:,}")
    return Done(done.count)


# -- Rows


@row(
    "spanner-events",
    Section.RATES,
    title="Spanner, events, a hundred in a transaction",
    question="How many changes a second come from Spanner?",
    goal=1.5,
    about=f"The client reads 20,000 inserts {_READ}",
    against=_LOOP,
    same_work=False,
    reason=_EMULATOR,
)
def spanner_events(bench: Bench) -> Iterator[Sides]:
    """Measure the case in which one record contains many changes."""
    with backlog(bench.size(_EVENTS), _AT_ONCE) as changes:
        yield Sides(lambda: _through_the_client(changes), lambda: _by_hand(changes))
