"""Defines what a query's checkpoint stores, and finds out from it which snapshot the query reads.

Spark writes `offsets/N`, the end of micro-batch N, before it runs the batch, and `commits/N` after it.

An offset is always canonical JSON (sorted keys), because Spark treats any difference in the text as
new data. Offsets have two forms:

    {"from": "beginning", "src": "3b1f…", "v": 1}
    {"c": {"p": [["p0", 17], …], …}, "e": {"p3": 9}, "empty": true, "inc": "…", "src": "3b1f…", "v": 1}

- `from`: the start of a new query, unresolved: Spark asks for it several times and does not store it.
- `c`: the lineage, encoded as in a continuation token.
- `e`: the end position of each partition that the step to this offset has read completely, so that a second
  read of the step gives the same result.
- `empty`: only the positions of an idle feed have moved. The step reads nothing, so it can be replayed even
  if the service has already deleted its part of the log.
- `o`, on Spark 4.0 and 4.1: the lineage of the resolved start, if the first micro-batch already has rows.
  From 4.2 on, the first micro-batch has no rows, and its end contains the resolved start as `c`.
- `more`, unless Spark repeats steps until the query has caught up: it is not known that no records follow the
  step (see `caught_up`).
- `poison`, with `onPoison=skip`: the changes that the step leaves out because they cannot be decoded: their
  number (`count`), and partition and position of the first ones (`first`). A repeated step leaves out the
  same changes, even if `onPoison` has been changed to `fail`.
- `feed`, for the sink: the provider, the database and the collection of the feed, because a batch without
  rows does not name them.
- `fresh`, for the sink: no step up to this offset has delivered a row, so that a table may still have to be
  made.
- `gone`: what the notices at the end of the step say, if other rows exist after them: the collection was
  dropped or renamed. A DataFrame carries no notices, so the sink reads them here, and refuses the batch. The
  query fails when it plans the next step.
- `warning`: a target may stay wrong, and how to repair it; in the first offset of a query that does not begin
  with a snapshot, and with `lost` in every offset after `failOnDataLoss=false` has skipped lost changes.
- `lost`: how often changes were skipped up to this offset.
- `s`, for the sink, after a snapshot has begun: the id of the plan (`plan`), the floor (`floor`), whether the
  scan is over (`over`), `whole` if the scan reads every existing row, and `continued` if the query has begun
  with a token in the middle of the scan.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import urlsplit
from urllib.request import url2pathname

import attrs
import pyarrow as pa

from multiclouddb_api import (
    ChangeFeedPage,
    ErrorReason,
    FromContinuationToken,
    MulticloudDbError,
    ResourceAddress,
    Snapshot,
    invalid_request,
)
from multiclouddb_spi import Cursor, FeedStart, InvalidCursor, Range, ranges_between
from multiclouddb_spi.continuation.lineage import INSPECTED, Lineage, Rules
from multiclouddb_spi.open_feed import OpenFeed
from multiclouddb_spi.partition import may_be_same
from multiclouddb_spi.planning.offset_log import LoggedEnd, logged_end
from multiclouddb_tables.batch import MergedSnapshot, Told, rows_stay
from multiclouddb_tables.mark import FeedSource
from pyspark_multiclouddb.errors import NEW_QUERY
from pyspark_multiclouddb.options import Settings, position_from_text, position_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_VERSION: Final = 1
_PLACES: Final = 20
_PATTERN: Final = re.compile(r"[{}\[\]*?\\]")
_NEW_CHECKPOINT: Final = "use a checkpointLocation of its own"


@attrs.frozen
class Symbolic:
    """The start of a new query, which is not resolved yet."""

    position: FeedStart | Snapshot | FromContinuationToken


@attrs.frozen
class Pinned:
    """The positions of all partitions at an offset; the fields are those of the stored form, see above."""

    incarnation: str | None
    cursors: Cursor
    ends: Mapping[str, Cursor] = attrs.field(factory=dict)
    empty: bool = False
    origin: Cursor | None = None
    more: bool = False
    snapshot: Mapping[str, Any] | None = None
    poison: Mapping[str, Any] | None = None
    warning: str | None = None
    lost: int = 0
    feed: FeedSource | None = None
    fresh: bool = False
    gone: tuple[str, ...] = ()
    _built: list[Lineage] = attrs.field(factory=list, init=False, eq=False, repr=False)

    def lineage(self, rules: Rules = INSPECTED) -> Lineage:
        """Return the lineage of the positions, which is built once; do not change it."""
        if not self._built or (rules is not INSPECTED and self._built[0].rules is not rules):
            self._built[:] = [_lineage(self.cursors, rules)]
        return self._built[0]

    def check_incarnation(self, opened: OpenFeed) -> None:
        """Refuse an offset of a resource that was deleted and created again."""
        way_out = f"the changes of the old resource are gone; {NEW_QUERY}"
        opened.check_resumes(self.incarnation, "checkpoint", way_out)


Offset: TypeAlias = Symbolic | Pinned


def offset_to_json(settings: Settings, offset: Offset) -> dict[str, Any]:
    """Return an offset in the form that Spark stores."""
    value: dict[str, Any] = {"v": _VERSION, "src": settings.source}
    match offset:
        case Symbolic(position):
            value["from"] = position_text(position)
        case Pinned(
            incarnation,
            cursors,
            ends,
            empty,
            origin,
            more,
            snapshot,
            poison,
            warning,
            lost,
            feed,
            fresh,
            gone,
        ):
            value |= {"inc": incarnation, "c": cursors}
            optional = {"e": dict(ends), "empty": empty, "o": origin, "more": more, "s": snapshot}
            optional |= {"fresh": fresh, "gone": list(gone)}
            optional |= {"modes": settings.modes, "poison": poison, "warning": warning, "lost": lost}
            if feed is not None:
                optional["feed"] = [feed.provider, feed.address.database, feed.address.collection]
            value |= {name: each for name, each in optional.items() if each}
    canonical: dict[str, Any] = json.loads(json.dumps(value, sort_keys=True))
    return canonical


def offset_from_json(settings: Settings, value: Any) -> Offset:
    """Return the offset from its stored form; the inverse of `offset_to_json`."""
    match value:
        case {"v": int(version)} if version > _VERSION:
            raise invalid_request(
                "checkpoint",
                f"was written by a later version of this source (form {version})",
                "update multiclouddb-spark, or " + _NEW_CHECKPOINT,
                ErrorReason.UNKNOWN_VERSION,
            )
        case {"v": 1, "src": str(source)} if source != settings.source:
            raise invalid_request(
                "checkpoint",
                f"is of another source than {settings.config.provider} {settings.address}",
                f"set provider, database and collection as they were, or {_NEW_CHECKPOINT}",
                ErrorReason.WRONG_RESOURCE,
            )
        case {"v": 1, "c": _} if value.get("modes", {}) != settings.modes:
            raise invalid_request(
                "checkpoint",
                f"was written with {_modes_text(value.get('modes'))}, but the query has "
                f"{_modes_text(settings.modes)}",
                f"set newItemState and oldItemState as they were, or {_NEW_CHECKPOINT}",
                ErrorReason.WRONG_OPTIONS,
            )
        case {"v": 1, "src": str(), "from": str(text)}:
            if isinstance(settings.start, FromContinuationToken) and text == position_text(settings.start):
                return Symbolic(settings.start)
            return Symbolic(position_from_text(text))
        case {"v": 1, "src": str(), "inc": str() | None as incarnation, "c": dict(cursors)} if (
            isinstance(value.get("e", {}), dict)
            and isinstance(value.get("o"), dict | None)
            and _is_snapshot(value.get("s"))
            and isinstance(value.get("poison"), dict | None)
            and isinstance(value.get("warning"), str | None)
            and isinstance(value.get("lost", 0), int)
            and _is_feed(value.get("feed"))
            and isinstance(value.get("gone", []), list)
        ):
            return Pinned(
                incarnation,
                cursors,
                value.get("e", {}),
                value.get("empty") is True,
                value.get("o"),
                value.get("more") is True,
                value.get("s"),
                value.get("poison"),
                value.get("warning"),
                value.get("lost", 0),
                _feed_of(value),
                value.get("fresh") is True,
                tuple(map(str, value.get("gone", []))),
            )
        case _:
            raise _damaged("holds an offset that is not of this source")


def poison_state(left_out: Sequence[tuple[str, str]]) -> Mapping[str, Any] | None:
    """Return what an offset stores about the changes that its step leaves out."""
    first = [list(place) for place in left_out[:_PLACES]]
    return {"count": len(left_out), "first": first} if left_out else None


def ranges_of(start: Offset, end: Offset, rules: Rules = INSPECTED) -> list[Range]:
    """Return the ranges between two offsets of one query."""
    match start, end:
        case Symbolic(), Pinned(origin=origin) if origin is not None:
            return ranges_between(_lineage(origin, rules), end.lineage(rules), end.ends)
        case Symbolic(), _:
            return []
        case Pinned(), Pinned():
            if not may_be_same(start.incarnation, end.incarnation):
                raise _damaged("contains positions of two incarnations of the resource")
            return [] if end.empty else ranges_between(start.lineage(rules), end.lineage(rules), end.ends)
        case _:
            raise _damaged("contains a range that ends before its start")


def _is_snapshot(value: Any) -> bool:
    """Return whether a value is None or has the form that `snapshot_state` returns."""
    match value:
        case None | {"plan": str(), "floor": str(), "over": bool()}:
            return True
        case _:
            return False


def _is_feed(value: Any) -> bool:
    match value:
        case None | [str(), str() | None, str() | None]:
            return True
        case _:
            return False


def _feed_of(offset: Mapping[str, Any]) -> FeedSource | None:
    """Return the feed that an offset names, if it does."""
    if not isinstance(feed := offset.get("feed"), list) or not _is_feed(feed):
        return None
    provider, database, collection = feed
    return FeedSource.made(provider, ResourceAddress(database, collection), offset.get("inc"))


def _lineage(cursors: Cursor, rules: Rules) -> Lineage:
    try:
        return Lineage.from_json(cursors, rules)
    except InvalidCursor as error:
        raise _damaged(f"holds a damaged offset ({error})") from None


def _modes_text(modes: Any) -> str:
    if not modes or not isinstance(modes, dict):
        return "the default newItemState and oldItemState"
    return " and ".join(f"{name}={value}" for name, value in sorted(modes.items()))


def _damaged(problem: str) -> MulticloudDbError:
    return invalid_request("checkpoint", problem, _NEW_CHECKPOINT)


_THIS_QUERY: Final = "pass the checkpointLocation of the query that calls this function"
_OWN: Final = "use a separate query with one source for the snapshot"


class Checkpoint:
    """Reads the checkpoint of a query."""

    def __init__(self, where: str, spark: SparkSession | None = None) -> None:
        self._where, self._spark = where.rstrip("/"), spark
        self._ends: dict[int, LoggedEnd] = {}
        url = urlsplit(where)
        path = url2pathname(url.path) if url.scheme == "file" else where
        self._folder = path if os.path.isdir(os.path.join(path, "offsets")) else None

    def query(self, running: str | None) -> str | None:
        """Return the id of the query to which the checkpoint belongs; None if the checkpoint has no id."""
        stored = json.loads(self._read("metadata") or "{}").get("id")
        if running is not None and stored is None:
            raise self._wrong(f"has no id of a query, so it is no checkpoint yet; this query is {running}")
        if running is not None and stored != running:
            raise self._wrong(f"belongs to the query {stored}, but this query is {running}")
        return stored if isinstance(stored, str) else None

    def scan(self, batch_id: int) -> MergedSnapshot | None:
        """Return the snapshot of a batch, or None if the query did not start with a snapshot."""
        after = self._snapshot(batch_id)
        if after is None:
            return None
        before = self._snapshot(batch_id - 1) if batch_id else None
        same = before is not None and before["plan"] == after["plan"]
        was_over = before is not None and same and bool(before["over"])
        is_first = not (same or after.get("continued"))
        return MergedSnapshot(after["plan"], after["floor"], is_first, was_over, bool(after["over"]))

    def end(self, batch_id: int) -> dict[str, Any]:
        """Return the offset at which a batch ends, of a query with one source."""
        (found,) = self._offsets(batch_id)
        return found

    def is_first(self, batch_id: int) -> bool:
        """Return True if no row was delivered before a batch."""
        before = self._offsets(batch_id - 1) if batch_id else ()
        return all(offset.get("fresh") is True for offset in before)

    def check_rows(self, batch_id: int) -> None:
        """Refuse a batch if other rows exist after it, because its collection was dropped or renamed."""
        for offset in self._offsets(batch_id):
            for what in offset.get("gone", []):
                raise rows_stay(what)

    def digest(self, batch_id: int) -> str | None:
        """Return a digest of the number of a batch and of its end; None before the first batch."""
        if batch_id < 0:
            return None
        text = json.dumps([batch_id, self._offsets(batch_id)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def has_gap(self, batch_id: int) -> bool:
        """Return True if changes were skipped since the batch before; every later offset says it again."""
        return self._lost(batch_id) > (self._lost(batch_id - 1) if batch_id else 0)

    def _lost(self, batch_id: int) -> int:
        """Return how often changes were skipped up to the end of a batch, over all sources of the query."""
        counts = (offset.get("lost", 0) for offset in self._offsets(batch_id))
        return sum(count for count in counts if isinstance(count, int))

    def feed(self, batch_id: int) -> FeedSource | None:
        """Return the feed that the query reads, if its offsets name one feed."""
        found = {_feed_of(offset) for offset in self._offsets(batch_id)}
        return found.pop() if len(found) == 1 else None

    def notes(self, batch_id: int) -> dict[str, str]:
        """Return what the end of a batch says about changes that it lacks, for the commit of the table."""
        found: dict[str, str] = {}
        for offset in self._offsets(batch_id):
            if offset.get("lost"):
                found["multiclouddb.warning"] = str(offset.get("warning"))
            if isinstance(poison := offset.get("poison"), dict):
                found["multiclouddb.poison"] = json.dumps(poison)
        return found

    def is_scanned(self) -> bool:
        """Return True if a batch after the end of the scan was completed, or if the query has no scan."""
        last = max(self._completed(), default=None)
        snapshot = None if last is None else self._snapshot(last)
        return last is not None and (snapshot is None or bool(snapshot["over"]))

    def _snapshot(self, batch_id: int) -> dict[str, Any] | None:
        """Return the snapshot that was stored with the end of a batch, if its scan reads every row."""
        offsets = self._offsets(batch_id)
        found = [offset["s"] for offset in offsets if offset.get("s", {}).get("whole")]
        if found and (self._ends[batch_id].sources > 1 or len(offsets) > 1):
            raise invalid_request(
                "checkpoint", "belongs to a query that reads a snapshot and another source", _OWN
            )
        return found[0] if found else None

    def _offsets(self, batch_id: int) -> tuple[dict[str, Any], ...]:
        if batch_id not in self._ends:
            text = self._read(f"offsets/{batch_id}")
            if text is None:
                raise invalid_request(
                    "checkpoint",
                    f"{self._where} has no offsets/{batch_id}",
                    f"{_THIS_QUERY}; with asyncProgressTrackingEnabled, Spark writes this file later, so "
                    "leave the option or checkpoint= out",
                )
            try:
                self._ends[batch_id] = logged_end(text)
            except ValueError as error:
                raise invalid_request(
                    "checkpoint",
                    f"the file offsets/{batch_id} of {self._where} {error}, so it is not known what the "
                    "batch contains",
                    f"{_THIS_QUERY}, with a version of Spark with which this version of multiclouddb-spark "
                    "was tested; for a query without a multiclouddb source, leave checkpoint= out",
                ) from None
        return self._ends[batch_id].offsets

    def _completed(self) -> Iterator[int]:
        if self._folder is not None:
            folder = os.path.join(self._folder, "commits")
            names = os.listdir(folder) if os.path.isdir(folder) else []
        else:
            files = self._session().read.format("binaryFile").option("pathGlobFilter", "[0-9]*")
            names = [row.path for row in files.load(self._path("commits")).select("path").collect()]
        for name in names:
            number = name.rpartition("/")[2]
            if number.isdigit():
                yield int(number)

    def _read(self, name: str) -> str | None:
        """Return the text of a file, or None if the file does not exist."""
        if self._folder is not None:
            try:
                with open(os.path.join(self._folder, name), encoding="utf-8") as file:
                    return file.read()
            except FileNotFoundError:
                return None
        from pyspark.errors import AnalysisException

        try:
            rows = self._session().read.text(self._path(name), wholetext=True).collect()
        except AnalysisException as error:
            if "PATH_NOT_FOUND" not in str(error):
                raise
            return None
        return str(rows[0].value) if rows else None

    def _path(self, name: str) -> str:
        """Return the path of a file for a reader of Spark, which takes some characters for a pattern."""
        return _PATTERN.sub(r"\\\g<0>", f"{self._where}/{name}")

    def _session(self) -> SparkSession:
        from pyspark.sql import SparkSession

        spark = self._spark or SparkSession.getActiveSession()
        if spark is None:
            raise self._wrong("is not a folder here, and no Spark session can read it")
        return spark

    def _wrong(self, problem: str) -> MulticloudDbError:
        return invalid_request("checkpoint", f"{self._where} {problem}", _THIS_QUERY)


def query_of(batch: DataFrame | None) -> tuple[str | None, bool]:
    """Return the id of the query that runs a batch, and whether Spark reports ids (not over Connect)."""
    try:
        # Without a frame, Spark is not imported for this.
        spark = sys.modules.get("pyspark.sql")
        active = None if spark is None else spark.SparkSession.getActiveSession()
        session = active if batch is None else batch.sparkSession
        context = None if session is None else session.sparkContext
        query_id = None if context is None else context.getLocalProperty("sql.streaming.queryId")
    except Exception:  # noqa: BLE001 - the error depends on the version of Connect
        return None, batch is None
    return query_id or None, True


def told(
    batch: DataFrame | pa.Table | ChangeFeedPage,
    batch_id: int | None,
    app_id: str | None,
    checkpoint: str | os.PathLike[str] | None,
) -> Told:
    """Return what the query and its checkpoint say about a batch."""
    frame = None if isinstance(batch, pa.Table | ChangeFeedPage) else batch
    query, is_reported = query_of(frame)
    found = Told(query)
    if checkpoint is not None:
        if batch_id is None:
            raise invalid_request(
                "checkpoint", "must be given together with batch_id", "give both, or leave both out"
            )
        told = Checkpoint(os.fspath(checkpoint), None if frame is None else frame.sparkSession)
        owner = told.query(query)
        told.check_rows(batch_id)
        found = Told(
            owner, told.scan(batch_id), told.notes(batch_id), told.feed(batch_id),
            told.is_first(batch_id), told.has_gap(batch_id), told.digest(batch_id - 1), told.digest(batch_id),
        )  # fmt: skip
    if app_id is not None and found.query is None and not is_reported:
        raise invalid_request(
            "app_id",
            "is given, but over Spark Connect the sink cannot tell which query the batch number comes from",
            "also pass checkpoint=, the checkpointLocation of the query",
        )
    return found
