"""Finds out from a query's checkpoint which snapshot the query reads, and whether its scan is over.

Spark writes `offsets/N`, the end of micro-batch N, before it runs the batch, and `commits/N` after it. The
end contains the snapshot (`offsets.py`), so every run of the batch reads the same snapshot.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit
from urllib.request import url2pathname

import attrs

from multiclouddb_api import MulticloudDbError, invalid_request

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_THIS_QUERY: Final = "pass the checkpointLocation of the query that calls this function"
_OWN: Final = "use a separate query with one source for the snapshot"


@attrs.frozen
class Scan:
    """The snapshot to which a micro-batch belongs."""

    plan: str
    floor: str  # rows of the target table with a lower `order_key` are older than the snapshot
    is_first: bool  # no earlier batch of the query belongs to this snapshot
    was_over: bool  # the scan was over before the batch
    is_over: bool  # the scan is over when the batch is merged
    whole: bool = True  # the scan reads every row of the collection


class Checkpoint:
    """Reads the checkpoint of a query."""

    def __init__(self, where: str, spark: SparkSession | None = None) -> None:
        self._where, self._spark = where.rstrip("/"), spark
        self._ends: dict[int, list[dict[str, Any]]] = {}
        self._sources: dict[int, int] = {}
        url = urlsplit(where)
        path = url2pathname(url.path) if url.scheme == "file" else where
        self._folder = path if os.path.isdir(os.path.join(path, "offsets")) else None

    def query(self, running: str | None) -> str | None:
        """Return the id of the query to which the checkpoint belongs; None if the checkpoint has no id."""
        stored = json.loads(self._read("metadata") or "{}").get("id")
        if running is not None and stored != running:
            raise self._wrong(f"belongs to the query {stored}, but this query is {running}")
        return stored if isinstance(stored, str) else None

    def scan(self, batch_id: int) -> Scan | None:
        """Return the snapshot of a batch, or None if the query did not start with a snapshot."""
        after = self._snapshot(batch_id)
        if after is None:
            return None
        before = self._snapshot(batch_id - 1) if batch_id else None
        same = before is not None and before["plan"] == after["plan"]
        was_over = before is not None and same and bool(before["over"])
        return Scan(after["plan"], after["floor"], not same, was_over, bool(after["over"]))

    def notes(self, batch_id: int) -> dict[str, str]:
        """Return what the end of a batch says about changes that it lacks, for the commit of the table."""
        found: dict[str, str] = {}
        for offset in self._offsets(batch_id):
            if offset.get("lost") is True:
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
        if found and (self._sources[batch_id] > 1 or len(offsets) > 1):
            raise invalid_request(
                "checkpoint", "belongs to a query that reads a snapshot and another source", _OWN
            )
        return found[0] if found else None

    def _offsets(self, batch_id: int) -> list[dict[str, Any]]:
        """Return the offsets of this source that were stored with the end of a batch."""
        if batch_id not in self._ends:
            text = self._read(f"offsets/{batch_id}")
            if text is None:
                raise self._wrong(f"has no offsets/{batch_id}")
            lines = text.splitlines()[2:]
            self._sources[batch_id] = len(lines)
            self._ends[batch_id] = [offset for line in lines for offset in _offsets_in(line)]
        return self._ends[batch_id]

    def _completed(self) -> Iterator[int]:
        """Return the numbers of the completed batches that the checkpoint still contains."""
        if self._folder is not None:
            folder = os.path.join(self._folder, "commits")
            names = os.listdir(folder) if os.path.isdir(folder) else []
        else:
            files = self._session().read.format("binaryFile").option("pathGlobFilter", "[0-9]*")
            names = [row.path for row in files.load(f"{self._where}/commits").select("path").collect()]
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
            rows = self._session().read.text(f"{self._where}/{name}", wholetext=True).collect()
        except AnalysisException as error:
            if "PATH_NOT_FOUND" not in str(error):
                raise
            return None
        return str(rows[0].value) if rows else None

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


def _offsets_in(line: str) -> Iterator[dict[str, Any]]:
    """Return the offsets of this source from a line of the offset log; they may be inside other objects."""
    try:
        value = json.loads(line)
    except ValueError:
        return
    if not isinstance(value, dict):
        return
    if isinstance(value.get("src"), str) and isinstance(value.get("v"), int):
        yield value
        return
    for part in value.values():
        yield from _offsets_in(part if isinstance(part, str) else json.dumps(part))
