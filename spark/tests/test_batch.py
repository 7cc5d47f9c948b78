"""Tests how a batch is planned, without Spark."""

import pickle
from datetime import UTC, datetime

import pytest

from pyspark_multiclouddb.errors import SourceError
from pyspark_multiclouddb.options import parse_options
from pyspark_multiclouddb.readers import ChangeFeedReader


def rows(source, **options):
    reader = pickle.loads(
        pickle.dumps(ChangeFeedReader(parse_options(source.options(**options)).for_batch()))
    )
    tasks = reader.partitions()
    assert isinstance(tasks, list)
    return [row for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]


def grow(source):
    """Make three generations of partitions."""
    for turn in range(3):
        source.write(20, seed=turn)
        source.split(turn)
        source.write(20, seed=turn)
        source.merge(turn)


def test_reads_through_every_generation(source):
    grow(source)
    found = rows(source)
    assert len({row["event_id"] for row in found}) == len(found) == len(source.truth)


def test_snapshot_is_taken_when_it_is_planned(source):
    source.write(20)
    reader = ChangeFeedReader(parse_options(source.options()))
    tasks = reader.partitions()
    source.write(20)
    source.split()
    assert sum(batch.num_rows for task in tasks for batch in reader.read(task)) == 20


def test_end_at_a_moment(source):
    grow(source)
    count, moment = len(source.truth), datetime.now(UTC)
    grow(source)
    found = rows(source, endingPosition=moment.isoformat())
    assert len({row["event_id"] for row in found}) == len(found) == count


def test_end_at_a_moment_right_before_a_split(source):
    """The parent's last change is exactly at the end of the range.

    The changes of the children are after the end and are not read.
    """
    source.write(20)
    moment = datetime.now(UTC)
    for _ in range(3):
        source.split()
        source.write(20)
    assert len(rows(source, endingPosition=moment.isoformat())) == 20


def test_from_a_moment_to_a_moment(source):
    grow(source)
    first, before = datetime.now(UTC), len(source.truth)
    grow(source)
    last, after = datetime.now(UTC), len(source.truth)
    grow(source)
    between = {"startingPosition": first.isoformat(), "endingPosition": last.isoformat()}
    assert len(rows(source, **between)) == after - before
    nothing = {"startingPosition": last.isoformat(), "endingPosition": last.isoformat()}
    assert rows(source, **nothing) == []


def test_end_to_come_is_refused(source):
    with pytest.raises(
        SourceError, match=r"\[MULTICLOUDDB:INVALID_REQUEST\] endingPosition: is \d+ s ahead of"
    ):
        rows(source, endingPosition="2999-01-01T00:00:00Z")


def test_start_that_was_trimmed_is_told(source):
    source.write(10)
    moment = datetime.now(UTC)
    source.write(10)
    source.store.trim("orders", max_count=3)
    with pytest.raises(SourceError, match=r"\[MULTICLOUDDB:CHECKPOINT_EXPIRED\]"):
        rows(source, startingPosition=moment.isoformat())
    assert len(rows(source)) == 3
