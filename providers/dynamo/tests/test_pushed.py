"""Tests that the batches of AWS Lambda give the events that a reader gives of the same records."""

import base64
import copy
import json
import random
from datetime import UTC, datetime

import attrs
import pyarrow as pa
import pytest

from multiclouddb_api import ErrorCategory, MulticloudDbError, OldItemStateMode, encode_json
from multiclouddb_api.arrow import events_to_arrow
from multiclouddb_conformance.refusals import refusal
from multiclouddb_dynamo import batch_item_failures, events_from_lambda
from multiclouddb_tables.sqlite import SqliteTable, merge_into_sqlite

from .test_values import NUMBERS, TEXTS
from .world import ADDRESS, TABLE, World

pytestmark = pytest.mark.usefixtures("hasty")
INVALID = ErrorCategory.INVALID_REQUEST
DIFFERENT = {"partition_id", "by_expiry"}
SERVICE = {"type": "Service", "principalId": "dynamodb.amazonaws.com"}


def as_json(value):
    """Return attribute values of boto3 as they stand in an event of Lambda."""
    match value:
        case bytes():
            return base64.b64encode(value).decode()
        case datetime():
            return value.timestamp()
        case dict():
            return {name: as_json(each) for name, each in value.items()}
        case list():
            return [as_json(each) for each in value]
    return value


def batch_of(world):
    """Return all records of the table's stream as one event of Lambda."""
    client = world.server.client("dynamodbstreams")
    records = []
    for shard in client.describe_stream(StreamArn=world.arn)["StreamDescription"]["Shards"]:
        iterator = client.get_shard_iterator(
            StreamArn=world.arn, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
        )["ShardIterator"]
        while found := (answer := client.get_records(ShardIterator=iterator))["Records"]:
            records += found
            iterator = answer.get("NextShardIterator")
    for record in records:
        if "userIdentity" in record:
            record["userIdentity"] = {
                name[0].lower() + name[1:]: each for name, each in record["userIdentity"].items()
            }
        record["eventSourceARN"] = world.arn
    return json.loads(json.dumps({"Records": as_json(records)}))


def read(world):
    consumer = world.consumer(old_item_state_mode=OldItemStateMode.INCLUDE_IF_AVAILABLE)
    consumer.until_idle()
    return consumer.events


def anything(chance, depth=0):
    """Return a random attribute value of any type."""
    kinds = ["S", "N", "B", "BOOL", "NULL", "SS", "NS", "BS"] + ["L", "M"] * (depth < 3)
    match kind := chance.choice(kinds):
        case "S":
            return {kind: chance.choice(TEXTS)}
        case "N":
            return {kind: chance.choice([*NUMBERS, str(chance.randrange(10**6))])}
        case "B":
            return {kind: chance.randbytes(chance.randrange(5))}
        case "BOOL":
            return {kind: chance.random() < 0.5}
        case "NULL":
            return {kind: True}
        case "SS":
            return {kind: chance.sample([each for each in TEXTS if each], 3)}
        case "NS":
            return {kind: [str(each) for each in chance.sample(range(10**9), 3)]}
        case "BS":
            return {kind: [bytes([each]) for each in chance.sample(range(256), 3)]}
        case "L":
            return {kind: [anything(chance, depth + 1) for _ in range(chance.randrange(4))]}
    return {kind: {name: anything(chance, depth + 1) for name in chance.sample(TEXTS[1:], 2)}}


def written(world, count, key=("id",), keys=({"S": "a"}, {"S": "b"}, {"S": "é"})):
    """Write, change and delete items of all types, and let some expire; return the number of changes."""
    chance, client, there, changes = random.Random(76), world.server.client(), {}, 0
    while changes < count:
        name = {each: chance.choice(keys) for each in key}
        text = json.dumps(as_json(name))
        if text in there and chance.random() < 0.3:
            there.pop(text)
            if chance.random() < 0.5:
                client.delete_item(TableName=TABLE, Key=name)
            else:
                world.script.expire_item(TABLE, name)
        else:
            there[text] = {**name, "n": {"N": str(changes)}, "value": anything(chance)}
            client.put_item(TableName=TABLE, Item=there[text])
        changes += 1
    return changes


def fields(event):
    """Return the fields of an event that are claimed to be equal, and the texts of its documents and key."""
    plain = {
        field.name: getattr(event, field.name)
        for field in attrs.fields(type(event))
        if field.name not in DIFFERENT
    }
    documents = (event.key.components, event.new_item_state, event.old_item_state)
    return plain, [encode_json(each) for each in documents]


class TestEquality:
    def test_a_thousand_items_of_all_types(self, world):
        count = written(world, 1000)
        pushed, found = events_from_lambda(batch_of(world), key="id"), read(world)
        assert len(pushed) == len(found) == count
        assert list(map(fields, pushed)) == list(map(fields, found))
        expired = [event for event in found if event.by_expiry]
        assert len(expired) > 10
        for mine, its in zip(pushed, found, strict=True):
            # A delete that names nobody may be a replicated one, which a reader has asked the service.
            assert mine.by_expiry == (None if its.type == "DELETE" and not its.by_expiry else its.by_expiry)
            assert mine.partition_id == its.partition_id.rpartition(":")[0] + ":"

    def test_the_components_of_a_key_have_the_given_order(self):
        with World() as world:
            world.server.client().delete_table(TableName=TABLE)
            world.arn = world.server.create_table(TABLE, sort_key="sk", types={"pk": "N", "sk": "B"})
            client = world.server.client()
            for number in ("5", "5.0", "-1E-3"):
                client.put_item(
                    TableName=TABLE, Item={"sk": {"B": b"\xff"}, "pk": {"N": number}, "n": {"N": "1"}}
                )
            batch = batch_of(world)
            for record in batch["Records"]:
                record["dynamodb"]["Keys"] = dict(reversed(record["dynamodb"]["Keys"].items()))
            pushed = events_from_lambda(batch, key=("pk", "sk"))
            assert list(map(fields, pushed)) == list(map(fields, read(world)))
            assert [*pushed[0].key.components] == ["pk", "sk"]

    def test_a_tumbling_window_names_the_shard(self, world):
        world.put("a")
        window = {
            "window": {"start": "2020-07-30T17:00:00Z", "end": "2020-07-30T17:05:00Z"},
            "state": {}, "shardId": world.chain(), "eventSourceARN": world.arn,
            "isFinalInvokeForWindow": False, "isWindowTerminatedEarly": False,
        }  # fmt: skip
        (pushed,) = events_from_lambda(batch_of(world) | window, "id")
        assert pushed.partition_id == read(world)[0].partition_id
        assert events_from_lambda({**window, "Records": []}, "id") == []

    def test_a_record_without_a_time(self, world):
        world.put("a", "b")
        batch = batch_of(world)
        first, second = batch["Records"]
        del second["dynamodb"]["ApproximateCreationDateTime"]
        seconds = first["dynamodb"]["ApproximateCreationDateTime"]
        assert events_from_lambda(batch, "id")[1].timestamp.timestamp() == int(seconds)
        del batch["Records"][0]
        assert events_from_lambda(batch, "id")[0].timestamp == datetime(1970, 1, 1, tzinfo=UTC)


class TestRefusals:
    @pytest.mark.parametrize(
        ("spoil", "named"),
        [
            (lambda record: record["dynamodb"]["Keys"]["id"].update(S=7), "sequence"),
            (lambda record: record["dynamodb"]["NewImage"].update(n={"N": "x"}), "sequence"),
            (lambda record: record["dynamodb"]["NewImage"].update(n={"S": "\ud83d"}), "sequence"),
            (lambda record: record.update(eventName="DROP"), "sequence"),
            (lambda record: record["dynamodb"].update(SequenceNumber="x"), "Records[1]"),
            (lambda record: record["dynamodb"].pop("SequenceNumber"), "Records[1]"),
            (lambda record: record.update(dynamodb=None), "Records[1]"),
        ],
        ids=range(7),
    )
    def test_a_record_that_cannot_be_decoded(self, world, spoil, named):
        world.put("secret-1", "secret-2", "secret-3")
        batch = batch_of(world)
        spoil(batch["Records"][1])
        with pytest.raises(MulticloudDbError) as caught:
            events_from_lambda(batch, "id")
        assert caught.value.category is ErrorCategory.PROVIDER_ERROR
        assert named in caught.value.message
        assert "secret" not in caught.value.message

    def test_another_key(self, world):
        world.put("a")
        batch = batch_of(world)
        for key in ("pk", ("id", "sk")):
            assert (
                "the records have the key id"
                in refusal(INVALID, lambda k=key: events_from_lambda(batch, k)).message
            )
        for key in ((), "", ("a", "b", "c"), ("a", "a")):
            assert "names no key" in refusal(INVALID, lambda k=key: events_from_lambda(batch, k)).message

    def test_other_batches(self, world):
        world.put("a", "b")
        batch = batch_of(world)
        kinesis, mixed = copy.deepcopy(batch), copy.deepcopy(batch)
        for record in kinesis["Records"]:
            record.update(eventSource="aws:kinesis")
        mixed["Records"][1]["eventSourceARN"] += "0"
        failed = {"requestContext": {}, "DDBStreamBatchInfo": {"shardId": world.chain(), "batchSize": 2}}
        for other, problem in [
            (kinesis, "aws:kinesis"), (mixed, "several streams"), (failed, "on-failure destination"),
            ({}, "no list Records"), ({"Records": [7]}, "unknown source"), ([], "event"),
        ]:  # fmt: skip
            assert problem in refusal(INVALID, lambda o=other: events_from_lambda(o, "id")).message


class TestFailures:
    def test_lambda_passes_the_batch_again_from_the_failed_event_on(self, world):
        world.put("a", "b", "c")
        batch = batch_of(world)
        pushed = events_from_lambda(batch, "id")
        seq = batch["Records"][1]["dynamodb"]["SequenceNumber"]
        assert batch_item_failures(batch, pushed[1]) == {"batchItemFailures": [{"itemIdentifier": seq}]}
        assert batch_item_failures(batch) == {"batchItemFailures": []}
        del batch["Records"][1]
        assert (
            "not an event of this batch"
            in refusal(INVALID, lambda: batch_item_failures(batch, pushed[1])).message
        )


def rows(path):
    table = SqliteTable(path, "orders")
    found = [row for part in table.rows() for row in part.to_pylist()]
    return sorted((row["key"], row["state"], row["deleted"]) for row in found)


def test_a_page_sink_takes_pushed_events_and_then_pages(world, tmp_path):
    written(world, 60)
    batch = batch_of(world)
    path = tmp_path / "pushed.db"
    for start in (0, 20, 10, 40):  # Lambda passes a batch again after a failure
        part = {"Records": batch["Records"][start : start + 20]}
        events = events_from_lambda(part, "id")
        merge_into_sqlite(pa.Table.from_batches([events_to_arrow(events)]), None, path, "orders", None)
    consumer = world.consumer()
    consumer.until_idle()
    other = tmp_path / "read.db"
    for page in consumer.pages:
        merge_into_sqlite(page, None, other, "orders", None)
    assert rows(path) == rows(other)
    # The mark of the table says the same stream, so pages continue it, and those of another stream do not.
    merge_into_sqlite(consumer.pages[0], None, path, "orders", None)
    for record in batch["Records"]:
        record["eventSourceARN"] += "0"
    foreign = pa.Table.from_batches([events_to_arrow(events_from_lambda(batch, "id"))])
    assert (
        "created again"
        in refusal(INVALID, lambda: merge_into_sqlite(foreign, None, path, "orders", None)).message
    )
    assert events[0].address == ADDRESS
