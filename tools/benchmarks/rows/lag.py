"""Measures how late a reader that is killed once gets each change; it runs beside the writer."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Final

import attrs

from benchmarks.follow import NOTES
from benchmarks.row import Bench, Done, Section, Sides, row
from multiclouddb_api import ResourceAddress

_RATE: Final = 20.0
_CHANGES: Final = 160
_START_SECONDS: Final = 300.0
_END_SECONDS: Final = 300.0
"""How long a change may be late before it counts as lost."""
_POLL_SECONDS: Final = 0.05
_BEFORE: Final = 3
"""How many changes have come before the reader is killed: the first, and two whose lag is known."""


# -- The databases


@attrs.frozen
class _Place:
    """A collection, and what writes into it.

    Attributes:
        url: The URL for `connect`.
        address: The collection.
        put: Commits the change with this number.
        environment: The credentials of the reader.
    """

    url: str
    address: ResourceAddress
    put: Callable[[int], object]
    environment: Mapping[str, str] = attrs.field(factory=dict, hash=False)


@contextmanager
def _embedded(folder: Path) -> Iterator[_Place]:
    from benchmarks.stores import ADDRESS, fill, small_document, url
    from multiclouddb_embedded import EmbeddedStore

    path = folder / "store.db"
    fill(path, 0)
    with EmbeddedStore(path) as store:
        collection = str(ADDRESS.collection)
        yield _Place(url(path), ADDRESS, lambda n: store.put(collection, f"key-{n}", small_document(n)))


@contextmanager
def _mongo(folder: Path) -> Iterator[_Place]:
    from benchmarks.mongo import ADDRESS, backlog, document

    with backlog(folder, 0) as changes, changes.client() as client:
        collection = client[ADDRESS.database][ADDRESS.collection]
        yield _Place(changes.url, ADDRESS, lambda n: collection.insert_one(document(n)))


@contextmanager
def _dynamo(folder: Path) -> Iterator[_Place]:
    from benchmarks.dynamo import ADDRESS, item, local

    del folder
    with local(0) as table:
        tables, session = table.tables(), table.server.session()
        key = session.get_credentials()
        variables = {"AWS_ACCESS_KEY_ID": key.access_key, "AWS_SECRET_ACCESS_KEY": key.secret_key}
        yield _Place(
            f"dynamo://{session.region_name}?endpoint_url={table.server.endpoint_url}",
            ADDRESS,
            lambda n: tables.put_item(TableName=ADDRESS.collection, Item=item(n)),
            variables,
        )


@contextmanager
def _cosmos(folder: Path) -> Iterator[_Place]:
    from benchmarks.cosmos_feed import ADDRESS, account

    del folder
    with account(1) as server:
        yield _Place(server.url, ADDRESS, lambda _: server.ask("fill", 1), {"AZURE_COSMOS_KEY": server.key})


@contextmanager
def _spanner(folder: Path) -> Iterator[_Place]:
    from benchmarks.spanner import backlog

    del folder
    with backlog(0, 1) as changes:
        yield _Place(changes.url, changes.address, lambda n: changes.write(n, 1))


_PLACES: Final[dict[str, Callable[[Path], AbstractContextManager[_Place]]]] = {
    "embedded store": _embedded,
    "MongoDB": _mongo,
    "DynamoDB Local": _dynamo,
    "Cosmos DB": _cosmos,
    "Spanner": _spanner,
}


# -- A run


class _Reader:
    """The process that follows the changes, and what it has noted."""

    def __init__(self, kind: str, place: _Place, folder: Path) -> None:
        address = place.address
        words = [kind, place.url, address.database or "", str(address.collection), str(folder)]
        self._command = [sys.executable, "-m", "benchmarks.follow", *words]
        self._environment = {**os.environ, **place.environment}
        self._notes, self._log = folder / NOTES, folder / "reader.log"
        self.start()

    def start(self) -> None:
        """Start the process."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, env=self._environment, stdout=log, stderr=log, start_new_session=True
            )

    def kill(self) -> None:
        """Kill the process with its children, and wait until it has ended."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def notes(self) -> list[dict[str, Any]]:
        """Return the lines that the process has noted."""
        text = self._notes.read_bytes() if self._notes.exists() else b""
        return [json.loads(line) for line in text.splitlines()]

    def numbers(self) -> set[int]:
        """Return the numbers of the changes that have come."""
        return {number for line in self.notes() for number in line["numbers"]}

    def wait(self, condition: Callable[[], bool], seconds: float) -> None:
        """Wait until a condition is true, or the time is over, while the process runs."""
        end = time.monotonic() + seconds
        while not condition() and time.monotonic() < end:
            if self._process.poll() is not None:
                said = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
                raise RuntimeError(f"the reader ended with {self._process.returncode}: {said[-1:]}")
            time.sleep(_POLL_SECONDS)


@attrs.frozen
class Lags:
    """How late the changes of a run came; all times are in milliseconds.

    Attributes:
        median: The lag that half of the changes did not exceed which did not wait for the restart.
        p99: The lag that 99 % of them did not exceed.
        restart: The time from the kill until the first new change came.
        again: How many changes came more than once.
    """

    median: float
    p99: float
    restart: float
    again: int


def measure(kind: str, place: _Place, changes: int, folder: Path) -> Lags:
    """Measure one reader of one database, which is killed after half of the changes.

    The change 0 is not measured: it shows that the reader runs.

    Raises:
        RuntimeError: Raised if the reader ends.
        ValueError: Raised if a change did not arrive.
    """
    folder.mkdir(exist_ok=True)
    reader = _Reader(kind, place, folder)
    committed: list[float] = []

    def put() -> None:
        place.put(len(committed))
        committed.append(time.time())

    try:
        reader.wait(lambda: bool(reader.notes()), _START_SECONDS)
        put()
        reader.wait(lambda: 0 in reader.numbers(), _START_SECONDS)
        began, killed_at = time.monotonic(), 0.0
        for number in range(1, changes + 1):
            time.sleep(max(0.0, began + number / _RATE - time.monotonic()))
            put()
            if number == changes // 2:
                reader.wait(lambda: len(reader.numbers()) >= _BEFORE, _START_SECONDS)
                killed_at = time.time()
                reader.kill()
                reader.start()
        reader.wait(lambda: len(reader.numbers()) > changes, _END_SECONDS)
    finally:
        reader.kill()
    return lags_of(committed, reader.notes(), killed_at)


def lags_of(committed: Sequence[float], notes: Sequence[Mapping[str, Any]], killed_at: float) -> Lags:
    """Compare the commits with the notes of the reader.

    A change that came more than once counts at its first arrival. The restart lasts from the kill until the
    first new change arrives. The changes that were committed before its end and came after its beginning have
    waited for it.

    Args:
        committed: When the database acknowledged each change; their numbers are 0, 1, 2 …
        notes: For each call of the handler, the `numbers` of its changes, and when it had them (`at`).
        killed_at: When the reader was killed.

    Raises:
        ValueError: Raised if a change did not arrive, or one arrived that nobody committed, or if all
            changes have waited for the restart.
    """
    arrived: dict[int, float] = {}
    again: set[int] = set()
    for line in notes:
        for number in line["numbers"]:
            if number in arrived:
                again.add(number)
            else:
                arrived[number] = line["at"]
    if lost := set(range(len(committed))) - arrived.keys():
        raise ValueError(f"{len(lost)} of {len(committed)} changes did not arrive, such as {min(lost)}")
    if invented := arrived.keys() - set(range(len(committed))):
        raise ValueError(f"{len(invented)} changes arrived that nobody committed, such as {min(invented)}")
    back_at = min((at for at in arrived.values() if at > killed_at), default=killed_at)
    # The handler may have a change before the writer knows that it is committed.
    lags = [
        1000 * max(0.0, arrived[number] - at)
        for number, at in enumerate(committed)
        if number and not (at < back_at and arrived[number] > killed_at)
    ]
    if len(lags) < 2:
        raise ValueError("all changes have waited for the restart")
    return Lags(median(lags), quantiles(lags, n=100)[-1], 1000 * (back_at - killed_at), len(again))


def _notes(name: str, lags: Lags) -> dict[str, float]:
    return {
        f"{name}, median ms": lags.median,
        f"{name}, 99 % ms": lags.p99,
        f"{name}, restart ms": lags.restart,
        f"{name}, changes that came twice": lags.again,
    }


# -- Rows

_ABOUT: Final = (
    "20 changes a second are committed. The figure is the median time from the acknowledgement of a commit "
    "until the handler has the change. In the middle, the reader is killed with SIGKILL and started again "
    "at once; the changes that waited for it do not count, but the further figures have the time of the "
    "restart. Every change has to arrive. All settings are the defaults."
)


@row(
    "lag-worker",
    Section.LAGS,
    title="A worker with a checkpoint, on each database",
    question="How long until a change is in my program?",
    unit="ms",
    goal=1000,
    at_most=True,
    pairs=1,
    warm_up=False,
    about=f"{_ABOUT} The reader is `iterate_changes` with a checkpoint in a file. The latest of the five"
    " databases counts.",
    against="",
)
def lag_worker(bench: Bench) -> Iterator[Sides]:
    """This row measures what a handler of single changes waits for."""
    changes = bench.size(_CHANGES, 20)

    def ours() -> Done:
        medians, notes = [], dict[str, float]()
        for number, (name, place) in enumerate(_PLACES.items()):
            folder = bench.folder / str(number)
            folder.mkdir()
            with place(folder) as server:
                lags = measure("worker", server, changes, folder / "reader")
            medians.append(lags.median)
            notes |= _notes(name, lags)
        return Done(changes, value=max(medians), notes=notes)

    yield Sides(ours)


@row(
    "lag-spark",
    Section.LAGS,
    title="A stream of Spark over MongoDB",
    question="How long until a change is in foreachBatch?",
    unit="ms",
    goal=1000,
    at_most=True,
    pairs=1,
    warm_up=False,
    about=f"{_ABOUT} The reader is a stream of Spark with `foreachBatch` over MongoDB.",
    against="",
)
def lag_spark(bench: Bench) -> Iterator[Sides]:
    """This row measures what micro-batches wait for."""
    changes = bench.size(4 * _CHANGES, 60)

    def ours() -> Done:
        with _mongo(bench.folder / "server") as server:
            lags = measure("spark", server, changes, bench.folder / "reader")
        return Done(changes, value=lags.median, notes=_notes("MongoDB", lags))

    yield Sides(ours)
