"""Tests how a batch is planned, without Spark."""

import pickle
from datetime import UTC, datetime

import pytest

from pyspark_multiclouddb.errors import SourceError
from pyspark_multiclouddb.options import parse_options
from pyspark_multiclouddb.readers import ChangeFeedReader

from .micro_batches import ids


def now():
    return datetime.now(UTC).isoformat()


def planned(source, **options):
    """Plan a batch; return a function that reads it."""
    settings = parse_options(source.options(**options)).for_batch()
    reader = pickle.loads(pickle.dumps(ChangeFeedReader(settings)))
    tasks = reader.partitions()
    assert isinstance(tasks, list)
    return lambda: [row for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]


def count(source, **options):
    """Return the number of rows of a batch; each row comes once."""
    found = ids(planned(source, **options)())
    assert len(set(found)) == len(found)
    return len(found)


def grow(source):
    """Make three generations of partitions."""
    for turn in range(3):
        source.write(20, seed=turn)
        source.split(turn)
        source.write(20, seed=turn)
        source.merge(turn)
    return now(), len(source.truth)


def test_reads_every_generation_of_partitions_from_and_to_a_moment(source):
    (first, before), (last, after), _ = grow(source), grow(source), grow(source)
    assert count(source) == len(source.truth)
    assert count(source, endingPosition=first) == before
    assert count(source, startingPosition=first, endingPosition=last) == after - before
    assert count(source, startingPosition=last, endingPosition=last) == 0


def test_snapshot_is_taken_when_it_is_planned(source):
    source.write(20)
    read = planned(source)
    source.write(20)
    source.split()
    assert len(read()) == 20


def test_end_at_a_moment_right_before_a_split(source):
    """The parent's last change is exactly at the end of the range; the changes of the children come after."""
    source.write(20)
    moment = now()
    for _ in range(3):
        source.split()
        source.write(20)
    assert count(source, endingPosition=moment) == 20


def test_end_to_come_is_refused(source):
    with pytest.raises(SourceError, match=r"INVALID_REQUEST\] endingPosition: is \d+ s ahead of"):
        planned(source, endingPosition="2999-01-01T00:00:00Z")


def test_start_that_was_trimmed_is_told(source):
    source.write(10)
    moment = now()
    source.write(10)
    source.trim(3)
    with pytest.raises(SourceError, match=r"\[MULTICLOUDDB:CHECKPOINT_EXPIRED\]"):
        planned(source, startingPosition=moment)
    assert count(source) == 3
