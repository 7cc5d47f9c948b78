"""Sends the same requests to the scripted server and to DynamoDB Local: what both answer is alike.

Where they differ, the service's own reference decides; each such difference stands at its test.
"""

import itertools

import boto3
import botocore.exceptions
import pytest
from botocore.config import Config

from multiclouddb_dynamo_emulator import ScriptedStreams
from testing.provider_servers import server_module

CONFIG = Config(retries={"total_max_attempts": 1}, connect_timeout=5, read_timeout=20)
VIEWS = ("KEYS_ONLY", "NEW_IMAGE", "OLD_IMAGE", "NEW_AND_OLD_IMAGES")
NAMES = (f"parity{number}" for number in itertools.count())
OF_ONE_SERVER = {"ApproximateCreationDateTime", "SequenceNumber", "eventID", "awsRegion", "SizeBytes"}


class Side:
    """One of the two servers, with boto3's clients."""

    def __init__(self, server, endpoint_url, expire):
        session = boto3.Session("parity", "secret-of-the-test", region_name="eu-west-1")
        self.server, self.expire = server, expire
        self.tables = session.client("dynamodb", endpoint_url=endpoint_url, config=CONFIG)
        self.streams = session.client("dynamodbstreams", endpoint_url=endpoint_url, config=CONFIG)

    def create(self, name, view="NEW_AND_OLD_IMAGES", sort_key=False):
        keys = [("id", "S", "HASH"), ("line", "N", "RANGE")][: 1 + sort_key]
        self.name = name
        self.arn = self.tables.create_table(
            TableName=name,
            KeySchema=[{"AttributeName": each, "KeyType": kind} for each, _, kind in keys],
            AttributeDefinitions=[{"AttributeName": each, "AttributeType": tag} for each, tag, _ in keys],
            BillingMode="PAY_PER_REQUEST",
            StreamSpecification={"StreamEnabled": True, "StreamViewType": view},
        )["TableDescription"]["LatestStreamArn"]

    def put(self, key, **attributes):
        self.tables.put_item(TableName=self.name, Item={"id": {"S": key}, **attributes})

    def shard(self):
        (found,) = self.streams.describe_stream(StreamArn=self.arn)["StreamDescription"]["Shards"]
        return found

    def iterator(self, kind="TRIM_HORIZON", number=None, **more):
        more = {"StreamArn": self.arn, "ShardId": self.shard()["ShardId"], **more}
        if number is not None:
            more["SequenceNumber"] = number
        return self.streams.get_shard_iterator(ShardIteratorType=kind, **more)["ShardIterator"]

    def records(self, iterator=None, **more):
        return self.streams.get_records(ShardIterator=iterator or self.iterator(), **more)["Records"]

    def close(self):
        self.tables.close()
        self.streams.close()


@pytest.fixture(scope="module")
def sides():
    local = server_module("dynamo", "local").LocalDynamo()
    with ScriptedStreams() as scripted:
        each = [
            Side(scripted, scripted.endpoint_url, lambda hours: scripted.advance(3600 * hours)),
            Side(local, local.endpoint_url, local.dilate_time),
        ]
        yield each
        for side in each:
            side.close()
    local.close()


@pytest.fixture
def both(sides):
    """Provide a function that makes a table on both servers, and returns what an act gives on each."""
    name = next(NAMES)

    def compare(act, **table):
        found = []
        for side in sides:
            side.create(name, **table)
            found.append(act(side))
        assert found[0] == found[1]
        return found[0]

    return compare


def refused(call, **arguments):
    with pytest.raises(botocore.exceptions.ClientError) as caught:
        call(**arguments)
    response = caught.value.response
    return response["Error"]["Code"], response["ResponseMetadata"]["HTTPStatusCode"]


def plain(record):
    """Return a record without what is different on each server."""
    return {
        name: plain(value) if isinstance(value, dict) else value
        for name, value in record.items()
        if name not in OF_ONE_SERVER
    }


class TestRecords:
    @pytest.mark.parametrize("view", VIEWS)
    def test_have_the_images_of_the_view(self, both, view):
        def act(side):
            side.put("a", n={"N": "1.50"})
            side.put("a", n={"N": "2"}, text={"S": "x"})
            side.put("a", n={"N": "3"})
            side.tables.delete_item(TableName=side.name, Key={"id": {"S": "a"}})
            return [plain(record) for record in side.records()]

        found = both(act, view=view)
        assert [record["eventName"] for record in found] == ["INSERT", "MODIFY", "MODIFY", "REMOVE"]

    def test_of_every_type_are_alike(self, both):
        """DynamoDB Local 1.11 refuses an empty text outside of a key, which the service takes since 2020."""
        values = {
            "text": {"S": "x"}, "bytes": {"B": b"\x00\xff"}, "yes": {"BOOL": True}, "none": {"NULL": True},
            "list": {"L": [{"N": "1"}, {"M": {"a": {"S": "b"}}}]}, "texts": {"SS": ["b", "a"]},
            "numbers": {"NS": ["2", "1"]}, "blobs": {"BS": [b"b", b"a"]},
        }  # fmt: skip

        def act(side):
            side.put("a", **values)
            [record] = side.records()
            image = plain(record["dynamodb"]["NewImage"])
            return {
                name: {tag: sorted(value) if tag in ("SS", "NS", "BS") else value}
                for name, typed in image.items()
                for tag, value in typed.items()
            }

        both(act)

    @pytest.mark.parametrize(
        "number", ["0", "-0", "1.0", "1e3", "0.10", "1E-130", "-9.9e125", "12345678901234567890.5"]
    )
    def test_numbers_are_normalised_alike(self, both, number):
        def act(side):
            side.put("a", n={"N": number})
            return [record["dynamodb"]["NewImage"]["n"] for record in side.records()]

        both(act)

    def test_a_write_that_changes_nothing_has_none(self, both):
        def act(side):
            side.put("a", n={"N": "1"})
            side.put("a", n={"N": "1.0"})
            side.tables.delete_item(TableName=side.name, Key={"id": {"S": "none"}})
            return len(side.records())

        assert both(act) == 1

    def test_of_a_key_with_two_parts_have_both(self, both):
        def act(side):
            side.put("a", line={"N": "2.0"})
            return [record["dynamodb"]["Keys"] for record in side.records()]

        both(act, sort_key=True)

    def test_a_limit_is_kept_and_an_iterator_is_answered_twice_alike(self, both):
        def act(side):
            for number in range(5):
                side.put(f"k{number}")
            first = side.iterator()
            page = side.streams.get_records(ShardIterator=first, Limit=2)
            rest = side.records(page["NextShardIterator"])
            return [
                [record["dynamodb"]["Keys"]["id"]["S"] for record in records]
                for records in (page["Records"], side.records(first, Limit=2), rest)
            ]

        assert both(act)[0] == ["k0", "k1"]


class TestStarts:
    @pytest.mark.parametrize("kind", ["TRIM_HORIZON", "LATEST"])
    def test_without_a_number(self, both, kind):
        def act(side):
            side.put("before")
            iterator = side.iterator(kind)
            side.put("after")
            return [record["dynamodb"]["Keys"] for record in side.records(iterator)]

        both(act)

    @pytest.mark.parametrize("kind", ["AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER"])
    @pytest.mark.parametrize("place", [0, 1, 2])
    def test_with_a_number(self, both, kind, place):
        def act(side):
            for name in "abc":
                side.put(name)
            number = side.records()[place]["dynamodb"]["SequenceNumber"]
            return [record["dynamodb"]["Keys"] for record in side.records(side.iterator(kind, number))]

        assert len(both(act)) == 3 - place - (kind == "AFTER_SEQUENCE_NUMBER")

    def test_an_open_shard_with_nothing_new_goes_on(self, both):
        def act(side):
            page = side.streams.get_records(ShardIterator=side.iterator("LATEST"))
            return page["Records"], "NextShardIterator" in page

        assert both(act) == ([], True)


class TestRefusals:
    @pytest.mark.parametrize(
        ("kind", "number"),
        [("AT_SEQUENCE_NUMBER", None), ("ANY", None)],
        ids=["no number", "no such kind"],
    )
    def test_of_a_start(self, both, kind, number):
        both(lambda side: refused(side.iterator, kind=kind, number=number))

    def test_of_a_shard_that_does_not_exist(self, both):
        name = "shardId-00000000000000000000-00000000"
        assert both(lambda side: refused(side.iterator, ShardId=name))[0] == "ResourceNotFoundException"

    def test_of_an_iterator_that_is_none(self, both):
        both(lambda side: refused(side.streams.get_records, ShardIterator="no iterator at all"))

    def test_of_a_limit(self, both):
        both(lambda side: refused(side.records, Limit=1001))

    def test_of_a_stream_that_does_not_exist(self, both):
        def act(side):
            arn = side.arn.replace(side.name, "nothing")
            return refused(side.streams.describe_stream, StreamArn=arn)

        assert both(act)[0] == "ResourceNotFoundException"

    def test_of_a_table_that_exists_or_does_not(self, both):
        def act(side):
            missing = {"TableName": "nothing", "Key": {"id": {"S": "a"}}}
            return (
                refused(side.create, name=side.name),
                refused(side.tables.delete_item, **missing),
                refused(side.tables.scan, TableName="nothing"),
            )

        both(act)

    @pytest.mark.parametrize(
        "item",
        [{}, {"id": {"N": "1"}}, {"id": {"S": ""}}, {"id": {"S": "a"}, "n": {"N": "1e126"}}],
        ids=["no key", "key of another type", "empty key", "too large a number"],
    )
    def test_of_an_item(self, both, item):
        both(lambda side: refused(side.tables.put_item, TableName=side.name, Item=item))

    def test_of_an_iterator_that_is_too_old(self, both):
        def act(side):
            side.put("a")
            iterator = side.iterator()
            side.expire(1)
            return refused(side.records, iterator=iterator)

        assert both(act)[0] == "ExpiredIteratorException"


class TestLists:
    def test_a_stream_has_one_shard_that_is_open_and_has_no_parent(self, both):
        def act(side):
            shard = side.shard()
            return sorted(shard), sorted(shard["SequenceNumberRange"])

        assert both(act)[1] == ["StartingSequenceNumber"]

    def test_a_scan_in_pages_has_every_item_once(self, both):
        def act(side):
            for number in range(7):
                side.put(f"k{number}")
            found, more = [], {}
            while True:
                # The scripted server shows a scan that is not consistent the table before its last write.
                page = side.tables.scan(TableName=side.name, Limit=3, ConsistentRead=True, **more)
                found += [item["id"]["S"] for item in page["Items"]]
                if "LastEvaluatedKey" not in page:
                    return sorted(found)
                more = {"ExclusiveStartKey": page["LastEvaluatedKey"]}

        assert len(both(act)) == 7

    def test_a_table_says_which_stream_it_has(self, both):
        def act(side):
            described = side.tables.describe_table(TableName=side.name)["Table"]
            listed = side.streams.list_streams(TableName=side.name)["Streams"]
            return (
                described["StreamSpecification"],
                described["LatestStreamArn"] == side.arn,
                [each["StreamArn"] == side.arn for each in listed],
            )

        both(act)
