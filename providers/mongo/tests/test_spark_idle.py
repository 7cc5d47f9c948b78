"""Tests that Spark reads a collection without changes while the oplog rolls over."""

import shutil
import time

import pytest
from pyspark.errors import StreamingQueryException

from multiclouddb_api import ErrorCategory
from pyspark_multiclouddb import error_from_query

from .test_rollover import NOTE, World

pytestmark = pytest.mark.xdist_group("jvm")


@pytest.fixture
def world(small, database):
    return World(small, database)


def run(spark, world, checkpoint):
    """Run a query that ends by itself, like a nightly job. Return the keys that the query found."""
    found = []
    options = {"url": world.server.uri(), "database": world.database, "collection": "items"}
    stream = spark.readStream.format("multiclouddb").options(startingPosition="now", **options).load()
    query = (
        stream.writeStream.foreachBatch(lambda frame, _: found.extend(row.key for row in frame.collect()))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return found


def batches(checkpoint):
    return max(int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdigit())


def fill(world, megabytes):
    for _ in range(round(10 * megabytes)):
        world.others.insert_one({"note": NOTE})


def cut(world, moment):
    """Fill the oplog slowly until its first entry is later than a given time."""
    # The server truncates once a second.
    while world.ends()[0] <= moment:
        fill(world, 0.1)
        world.admin.command("fsync")
        until = time.monotonic() + 2
        while world.ends()[0] <= moment and time.monotonic() < until:
            time.sleep(0.01)


def test_checkpoint_moves_along_and_survives(spark, world, tmp_path):
    """Each night, other writes fill a part of the oplog. In total they do not fit into the oplog."""
    checkpoint, kept = tmp_path / "checkpoint", tmp_path / "kept"
    assert run(spark, world, checkpoint) == []
    world.write(1)
    assert run(spark, world, checkpoint) == ['{"_id":1}']
    shutil.copytree(checkpoint, kept)
    before, newest = batches(checkpoint), world.ends()[1]

    fill(world, 0.6)
    assert run(spark, world, checkpoint) == []
    assert batches(checkpoint) == before + 1
    fill(world, 0.3)
    cut(world, newest)
    assert run(spark, world, checkpoint) == []
    assert batches(checkpoint) == before + 2

    world.write(2)
    assert run(spark, world, checkpoint) == ['{"_id":2}']
    # This proves that the position had to move: the position of the first night has expired.
    with pytest.raises(StreamingQueryException) as caught:
        run(spark, world, kept)
    assert error_from_query(caught.value) == ErrorCategory.CHECKPOINT_EXPIRED
