"""Tests that Spark reads a collection: during writes, after a drop, and while the oplog rolls over."""

import random
import shutil
import threading
import time
from datetime import UTC, datetime

import pytest
from pyspark.errors import StreamingQueryException

from multiclouddb_api import (
    Beginning,
    ChangeFeedRequest,
    ErrorCategory,
    ResourceAddress,
    connect,
    decode_json,
)
from pyspark_multiclouddb import error_from_query

from .test_poison import damaged
from .test_rollover import NOTE, World

pytestmark = pytest.mark.xdist_group("jvm")


def write(collection, count, seed=0):
    """Write creates, updates, replacements and deletes, some of them in transactions."""
    dice = random.Random(seed)

    def change(session=None):
        name = {"_id": dice.randrange(40)}
        if dice.random() < 0.2:
            collection.delete_one(name, session=session)
        elif dice.random() < 0.5:
            collection.update_one(name, {"$inc": {"n": 1}}, upsert=True, session=session)
        else:
            collection.replace_one(name, {"n": dice.randrange(1000)}, upsert=True, session=session)

    def transaction(session):
        for _ in range(5):
            change(session)

    for number in range(count):
        if number % 10:
            change()
        else:
            with collection.database.client.start_session() as session:
                session.with_transaction(transaction)


def run(spark, server, address, checkpoint, found, **options):
    """Run a query that ends by itself, as a nightly job does; add its rows to `found`."""
    options |= {"url": server.uri(), "database": address.database, "collection": address.collection}
    stream = spark.readStream.format("multiclouddb").options(**options).load().writeStream
    stream = stream.foreachBatch(lambda frame, _: found.extend(frame.collect()))
    query = stream.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()


def test_runs_hold_what_the_collection_holds(spark, one, here, written, tmp_path):
    write(written, 200)
    writer, rows = threading.Thread(target=write, args=(written, 400, 1)), []
    writer.start()
    try:
        for _ in range(3):
            run(spark, one, here, tmp_path, rows, maxRecordsPerTrigger="200")
    finally:
        writer.join()
    run(spark, one, here, tmp_path, rows, maxRecordsPerTrigger="200")
    rows.sort(key=lambda row: row.order_key)
    with connect(one.uri()) as client:
        events = list(client.iterate_changes(ChangeFeedRequest(here, Beginning()), until_idle=True))
    assert [row.event_id for row in rows] == [event.event_id for event in events]
    assert len(rows) > 600
    last = {row.key: row for row in rows}
    held = [decode_json(row.new_item_state) for row in last.values() if row.type != "DELETE"]
    assert sorted(held, key=lambda item: item["_id"]) == list(written.find(sort=[("_id", 1)]))


def test_last_changes_of_a_dropped_collection_come_and_then_its_end(spark, one, here, written, tmp_path):
    rows = []
    run(spark, one, here, tmp_path, rows, maxRecordsPerTrigger="1")
    written.insert_one({"_id": 1})
    written.delete_one({"_id": 0})
    written.drop()
    for _ in range(2):
        with pytest.raises(StreamingQueryException, match="all that the service still had") as caught:
            run(spark, one, here, tmp_path, rows, maxRecordsPerTrigger="1")
        assert error_from_query(caught.value) == ErrorCategory.NOT_FOUND
        expected = [('{"_id":0}', "CREATE"), ('{"_id":1}', "CREATE"), ('{"_id":0}', "DELETE")]
        assert [(row.key, row.type) for row in rows] == expected


@pytest.mark.parametrize("limit", ["2", "1000"])
def test_changes_of_an_earlier_collection_of_the_name_end_the_query(
    spark, one, here, written, tmp_path, limit
):
    """No change says that the rows of the dropped collection are gone, so a table would keep them."""
    written.insert_many([{"_id": number} for number in range(1, 4)])
    written.drop()
    written.insert_one({"_id": 4})
    rows, options = [], {"startingPosition": "beginning", "maxRecordsPerTrigger": limit}
    for _ in range(2):
        with pytest.raises(StreamingQueryException, match=f"{here} was dropped") as caught:
            run(spark, one, here, tmp_path, rows, **options)
        assert error_from_query(caught.value) == ErrorCategory.NOT_FOUND
        assert [decode_json(row.key)["_id"] for row in rows][:4] == [0, 1, 2, 3]


def test_the_first_change_after_the_start_cannot_be_read(spark, one, here, written, tmp_path):
    """With `onPoison=skip`, each run starts, and the other changes arrive once."""
    # The start may be early by 11 s, so the collection is new.
    here, written = ResourceAddress(here.database, "others"), written.database["others"]
    rows, options = [], {"startingPosition": datetime.now(UTC).isoformat(), "onPoison": "skip"}
    written.insert_one(damaged({"_id": 1, "msg": "damaged"}))
    written.insert_one({"_id": "a"})
    for number in range(2):
        run(spark, one, here, tmp_path / "checkpoint", rows, **options)
        assert [row.key for row in rows] == ['{"_id":"a"}', '{"_id":"b"}'][: number + 1]
        if not number:
            written.insert_one({"_id": "b"})
    run(
        spark, one, here, tmp_path / "from the beginning", rows, startingPosition="beginning", onPoison="skip"
    )
    assert len(rows) == 2 + 2


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


def test_checkpoint_moves_along_and_survives(spark, small, database, tmp_path):
    """Each night, other writes fill a part of the oplog. In total they do not fit into the oplog."""
    world, checkpoint, kept = World(small, database), tmp_path / "checkpoint", tmp_path / "kept"

    def nightly(folder=checkpoint):
        run(spark, small, ResourceAddress(database, "items"), folder, found := [], startingPosition="now")
        return [row.key for row in found]

    assert nightly() == []
    world.write(1)
    assert nightly() == ['{"_id":1}']
    shutil.copytree(checkpoint, kept)
    before, newest = batches(checkpoint), world.ends()[1]

    fill(world, 0.6)
    assert nightly() == []
    assert batches(checkpoint) == before + 1
    fill(world, 0.3)
    cut(world, newest)
    assert nightly() == []
    assert batches(checkpoint) == before + 2

    world.write(2)
    assert nightly() == ['{"_id":2}']
    # This proves that the position had to move: the position of the first night has expired.
    with pytest.raises(StreamingQueryException) as caught:
        nightly(kept)
    assert error_from_query(caught.value) == ErrorCategory.CHECKPOINT_EXPIRED
