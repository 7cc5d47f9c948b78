"""Defines the settings of a mirror."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from multiclouddb_api import ProviderOptions, StartPosition
from multiclouddb_mirror.report import MirrorProgress
from multiclouddb_tables.columns import Columns

if TYPE_CHECKING:
    from multiclouddb_verify import Progress

__all__ = ["MirrorSettings"]


class MirrorSettings(TypedDict, total=False):
    """The settings of `mirror`."""

    follow: bool
    """True to go on until `Mirror.stop` is called; False, the default, to end when every change was read."""
    position: str | None
    """The URL of a checkpoint, such as `s3://bucket/positions/orders`, that keeps the position; None, the
    default, to store it with the table, so that a backup of the table has the position that fits its rows."""
    start: StartPosition | None
    """Where to begin if no position is stored; None, the default, means `Snapshot()`, which copies every row
    first. `Beginning()` needs a service that keeps every change. Give a token, and `adopt=True`, if something
    else has filled the table up to there. `Now()` and a time are refused, because rows would be missing."""
    on_expired: Literal["resnapshot", "fail"]
    """What to do when the service no longer keeps the changes after the position: read every row again, the
    default, or raise `CHECKPOINT_EXPIRED`."""
    resync: bool
    """True to begin with a snapshot although a position is stored, which repairs the table; False by
    default."""
    columns: Columns | str | os.PathLike[str] | None
    """The columns of the documents, or the file `columns.toml` with them; None, the default, for those that
    the table has, so for a new table none but the document as JSON text."""
    refill: bool
    """True to fill the columns of another declaration than the table has, by a copy of every row; False by
    default, which refuses it before anything is read. If the table has this declaration, and all of its
    columns are filled, it changes nothing."""
    adopt: bool
    """True to write into a table with rows that no sink of this library has marked; False by default. The
    snapshot then buries every row that is not in the collection."""
    prove: bool
    """True to compare the table with the collection when every change was read; False by default."""
    tombstones: timedelta | None
    """How long to keep the row that a deleted document leaves, from the merge of the delete on: after a run
    that has read every change, older ones are removed. None, the default, to keep all."""
    compact: bool
    """True to merge the small files of a Delta table after a run that has read every change, and to remove
    files that no version of the last seven days needs; False by default."""
    set_aside: str | os.PathLike[str] | None
    """A folder for records that cannot be decoded, and for rows that the table refuses: the run goes on
    without them, and `MirrorReport.set_aside` counts them until `retry_set_aside` has written them, or a
    proof has found the table equal. None, the default, to end the run at the first of them."""
    set_aside_documents: bool
    """True to keep their documents too, which only the owner of the files may read; False by default."""
    max_set_aside: int
    """The most records of the table in the folder, after which the run ends; 100 by default."""
    max_scan_rate: float | None
    """As in `Snapshot.max_scan_rate`, for the first copy and the proof; None by default."""
    timeout_seconds: float
    """The time limit of one read; 30 by default."""
    provider_options: ProviderOptions | None
    """The options of the provider."""
    spark: Any
    """A Spark session, such as `SparkSession.builder.getOrCreate()` in a driver, or True for one on this
    machine: Spark's tasks read the collection, and find the last change of each key; the driver merges them.
    What changes meanwhile is then read without Spark, unless the mirror follows. None, the default, to read
    everything in this process. Runs with and without Spark may follow each other in any order. It cannot be
    combined with `set_aside`, `max_scan_rate` and `provider_options` that change positions."""
    on_progress: Callable[[MirrorProgress], None] | None
    """Called after each page."""
    on_proof_progress: Callable[[Progress], None] | None
    """Called from time to time during the proof, as `verify` does."""
