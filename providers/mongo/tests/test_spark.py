"""Tests that Spark reads a collection during writes. Each change is read once."""

import random
import threading

import pytest

from multiclouddb_api import Beginning, ChangeFeedRequest, connect, decode_json

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


def run(spark, one, address, folder, **options):
    """Run a query that ends by itself. The next query continues where the previous query stopped."""
    options |= {"url": one.uri(), "database": address.database, "collection": address.collection}
    query = (
        spark.readStream.format("multiclouddb")
        .options(**options)
        .load()
        .writeStream.format("parquet")
        .option("path", str(folder / "rows"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


@pytest.mark.parametrize("bound", [{"maxRecordsPerTrigger": "200"}], ids=["bounded"])
def test_runs_hold_what_the_collection_holds(spark, one, here, written, tmp_path, bound):
    write(written, 200)
    writer = threading.Thread(target=write, args=(written, 400, 1))
    writer.start()
    try:
        for _ in range(3):
            run(spark, one, here, tmp_path, **bound)
    finally:
        writer.join()
    run(spark, one, here, tmp_path, **bound)
    rows = spark.read.parquet(str(tmp_path / "rows")).orderBy("order_key").collect()
    with connect(one.uri()) as client:
        events = list(client.iterate_changes(ChangeFeedRequest(here, Beginning()), until_idle=True))
    assert [row.event_id for row in rows] == [event.event_id for event in events]
    assert len(rows) > 600
    last = {row.key: row for row in rows}
    held = [decode_json(row.new_item_state) for row in last.values() if row.type != "DELETE"]
    assert sorted(held, key=lambda item: item["_id"]) == list(written.find(sort=[("_id", 1)]))
