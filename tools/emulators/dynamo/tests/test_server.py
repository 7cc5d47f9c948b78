"""Tests the scripted DynamoDB server through the unmodified boto3."""

import itertools
import re
import socket
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from email.utils import parsedate_to_datetime

import boto3
import botocore.exceptions
import orjson
import pytest
from boto3.dynamodb.types import TypeDeserializer
from botocore.config import Config
from hypothesis import given
from hypothesis import strategies as st

from multiclouddb_dynamo_emulator import (
    ChildFilter,
    Habits,
    Journal,
    Order,
    Poison,
    Remains,
    ScriptedStreams,
    TimeStart,
    Violation,
)
from multiclouddb_dynamo_emulator.errors import KNOWN, ServiceError
from multiclouddb_dynamo_emulator.http import HttpServer, Reply, Request
from multiclouddb_dynamo_emulator.item import item_size, normalised
from multiclouddb_dynamo_emulator.iterator import ShardIterator
from multiclouddb_dynamo_emulator.shard import Numbers

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
SESSION = boto3.Session("scripted", "secret-of-the-test", region_name="eu-west-1")


def connected(server, service, **settings):
    config = Config(
        retries={"mode": "standard", "total_max_attempts": 1},
        connect_timeout=5,
        read_timeout=settings.pop("read_timeout", 20),
        max_pool_connections=50,
        **settings,
    )
    return SESSION.client(service, endpoint_url=server.endpoint_url, config=config)


class Wire:
    """A server with clients of both services, and helper methods for all tests."""

    def __init__(self, server):
        self.server = server
        self.tables = connected(server, "dynamodb")
        self.streams = connected(server, "dynamodbstreams")

    def close(self):
        self.tables.close()
        self.streams.close()

    def create(self, name="orders", view="NEW_AND_OLD_IMAGES", sort_key=False, key_type="S", **more):
        keys = [("id", key_type, "HASH"), ("line", "N", "RANGE")][: 1 + sort_key]
        if view is not None:
            more["StreamSpecification"] = {"StreamEnabled": True, "StreamViewType": view}
        answer = self.tables.create_table(
            TableName=name,
            KeySchema=[{"AttributeName": each, "KeyType": kind} for each, _, kind in keys],
            AttributeDefinitions=[{"AttributeName": each, "AttributeType": tag} for each, tag, _ in keys],
            BillingMode="PAY_PER_REQUEST",
            **more,
        )
        return answer["TableDescription"].get("LatestStreamArn")

    def put(self, key, table="orders", **attributes):
        self.tables.put_item(TableName=table, Item={"id": {"S": key}, **attributes})

    def delete(self, key, table="orders"):
        self.tables.delete_item(TableName=table, Key={"id": {"S": key}})

    def pages(self, arn, **more):
        """Return every page of DescribeStream."""
        while True:
            page = self.streams.describe_stream(StreamArn=arn, **more)["StreamDescription"]
            yield page
            if "LastEvaluatedShardId" not in page:
                return
            more["ExclusiveStartShardId"] = page["LastEvaluatedShardId"]

    def listed(self, arn, **more):
        return [shard for page in self.pages(arn, **more) for shard in page["Shards"]]

    def ids(self, arn, **more):
        return [shard["ShardId"] for shard in self.listed(arn, **more)]

    def iterator(self, arn, shard_id, kind="TRIM_HORIZON", number=None):
        more = {} if number is None else {"SequenceNumber": str(number)}
        return self.streams.get_shard_iterator(
            StreamArn=arn, ShardId=shard_id, ShardIteratorType=kind, **more
        )["ShardIterator"]

    def get(self, iterator, **more):
        return self.streams.get_records(ShardIterator=iterator, **more)

    def read(self, arn, shard_id, kind="TRIM_HORIZON", number=None, **more):
        """Return all records that a shard contains now."""
        records, iterator = [], self.iterator(arn, shard_id, kind, number)
        while iterator:
            page = self.get(iterator, **more)
            records += page["Records"]
            iterator = page.get("NextShardIterator") if page["Records"] else None
        return records

    def iterator_at(self, arn, shard_id, when):
        more = {} if when is None else {"Timestamp": when}
        return self.streams.get_shard_iterator(
            StreamArn=arn, ShardId=shard_id, ShardIteratorType="AT_TIMESTAMP", **more
        )["ShardIterator"]

    def read_at(self, arn, shard_id, when):
        return self.get(self.iterator_at(arn, shard_id, when))["Records"]

    def fails(self, call, *arguments, **named):
        """Return the code and the status of an error."""
        with pytest.raises(botocore.exceptions.ClientError) as caught:
            call(*arguments, **named)
        response = caught.value.response
        return response["Error"]["Code"], response["ResponseMetadata"]["HTTPStatusCode"]


@contextmanager
def wired(**settings):
    with ScriptedStreams(START, **settings) as server:
        wire = Wire(server)
        try:
            yield wire
        finally:
            wire.close()


@pytest.fixture
def wire():
    with wired() as made:
        yield made


@pytest.fixture
def server(wire):
    return wire.server


def only(sequence):
    (one,) = sequence
    return one


def keys(records):
    return [record["dynamodb"]["Keys"]["id"]["S"] for record in records]


def numbers(records):
    return [int(record["dynamodb"]["SequenceNumber"]) for record in records]


def address(url):
    host, _, port = url.removeprefix("http://").partition(":")
    return host, int(port)


def connection_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("scripted")]


class TestHttp:
    def test_a_connection_is_kept(self, wire, server):
        wire.create()
        before = server.connections
        for _ in range(20):
            wire.tables.describe_table(TableName="orders")
        assert server.connections == before == 1

    def test_stops_at_once_with_idle_connections_and_leaves_no_thread(self):
        with ScriptedStreams() as server:
            wire = Wire(server)
            wire.create()
            idle = socket.create_connection(address(server.endpoint_url))
            half = socket.create_connection(address(server.endpoint_url))
            half.sendall(b"POST / HTTP/1.1\r\nContent-Length: 10\r\n\r\nabc")
            began = time.monotonic()
        assert time.monotonic() - began < 30
        assert connection_threads() == []
        for each in (idle, half, wire):
            each.close()

    def test_stops_while_a_call_hangs(self):
        with ScriptedStreams() as server, ThreadPoolExecutor() as pool:
            wire = Wire(server)
            trouble = server.troubles.hang(None)
            call = pool.submit(wire.tables.list_tables)
            while not trouble.happened:
                time.sleep(0.001)
            began = time.monotonic()
            server.stop()
            assert time.monotonic() - began < 30
            with pytest.raises(botocore.exceptions.HTTPClientError):
                call.result()
            wire.close()
        assert connection_threads() == []

    def test_stopping_twice_is_stopping_once(self):
        server = ScriptedStreams()
        server.stop()
        server.stop()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address(server.endpoint_url))

    def test_idle_connections_can_be_broken_off(self, wire, server):
        wire.create()
        server.break_connections()
        while server.connections:
            time.sleep(0.001)
        # The pool detects the closed connection by itself and connects again.
        wire.tables.describe_table(TableName="orders")
        assert server.connections == 1

    def test_a_mistake_in_the_script_comes_out_at_the_end(self):
        def mistake():
            raise ZeroDivisionError

        server = ScriptedStreams()
        server.troubles.act(mistake, operation="ListTables")
        wire = Wire(server)
        with pytest.raises(botocore.exceptions.ConnectionClosedError):
            wire.tables.list_tables()
        wire.close()
        with pytest.raises(ZeroDivisionError), server:
            pass

    def test_an_answer_can_be_cut(self):
        server = HttpServer(lambda request: Reply(200, {}, request.body, cut_after=3))
        try:
            with pytest.raises(Exception, match="IncompleteRead"):
                urllib.request.urlopen(server.url, data=b"abcdef").read()
        finally:
            server.stop()

    @pytest.mark.parametrize(
        ("sent", "served"),
        [
            (b"POST /a?b=c HTTP/1.1\r\nX-One:  two \r\nContent-Length: 3\r\n\r\nabc", 1),
            (b"POST / HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n\r\n", 2),
            (b"POST / HTTP/1.1\r\nConnection: close\r\n\r\nGET / HTTP/1.1\r\n\r\n", 1),
            (b"POST / HTTP/1.1\r\nContent-Length: 3", 0),
            (b"POST / HTTP/1.1\r\nContent-Length: three\r\n\r\nabc", 0),
            (b"POST / HTTP/1.1\r\nContent-Length: 4\r\n\r\nabc", 0),
            (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 0),
            (b"POST\r\n\r\n", 0),
            (b"", 0),
        ],
    )
    def test_only_whole_requests_are_served(self, sent, served):
        requests = []
        server = HttpServer(lambda request: requests.append(request) or Reply(200, {"X": "y"}, b"ok"))
        with socket.create_connection(address(server.url)) as connection:
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
            with connection.makefile("rb") as reader:
                answers = reader.read()
        server.stop()
        assert answers == b"HTTP/1.1 200 OK\r\nX: y\r\nContent-Length: 2\r\n\r\nok" * served
        assert len(requests) == served
        assert server.crashes == []
        if b"X-One" in sent:
            headers = {"x-one": "two", "content-length": "3"}
            assert requests == [Request("POST", "/a?b=c", headers, b"abc")]

    def test_the_date_is_that_of_its_clock(self, wire, server):
        answer = wire.tables.list_tables()["ResponseMetadata"]["HTTPHeaders"]
        assert timedelta() <= parsedate_to_datetime(answer["date"]) - START < timedelta(minutes=1)
        server.advance(3600)
        answer = wire.tables.list_tables()["ResponseMetadata"]["HTTPHeaders"]
        assert parsedate_to_datetime(answer["date"]) - START >= timedelta(hours=1)

    @pytest.mark.parametrize(
        ("headers", "code"),
        [
            ({}, "MissingAuthenticationTokenException"),
            ({"Authorization": "x"}, "UnknownOperationException"),
            (
                {"Authorization": "x", "X-Amz-Target": "DynamoDB_20120810.GetRecords"},
                "UnknownOperationException",
            ),
            (
                {"Authorization": "x", "X-Amz-Target": "DynamoDB_20120810.PutItem"},
                "SerializationException",
            ),
        ],
    )
    def test_refuses_what_is_no_call(self, server, headers, code):
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(urllib.request.Request(server.endpoint_url, b"{", headers))
        with caught.value as answer:
            assert answer.status == 400
            assert orjson.loads(answer.read())["__type"].endswith(f"#{code}")


class TestTables:
    def test_is_described(self, wire):
        arn = wire.create(view="NEW_IMAGE", sort_key=True)
        table = wire.tables.describe_table(TableName="orders")["Table"]
        assert table["LatestStreamArn"] == arn
        assert arn.endswith(f"/stream/{table['LatestStreamLabel']}")
        assert table["StreamSpecification"] == {"StreamEnabled": True, "StreamViewType": "NEW_IMAGE"}
        assert [each["AttributeName"] for each in table["KeySchema"]] == ["id", "line"]
        assert table["TableStatus"] == "ACTIVE"
        wire.tables.get_waiter("table_exists").wait(TableName="orders")

    def test_without_a_stream_names_none(self, wire):
        assert wire.create(view=None) is None
        wire.put("a")
        table = wire.tables.describe_table(TableName="orders")["Table"]
        assert {"LatestStreamArn", "LatestStreamLabel", "StreamSpecification"} & table.keys() == set()
        assert table["ItemCount"] == 1
        assert wire.streams.list_streams(TableName="orders")["Streams"] == []

    def test_is_found_by_its_arn(self, wire):
        wire.create()
        arn = wire.tables.describe_table(TableName="orders")["Table"]["TableArn"]
        assert wire.tables.describe_table(TableName=arn)["Table"]["TableName"] == "orders"

    def test_a_name_is_taken_once(self, wire):
        wire.create()
        assert wire.fails(wire.create) == ("ResourceInUseException", 400)

    def test_are_listed_in_pages(self, wire):
        for name in ("bbb", "aaa", "ccc"):
            wire.create(name)
        pages = wire.tables.get_paginator("list_tables").paginate(PaginationConfig={"PageSize": 2})
        assert [page["TableNames"] for page in pages] == [["aaa", "bbb"], ["ccc"]]

    def test_a_deleted_one_is_gone(self, wire):
        wire.create()
        wire.tables.delete_table(TableName="orders")
        wire.tables.get_waiter("table_not_exists").wait(TableName="orders")

    @pytest.mark.parametrize(
        "arguments",
        [
            {"StreamSpecification": {"StreamEnabled": True}},
            {"StreamSpecification": {"StreamEnabled": False, "StreamViewType": "NEW_IMAGE"}},
            {"StreamSpecification": {"StreamEnabled": False}},
            {"BillingMode": "PROVISIONED"},
        ],
    )
    def test_a_wrong_update_is_refused(self, wire, arguments):
        wire.create(view=None)
        assert wire.fails(wire.tables.update_table, TableName="orders", **arguments) == (
            "ValidationException",
            400,
        )

    def test_keys_and_definitions_have_to_agree(self, wire):
        code = wire.fails(
            wire.tables.create_table,
            TableName="orders",
            KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "other", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
        )
        assert code == ("ValidationException", 400)


class TestWrites:
    @pytest.mark.parametrize("view", ["KEYS_ONLY", "NEW_IMAGE", "OLD_IMAGE", "NEW_AND_OLD_IMAGES"])
    def test_a_record_has_the_images_of_its_view(self, wire, view):
        arn = wire.create(view=view)
        wire.put("a", n={"N": "1"})
        wire.put("a", n={"N": "2"})
        wire.delete("a")
        records = wire.read(arn, only(wire.ids(arn)))
        assert [record["eventName"] for record in records] == ["INSERT", "MODIFY", "REMOVE"]
        first, second = ({"id": {"S": "a"}, "n": {"N": text}} for text in "12")
        new, old = ([first, second, None], [None, first, second])
        for number, record in enumerate(records):
            change = record["dynamodb"]
            assert change["Keys"] == {"id": {"S": "a"}}
            assert change["StreamViewType"] == view
            assert change.get("NewImage") == (new[number] if view.startswith("NEW") else None)
            assert change.get("OldImage") == (old[number] if "OLD" in view else None)
            assert change["SizeBytes"] >= 3
            assert "userIdentity" not in record

    def test_a_record_says_where_it_is_from(self, wire):
        arn = wire.create()
        wire.put("a")
        record = only(wire.read(arn, only(wire.ids(arn))))
        assert record["awsRegion"] == "us-east-1"
        assert record["eventSource"] == "aws:dynamodb"
        assert record["eventVersion"] == "1.1"

    def test_event_ids_are_unique_and_stable(self, wire):
        arn = wire.create()
        for number in range(50):
            wire.put(f"k-{number}")
        shard_id = only(wire.ids(arn))
        first, second = wire.read(arn, shard_id), wire.read(arn, shard_id, Limit=7)
        assert first == second
        assert len({record["eventID"] for record in first}) == 50
        assert all(re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", r["eventID"]) for r in first)

    def test_what_changes_nothing_writes_no_record(self, wire):
        arn = wire.create()
        wire.put("a", n={"N": "1.50"}, s={"SS": ["x", "y"]})
        wire.put("a", n={"N": "1.5"}, s={"SS": ["y", "x"]})
        wire.delete("missing")
        assert keys(wire.read(arn, only(wire.ids(arn)))) == ["a"]

    def test_every_type_comes_back(self, wire):
        arn = wire.create()
        item = {
            "id": {"S": "é€😀"},
            "n": {"N": "-123456789012345678901234567890.12345678"},
            "b": {"B": bytes(range(256))},
            "yes": {"BOOL": True},
            "none": {"NULL": True},
            "l": {"L": [{"S": ""}, {"L": []}, {"M": {}}]},
            "m": {"M": {"x": {"M": {"y": {"BOOL": False}}}}},
            "ss": {"SS": ["a", "b"]},
            "ns": {"NS": ["1", "2.5"]},
            "bs": {"BS": [b"\0", b"\1"]},
        }
        wire.tables.put_item(TableName="orders", Item=item)
        image = only(wire.read(arn, only(wire.ids(arn))))["dynamodb"]["NewImage"]
        assert image == item
        assert TypeDeserializer().deserialize({"M": image})["n"] == Decimal(item["n"]["N"])

    @pytest.mark.parametrize(
        ("sent", "kept"),
        [
            ("1.50", "1.5"),
            ("2.0", "2"),
            ("007", "7"),
            ("-0", "0"),
            ("1E+3", "1000"),
            ("1e-3", "0.001"),
            ("100", "100"),
            ("-1.10", "-1.1"),
        ],
    )
    def test_numbers_are_normalised(self, sent, kept):
        assert normalised({"n": {"N": sent}, "s": {"NS": [sent]}}) == {"n": {"N": kept}, "s": {"NS": [kept]}}

    @given(
        st.decimals(allow_nan=False, allow_infinity=False, places=6, min_value=-(10**20), max_value=10**20)
    )
    def test_a_normalised_number_is_the_same_number(self, number):
        kept = normalised({"n": {"N": str(number)}})["n"]["N"]
        assert Decimal(kept) == number
        assert normalised({"n": {"N": kept}})["n"]["N"] == kept

    @pytest.mark.parametrize(
        "value",
        [
            {"N": "twelve"},
            {"N": "NaN"},
            {"N": "1" * 39},
            {"N": "1e126"},
            {"SS": []},
            {"SS": ["a", "a"]},
            {"NS": ["1", "1.0"]},
            {"NULL": False},
        ],
        ids=str,
    )
    def test_a_wrong_value_is_refused(self, wire, value):
        wire.create()
        assert wire.fails(wire.put, "a", x=value) == ("ValidationException", 400)

    @pytest.mark.parametrize("value", [{"B": "*"}, {"BOOL": 1}, {"S": 1}, {"L": 1}, {"M": 1}], ids=str)
    def test_a_value_of_the_wrong_form_cannot_be_read(self, value):
        with pytest.raises(ServiceError, match="SerializationException"):
            normalised({"x": value})

    @pytest.mark.parametrize("item", [{}, {"id": {"N": "1"}}, {"id": {"S": ""}}], ids=str)
    def test_a_wrong_key_is_refused(self, wire, item):
        wire.create()
        assert wire.fails(wire.tables.put_item, TableName="orders", Item=item)[0] == "ValidationException"

    def test_a_delete_needs_the_key_alone(self, wire):
        wire.create()
        key = {"id": {"S": "a"}, "more": {"S": "b"}}
        assert wire.fails(wire.tables.delete_item, TableName="orders", Key=key)[0] == "ValidationException"

    def test_a_composite_key_has_both_parts(self, wire):
        arn = wire.create(sort_key=True)
        wire.put("a", line={"N": "1"})
        wire.tables.put_item(TableName="orders", Item={"line": {"N": "2"}, "id": {"S": "a"}})
        wire.put("a", line={"N": "2.0"})
        # The order of the attributes in a key does not matter.
        wire.tables.delete_item(TableName="orders", Key={"line": {"N": "1.0"}, "id": {"S": "a"}})
        records = wire.read(arn, only(wire.ids(arn)))
        assert [record["eventName"] for record in records] == ["INSERT", "INSERT", "REMOVE"]
        assert records[2]["dynamodb"]["Keys"] == {"id": {"S": "a"}, "line": {"N": "1"}}

    def test_the_old_item_is_returned_on_demand(self, wire):
        wire.create()
        wire.put("a", n={"N": "1"})
        put = wire.tables.put_item(TableName="orders", Item={"id": {"S": "a"}}, ReturnValues="ALL_OLD")
        assert put["Attributes"]["n"] == {"N": "1"}
        deleted = wire.tables.delete_item(TableName="orders", Key={"id": {"S": "a"}}, ReturnValues="ALL_OLD")
        assert deleted["Attributes"] == {"id": {"S": "a"}}

    def test_conditions_are_refused_not_ignored(self, wire):
        wire.create()
        code = wire.fails(
            wire.tables.put_item,
            TableName="orders",
            Item={"id": {"S": "a"}},
            ConditionExpression="attribute_not_exists(id)",
        )
        assert code == ("ValidationException", 400)

    def test_a_batch_writes_in_its_order(self, wire):
        arn = wire.create()
        wire.put("gone")
        requests = [{"PutRequest": {"Item": {"id": {"S": f"k-{number}"}}}} for number in range(24)]
        requests.append({"DeleteRequest": {"Key": {"id": {"S": "gone"}}}})
        answer = wire.tables.batch_write_item(RequestItems={"orders": requests})
        assert answer["UnprocessedItems"] == {}
        assert keys(wire.read(arn, only(wire.ids(arn))))[1:] == [*(f"k-{n}" for n in range(24)), "gone"]

    @pytest.mark.parametrize("wrong", [["a", "a"], [f"k-{number}" for number in range(26)]], ids=len)
    def test_a_wrong_batch_writes_nothing(self, wire, wrong):
        arn = wire.create()
        requests = {"orders": [{"PutRequest": {"Item": {"id": {"S": key}}}} for key in wrong]}
        assert wire.fails(wire.tables.batch_write_item, RequestItems=requests)[0] == "ValidationException"
        assert wire.read(arn, only(wire.ids(arn))) == []

    def test_a_batch_reads_what_fits_into_a_page(self, wire, server):
        wire.create()
        for number in range(10):
            wire.put(f"k-{number}")
        wanted = [{"id": {"S": f"k-{number}"}} for number in (*range(10), 99)]
        server.habits.page_bytes = 40
        found, left = set(), {"orders": {"Keys": wanted, "ConsistentRead": True}}
        while left:
            answer = wire.tables.batch_get_item(RequestItems=left)
            assert len(answer["Responses"]["orders"]) < 10
            found |= {item["id"]["S"] for item in answer["Responses"]["orders"]}
            left = answer["UnprocessedKeys"]
        assert found == {f"k-{number}" for number in range(10)}

    @pytest.mark.parametrize("wrong", [["a", "a"], [f"k-{number}" for number in range(101)]], ids=len)
    def test_a_wrong_batch_reads_nothing(self, wire, wrong):
        wire.create()
        asked = {"orders": {"Keys": [{"id": {"S": key}} for key in wrong]}}
        assert wire.fails(wire.tables.batch_get_item, RequestItems=asked)[0] == "ValidationException"

    def test_a_transaction_is_all_or_nothing(self, wire):
        arn = wire.create()
        puts = [{"Put": {"TableName": "orders", "Item": {"id": {"S": key}}}} for key in "ab"]
        delete = {"Delete": {"TableName": "orders", "Key": {"id": {"S": "a"}}}}
        wrong = {"Put": {"TableName": "orders", "Item": {"id": {"N": "1"}}}}
        wire.tables.transact_write_items(TransactItems=puts)
        third = {"TableName": "orders", "Item": {"id": {"S": "c"}}}
        for bad in (wrong, puts[1], {"Put": third | {"ConditionExpression": "x"}}):
            code = wire.fails(wire.tables.transact_write_items, TransactItems=[puts[1], delete, bad])
            assert code == ("ValidationException", 400)
        wire.tables.transact_write_items(TransactItems=[delete])
        records = wire.read(arn, only(wire.ids(arn)))
        assert [(r["eventName"], k) for r, k in zip(records, keys(records), strict=True)] == [
            ("INSERT", "a"),
            ("INSERT", "b"),
            ("REMOVE", "a"),
        ]

    def test_threads_write_and_nothing_is_lost(self, wire, server):
        server.habits.initial_shards = 4
        arn = wire.create()

        def write(thread):
            for number in range(25):
                wire.put(f"{thread}-{number}")
                if number == 10:
                    server.roll_over_all("orders")

        with ThreadPoolExecutor() as pool:
            list(pool.map(write, range(4)))
        found = [key for shard_id in wire.ids(arn) for key in keys(wire.read(arn, shard_id))]
        assert sorted(found) == sorted(f"{t}-{n}" for t in range(4) for n in range(25))

    def test_an_item_is_measured(self):
        item = {"id": {"S": "é"}, "b": {"B": "AAAA"}, "l": {"L": [{"N": "12"}, {"NULL": True}]}}
        assert item_size(item) == (2 + 2) + (1 + 3) + (1 + 3 + 1 + 2 + 1 + 1)


class TestTime:
    def test_creation_times_are_whole_seconds_of_its_clock(self, wire, server):
        arn = wire.create()
        wire.put("a")
        server.advance(90)
        wire.put("b")
        first, second = (
            record["dynamodb"]["ApproximateCreationDateTime"]
            for record in wire.read(arn, only(wire.ids(arn)))
        )
        assert first.microsecond == 0
        assert START <= first < START + timedelta(seconds=60)
        assert second - first >= timedelta(seconds=90)

    def test_creation_times_can_be_whole_minutes(self, wire, server):
        server.habits.timestamp_seconds = 60
        arn = wire.create()
        server.advance(59)
        wire.put("a")
        created = only(wire.read(arn, only(wire.ids(arn))))["dynamodb"]["ApproximateCreationDateTime"]
        assert created.second == 0
        assert created <= START + timedelta(minutes=1)

    def test_the_clock_does_not_go_back(self, server):
        with pytest.raises(ValueError, match="cannot go back"):
            server.advance(-1)

    def test_it_runs(self, server):
        before = server.clock.now()
        while server.clock.now() == before:
            pass
        assert server.clock.now() - START < timedelta(minutes=1)


class TestStreams:
    def test_a_disabled_one_stays_readable(self, wire, server):
        arn = wire.create()
        wire.put("a")
        wire.tables.update_table(TableName="orders", StreamSpecification={"StreamEnabled": False})
        wire.put("unseen")
        table = wire.tables.describe_table(TableName="orders")["Table"]
        assert table["LatestStreamArn"] == arn
        assert "StreamSpecification" not in table
        page = only(wire.pages(arn))
        assert page["StreamStatus"] == "DISABLED"
        shard = only(page["Shards"])
        assert "EndingSequenceNumber" in shard["SequenceNumberRange"]
        answer = wire.get(wire.iterator(arn, shard["ShardId"]))
        assert keys(answer["Records"]) == ["a"]
        assert "NextShardIterator" not in answer
        server.advance(24 * 3600)
        assert wire.fails(wire.ids, arn) == ("ResourceNotFoundException", 400)

    def test_enabling_again_makes_another(self, wire):
        first = wire.create()
        wire.tables.update_table(TableName="orders", StreamSpecification={"StreamEnabled": False})
        wire.tables.update_table(
            TableName="orders", StreamSpecification={"StreamEnabled": True, "StreamViewType": "KEYS_ONLY"}
        )
        wire.put("a")
        second = wire.tables.describe_table(TableName="orders")["Table"]["LatestStreamArn"]
        assert first != second
        assert wire.read(first, only(wire.ids(first))) == []
        record = only(wire.read(second, only(wire.ids(second))))
        assert record["dynamodb"]["StreamViewType"] == "KEYS_ONLY"
        listed = wire.streams.list_streams(TableName="orders")["Streams"]
        assert [each["StreamArn"] for each in listed] == [second, first]
        assert {first, second} == {each["StreamArn"] for each in wire.streams.list_streams()["Streams"]}

    def test_enabling_twice_is_refused(self, wire):
        wire.create()
        specification = {"StreamEnabled": True, "StreamViewType": "NEW_IMAGE"}
        code = wire.fails(wire.tables.update_table, TableName="orders", StreamSpecification=specification)
        assert code == ("ValidationException", 400)

    def test_a_recreated_table_has_another(self, wire):
        first = wire.create()
        wire.tables.delete_table(TableName="orders")
        second = wire.create()
        assert first != second
        assert [page["StreamStatus"] for page in wire.pages(first)] == ["DISABLED"]

    def test_two_of_one_moment_differ(self, wire, server, monkeypatch):
        monkeypatch.setattr(server.clock, "seconds", START.timestamp)
        first = wire.create()
        wire.tables.delete_table(TableName="orders")
        assert wire.create() != first

    @pytest.mark.parametrize("readable", [False, True])
    def test_that_of_a_deleted_table_ends(self, wire, server, readable):
        server.habits.readable_after_delete = readable
        arn = wire.create()
        shard_id = only(wire.ids(arn))
        iterators = [wire.iterator(arn, shard_id, kind) for kind in ("TRIM_HORIZON", "LATEST")]
        wire.put("a")
        wire.tables.delete_table(TableName="orders")
        for iterator in iterators:
            answer = wire.get(iterator)
            assert keys(answer["Records"]) == (["a"] if readable else [])
            assert "NextShardIterator" not in answer

    def test_are_listed_in_pages(self, wire):
        arns = [wire.create(f"table-{number}") for number in range(5)]
        found, more = [], {}
        while True:
            page = wire.streams.list_streams(Limit=2, **more)
            found += [each["StreamArn"] for each in page["Streams"]]
            if "LastEvaluatedStreamArn" not in page:
                break
            more = {"ExclusiveStartStreamArn": page["LastEvaluatedStreamArn"]}
        assert found == arns[::-1]

    def test_a_missing_one_is_not_found(self, wire):
        arn = "arn:aws:dynamodb:us-east-1:000000000000:table/orders/stream/2026-01-01T00:00:00.000"
        assert wire.fails(wire.ids, arn) == ("ResourceNotFoundException", 400)
        assert (
            wire.fails(wire.streams.list_streams, ExclusiveStartStreamArn=arn)[0]
            == "ResourceNotFoundException"
        )


class TestShards:
    def test_a_new_stream_has_as_many_as_it_should(self, wire, server):
        server.habits.initial_shards = 5
        shards = wire.listed(wire.create())
        assert len(shards) == 5
        for shard in shards:
            assert shard.keys() == {"ShardId", "SequenceNumberRange"}
            assert shard["SequenceNumberRange"].keys() == {"StartingSequenceNumber"}
            assert re.fullmatch(r"shardId-\d{20}-[0-9a-f]{8}", shard["ShardId"])

    def test_an_item_stays_in_its_lineage(self, wire, server):
        server.habits.initial_shards = 2
        arn = wire.create()
        places = {}
        for generation in range(4):
            for number in range(20):
                wire.put(f"k-{number}", n={"N": str(generation)})
                places.setdefault(number, []).append(server.shard_of("orders", {"id": {"S": f"k-{number}"}}))
            for shard_id in server.open_shards("orders"):
                server.split(shard_id)
        parents = {shard["ShardId"]: shard.get("ParentShardId") for shard in wire.listed(arn)}
        for lineage in places.values():
            assert [parents[child] for child in lineage[1:]] == lineage[:-1]
        assert len({lineage[0] for lineage in places.values()}) == 2

    def test_a_split_makes_two_children(self, wire, server):
        arn = wire.create()
        parent = only(wire.ids(arn))
        for number in range(40):
            wire.put(f"k-{number}")
        children = server.split(parent)
        for number in range(40):
            wire.put(f"k-{number}", n={"N": "1"})
        shards = {shard["ShardId"]: shard for shard in wire.listed(arn)}
        assert {each for each in shards if shards[each].get("ParentShardId") == parent} == set(children)
        old = wire.read(arn, parent)
        young = [wire.read(arn, child) for child in children]
        assert all(young)
        assert sorted(keys(old)) == sorted(keys(young[0] + young[1]))
        ending = int(shards[parent]["SequenceNumberRange"]["EndingSequenceNumber"])
        assert max(numbers(old)) <= ending < min(numbers(young[0] + young[1]))
        for child in children:
            assert int(shards[child]["SequenceNumberRange"]["StartingSequenceNumber"]) > ending
            assert server.shard(child).is_open

    def test_a_rollover_makes_one_child(self, wire, server):
        arn = wire.create()
        parent = only(wire.ids(arn))
        wire.put("a")
        child = server.roll_over(parent)
        wire.put("a", n={"N": "1"})
        assert keys(wire.read(arn, parent)) == keys(wire.read(arn, child)) == ["a"]
        assert server.shard(child).parent == parent
        assert server.open_shards("orders") == [child]

    def test_two_rollovers_leave_an_empty_one_between(self, wire, server):
        arn = wire.create()
        middle = only(server.roll_over_all("orders"))
        server.roll_over_all("orders")
        first, shard, last = wire.listed(arn)
        assert shard["ShardId"] == middle == last["ParentShardId"]
        assert shard["ParentShardId"] == first["ShardId"]
        bounds = shard["SequenceNumberRange"]
        assert bounds["StartingSequenceNumber"] == bounds["EndingSequenceNumber"]
        answer = wire.get(wire.iterator(arn, middle))
        assert answer["Records"] == []
        assert "NextShardIterator" not in answer

    def test_a_closed_one_takes_no_part(self, wire, server):
        parent = only(wire.ids(wire.create()))
        server.split(parent)
        for act in (server.split, server.roll_over, lambda shard_id: server.fill(shard_id, 1)):
            with pytest.raises(ValueError, match="is closed"):
                act(parent)

    def test_come_in_pages_of_a_hundred(self, wire, server):
        server.habits.initial_shards = 250
        pages = list(wire.pages(wire.create()))
        assert [len(page["Shards"]) for page in pages] == [100, 100, 50]
        assert pages[0]["LastEvaluatedShardId"] == pages[0]["Shards"][-1]["ShardId"]
        ids = [shard["ShardId"] for page in pages for shard in page["Shards"]]
        assert len(set(ids)) == 250
        server.habits.shards_per_page = 60
        assert len(list(wire.pages(server.stream_arn("orders")))) == 5
        assert len(wire.ids(server.stream_arn("orders"), Limit=7)) == 250

    def test_thousands_have_a_lineage(self, wire, server):
        arn = wire.create()
        server.grow("orders", total=5000, open_shards=64)
        shards = wire.listed(arn)
        assert len(shards) == len({shard["ShardId"] for shard in shards}) == 5000
        is_open = ["EndingSequenceNumber" not in shard["SequenceNumberRange"] for shard in shards]
        assert sum(is_open) == len(server.open_shards("orders")) == 64
        starts = {
            shard["ShardId"]: int(shard["SequenceNumberRange"]["StartingSequenceNumber"]) for shard in shards
        }
        children = Counter(shard.get("ParentShardId") for shard in shards)
        assert children[None] == 1
        assert max(children.values()) == 2
        assert all(starts[shard["ParentShardId"]] < starts[shard["ShardId"]] for shard in shards[1:])
        with pytest.raises(ValueError, match="the stream already has"):
            server.grow("orders", total=10, open_shards=64)

    def test_thousands_can_have_records(self, wire, server):
        arn = wire.create()
        server.grow("orders", total=60, open_shards=4, records=5)
        found = [record for shard_id in wire.ids(arn) for record in wire.read(arn, shard_id)]
        # Three shards were split: one shard, and then its two children.
        assert len(found) == 57 * 5
        assert len(set(keys(found))) == len({record["eventID"] for record in found}) == len(found)

    def test_the_order_is_that_of_the_habit(self, wire, server):
        arn = wire.create()
        server.grow("orders", total=300, open_shards=8)
        orders = {}
        for order in Order:
            server.habits.order = order
            orders[order] = wire.ids(arn)
            assert orders[order] == wire.ids(arn)
        assert orders[Order.CHILDREN_FIRST] == orders[Order.PARENTS_FIRST][::-1]
        assert len({tuple(ids) for ids in orders.values()}) == 3
        assert len({frozenset(ids) for ids in orders.values()}) == 1

    def test_a_parent_may_be_on_a_later_page(self, wire, server):
        server.habits.order = Order.CHILDREN_FIRST
        arn = wire.create()
        server.grow("orders", total=150, open_shards=2)
        first, second = wire.pages(arn)
        parents = {shard.get("ParentShardId") for shard in first["Shards"]}
        assert parents & {shard["ShardId"] for shard in second["Shards"]}
        assert "ParentShardId" not in second["Shards"][-1]

    def test_children_may_be_listed_late(self, wire, server):
        server.habits.late_children = 2
        arn = wire.create()
        parent = only(wire.ids(arn))
        children = server.split(parent)
        assert wire.ids(arn) == [parent]
        assert wire.ids(arn, ShardFilter=child_filter(parent)) == []
        assert set(wire.ids(arn)) == {parent, *children}

    def test_children_and_parents_can_be_hidden(self, wire, server):
        arn = wire.create()
        parent = only(wire.ids(arn))
        child = server.roll_over(parent)
        server.hide(parent, 1)
        assert wire.ids(arn) == [child]
        assert wire.ids(arn) == [parent, child]
        server.hide_children(parent, 1)
        assert wire.ids(arn) == [parent]
        # A hidden shard still exists.
        server.hide_children(parent, 1)
        wire.put("a")
        assert keys(wire.read(arn, child)) == ["a"]
        assert wire.ids(arn) == [parent]
        assert wire.ids(arn) == [parent, child]

    def test_children_can_be_asked_for(self, wire, server):
        arn = wire.create()
        parent = only(wire.ids(arn))
        children = server.split(parent)
        server.roll_over(children[0])
        assert wire.ids(arn, ShardFilter=child_filter(parent)) == list(children)
        assert wire.ids(arn, ShardFilter=child_filter(children[1])) == []
        assert wire.ids(arn, ShardFilter=child_filter(parent), Limit=1) == list(children)
        server.habits.child_filter = ChildFilter.IGNORED
        assert len(wire.ids(arn, ShardFilter=child_filter(parent))) == 4
        server.habits.child_filter = ChildFilter.REFUSED
        assert wire.fails(wire.ids, arn, ShardFilter=child_filter(parent)) == ("ValidationException", 400)
        assert len(wire.ids(arn)) == 4

    def test_keys_of_a_shard_go_there(self, wire, server):
        server.habits.initial_shards = 3
        arn = wire.create()
        for shard_id in wire.ids(arn):
            texts = [key["id"]["S"] for key in server.keys_of(shard_id, 5)]
            for text in texts:
                wire.put(text)
            assert keys(wire.read(arn, shard_id)) == texts

    def test_keys_may_be_numbers(self, wire, server):
        server.habits.initial_shards = 2
        arn = wire.create(key_type="N", sort_key=True)
        first, second = wire.ids(arn)
        (key,) = server.keys_of(second, 1)
        wire.tables.put_item(TableName="orders", Item={**key, "line": {"N": "1"}})
        server.fill(second, 2)
        found = [record["dynamodb"]["Keys"] for record in wire.read(arn, second)]
        assert found[0] == {**key, "line": {"N": "1"}}
        assert len({each["id"]["N"] for each in found}) == 3
        assert wire.read(arn, first) == []

    def test_keys_of_bytes_are_not_made(self, wire, server):
        shard_id = only(wire.ids(wire.create(key_type="B")))
        with pytest.raises(ValueError, match="texts or numbers"):
            server.keys_of(shard_id, 1)

    def test_a_start_at_the_last_one_goes_by_the_habit(self, wire, server):
        arn = wire.create()
        shard_id = only(wire.ids(arn))
        code = wire.fails(wire.ids, arn, ExclusiveStartShardId=shard_id)
        assert code == ("ResourceNotFoundException", 400)
        server.habits.start_after_last = True
        assert wire.ids(arn, ExclusiveStartShardId=shard_id) == []
        child = server.roll_over(shard_id)
        assert wire.ids(arn, ExclusiveStartShardId=shard_id) == [child]


def child_filter(shard_id):
    return {"Type": "CHILD_SHARDS", "ShardId": shard_id}


class TestIterators:
    def test_the_four_types(self, wire):
        arn = wire.create()
        shard_id = only(wire.ids(arn))
        for key in "abc":
            wire.put(key)
        latest = wire.iterator(arn, shard_id, "LATEST")
        wire.put("d")
        second = numbers(wire.read(arn, shard_id))[1]
        assert keys(wire.read(arn, shard_id)) == [*"abcd"]
        assert keys(wire.read(arn, shard_id, "AT_SEQUENCE_NUMBER", second)) == [*"bcd"]
        assert keys(wire.read(arn, shard_id, "AFTER_SEQUENCE_NUMBER", second)) == [*"cd"]
        assert keys(wire.get(latest)["Records"]) == ["d"]
        # The same iterator is used again.
        assert keys(wire.get(latest)["Records"]) == ["d"]

    def test_latest_from_before_a_rollover_ends_with_its_shard(self, wire, server):
        arn = wire.create()
        shard_id = only(wire.ids(arn))
        wire.put("a")
        latest = wire.iterator(arn, shard_id, "LATEST")
        wire.put("b")
        server.roll_over(shard_id)
        wire.put("c")
        answer = wire.get(latest)
        assert keys(answer["Records"]) == ["b"]
        assert "NextShardIterator" not in answer
        assert "NextShardIterator" not in wire.get(wire.iterator(arn, shard_id, "LATEST"))

    @pytest.mark.parametrize("offset", [-1, 1])
    @pytest.mark.parametrize("kind", ["AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER"])
    def test_a_number_outside_of_the_shard_is_refused(self, wire, server, kind, offset):
        arn = wire.create()
        server.roll_over_all("orders")
        shard = server.shards("orders")[0]
        number = shard.start - 1 if offset < 0 else shard.end + 1
        assert wire.fails(wire.iterator, arn, shard.shard_id, kind, number) == ("ValidationException", 400)
        wire.iterator(arn, shard.shard_id, kind, shard.start)
        wire.iterator(arn, shard.shard_id, kind, shard.end)

    def test_what_is_no_number_is_refused(self, wire):
        arn = wire.create()
        code = wire.fails(wire.iterator, arn, only(wire.ids(arn)), "AT_SEQUENCE_NUMBER", "x" * 21)
        assert code == ("ValidationException", 400)

    def test_a_time_points_to_the_first_record_at_or_after_it(self, wire, server):
        server.clock.stop(START.timestamp())
        arn = wire.create()
        for name in "abc":
            wire.put(name)
            server.advance(10)
        shard = only(wire.ids(arn))
        for at, found in ((-1, "abc"), (0, "abc"), (1, "bc"), (20, "c"), (21, "")):
            assert keys(wire.read_at(arn, shard, START + timedelta(seconds=at))) == list(found)
        later = wire.iterator_at(arn, shard, START + timedelta(seconds=21))
        wire.put("d")
        assert keys(wire.get(later)["Records"]) == ["d"]
        server.roll_over_all("orders")
        last = wire.get(wire.iterator_at(arn, shard, START + timedelta(seconds=30)))
        assert keys(last["Records"]) == ["d"]
        server.advance(1)
        assert wire.get(wire.iterator_at(arn, shard, START + timedelta(seconds=31)))["Records"] == []

    def test_a_time_before_the_oldest_record_points_to_that(self, wire, server):
        server.clock.stop(START.timestamp())
        arn = wire.create()
        wire.put("a")
        server.advance(10)
        wire.put("b")
        shard = only(server.shards("orders"))
        iterator = wire.iterator_at(arn, shard.shard_id, START)
        server.advance(24 * 3600 - 5)
        assert keys(wire.read_at(arn, shard.shard_id, START)) == ["b"]
        assert wire.fails(wire.get, iterator) == ("ExpiredIteratorException", 400)

    @pytest.mark.parametrize("when", [None, START + timedelta(days=1)])
    def test_a_time_is_needed_and_not_in_the_future(self, wire, server, when):
        server.clock.stop(START.timestamp())
        arn = wire.create()
        code = wire.fails(wire.iterator_at, arn, only(wire.ids(arn)), when)
        assert code == ("ValidationException", 400)

    @pytest.mark.parametrize(
        ("habit", "found"),
        [
            (TimeStart.OPEN_ONLY, "ValidationException"),
            (TimeStart.REFUSED, "ValidationException"),
            (TimeStart.FROM_THE_END, []),
            (TimeStart.FROM_THE_OLDEST, ["a"]),
        ],
    )
    def test_a_time_may_be_answered_in_other_ways(self, wire, server, habit, found):
        server.clock.stop(START.timestamp())
        arn = wire.create()
        wire.put("a")
        server.roll_over_all("orders")
        server.advance(10)
        server.habits.time_start = habit
        asked = arn, server.shards("orders")[0].shard_id, START + timedelta(seconds=5)
        if isinstance(found, str):
            assert wire.fails(wire.iterator_at, *asked) == (found, 400)
        else:
            assert keys(wire.read_at(*asked)) == found

    def test_an_unknown_shard_is_not_found(self, wire):
        arn = wire.create()
        code = wire.fails(wire.iterator, arn, "shardId-00000000000000000000-00000000")
        assert code == ("ResourceNotFoundException", 400)

    def test_an_iterator_lives_for_fifteen_minutes(self, wire, server):
        arn = wire.create()
        wire.put("a")
        iterator = wire.iterator(arn, only(wire.ids(arn)))
        server.advance(14 * 60)
        renewed = wire.get(iterator)["NextShardIterator"]
        server.advance(90)
        assert wire.fails(wire.get, iterator) == ("ExpiredIteratorException", 400)
        assert wire.get(renewed)["Records"] == []

    def test_all_can_be_expired(self, wire, server):
        arn = wire.create()
        wire.put("a")
        shard_id = only(wire.ids(arn))
        iterator = wire.iterator(arn, shard_id)
        server.expire_iterators()
        assert wire.fails(wire.get, iterator) == ("ExpiredIteratorException", 400)
        assert keys(wire.read(arn, shard_id)) == ["a"]

    @pytest.mark.parametrize("text", ["x", "====", "W10=", "bnVsbA==", "é"])
    def test_a_made_up_one_is_refused(self, wire, text):
        assert wire.fails(wire.get, text) == ("ValidationException", 400)

    def test_is_as_long_as_the_service_s(self, wire):
        arn = wire.create()
        assert 200 <= len(wire.iterator(arn, only(wire.ids(arn)))) <= 2048

    @given(st.text(max_size=40))
    def test_no_text_breaks_the_decoding(self, text):
        with pytest.raises(ServiceError, match="ValidationException"):
            ShardIterator.decoded(text)


class TestPages:
    def test_a_limit_is_kept(self, wire):
        arn = wire.create()
        for number in range(25):
            wire.put(f"k-{number}")
        iterator, sizes = wire.iterator(arn, only(wire.ids(arn))), []
        for _ in range(4):
            answer = wire.get(iterator, Limit=10)
            sizes.append(len(answer["Records"]))
            iterator = answer["NextShardIterator"]
        assert sizes == [10, 10, 5, 0]

    def test_a_page_has_a_thousand_records_at_most(self, wire, server):
        arn = wire.create()
        shard_id = only(wire.ids(arn))
        server.fill(shard_id, 1500, 300)
        iterator = wire.iterator(arn, shard_id)
        first = wire.get(iterator)
        assert len(first["Records"]) == 1000
        assert len(wire.get(first["NextShardIterator"])["Records"]) == 500
        records = wire.read(arn, shard_id)
        assert numbers(records) == sorted(set(numbers(records)))
        assert all(250 <= item_size(record["dynamodb"]["NewImage"]) <= 350 for record in records)

    def test_a_page_has_a_megabyte_at_most(self, wire, server):
        arn = wire.create()
        for number in range(8):
            wire.put(f"k-{number}", x={"S": "x" * 350_000})
        shard_id = only(wire.ids(arn))
        iterator, sizes = wire.iterator(arn, shard_id), []
        while len(sizes) < 4:
            answer = wire.get(iterator)
            sizes.append(len(answer["Records"]))
            iterator = answer["NextShardIterator"]
            assert int(answer["ResponseMetadata"]["HTTPHeaders"]["content-length"]) <= (1 << 20) + 1000
        assert sizes == [2, 2, 2, 2]
        server.habits.page_bytes = 1000
        assert len(wire.get(wire.iterator(arn, shard_id))["Records"]) == 1

    def test_pages_go_on_behind_a_trim(self, wire, server):
        arn = wire.create()
        for number in range(6):
            wire.put(f"k-{number}", x={"S": "x" * 400})
        shard_id = only(wire.ids(arn))
        records = wire.read(arn, shard_id)
        server.trim_records(shard_id, numbers(records)[2])
        size = max(len(orjson.dumps(record["dynamodb"]["NewImage"])) for record in records)
        server.habits.page_bytes = 2 * (size + 500)
        answer = wire.get(wire.iterator(arn, shard_id))
        assert keys(answer["Records"]) == ["k-3", "k-4"]
        wire.put("k-6")
        assert keys(wire.read(arn, shard_id)) == ["k-3", "k-4", "k-5", "k-6"]
        server.trim_records(shard_id)
        for number in range(7, 10):
            wire.put(f"k-{number}", x={"S": "x" * 400})
        assert keys(wire.get(wire.iterator(arn, shard_id))["Records"]) == ["k-7", "k-8"]

    def test_the_last_records_of_a_shard_come_with_its_end(self, wire, server):
        arn = wire.create()
        for key in "abc":
            wire.put(key)
        shard_id = only(wire.ids(arn))
        server.roll_over(shard_id)
        answer = wire.get(wire.iterator(arn, shard_id), Limit=3)
        assert len(answer["Records"]) == 3
        assert "NextShardIterator" not in answer
        answer = wire.get(wire.iterator(arn, shard_id), Limit=2)
        assert len(answer["Records"]) == 2
        last = wire.get(answer["NextShardIterator"])
        assert keys(last["Records"]) == ["c"]
        assert "NextShardIterator" not in last
        ending = server.shard(shard_id).end
        for number in (numbers(last["Records"])[0], ending):
            drained = wire.get(wire.iterator(arn, shard_id, "AFTER_SEQUENCE_NUMBER", number))
            assert drained["Records"] == []
            assert "NextShardIterator" not in drained

    def test_an_end_can_come_alone(self, wire, server):
        server.habits.separate_end = True
        arn = wire.create()
        wire.put("a")
        shard_id = only(wire.ids(arn))
        server.roll_over(shard_id)
        answer = wire.get(wire.iterator(arn, shard_id))
        assert keys(answer["Records"]) == ["a"]
        last = wire.get(answer["NextShardIterator"])
        assert last["Records"] == []
        assert "NextShardIterator" not in last

    @pytest.mark.parametrize("null", [False, True])
    def test_an_end_is_null_or_absent(self, wire, server, null):
        server.habits.null_iterator = null
        bodies = []
        wire.streams.meta.events.register(
            "before-parse.dynamodb-streams.GetRecords",
            lambda response_dict, **_: bodies.append(orjson.loads(response_dict["body"])),
        )
        arn = wire.create()
        shard_id = only(wire.ids(arn))
        wire.get(wire.iterator(arn, shard_id))
        server.roll_over(shard_id)
        assert wire.get(wire.iterator(arn, shard_id)).get("NextShardIterator") is None
        assert isinstance(bodies[0]["NextShardIterator"], str)
        assert bodies[1] == ({"Records": [], "NextShardIterator": None} if null else {"Records": []})


class TestNumbers:
    def test_grow_as_integers_and_not_as_texts(self, wire):
        arn = wire.create()
        for number in range(12):
            wire.put(f"k-{number}")
        shard_id = only(wire.ids(arn))
        texts = [record["dynamodb"]["SequenceNumber"] for record in wire.read(arn, shard_id)]
        assert texts == sorted(texts, key=int) != sorted(texts)
        assert {len(text) for text in texts} == {21, 22}

    @pytest.mark.parametrize("act", ["split", "roll_over", "roll_over_all"])
    def test_every_generation_crosses_a_power_of_ten(self, wire, server, act):
        arn = wire.create()
        for generation in range(4):
            shard_id = server.open_shards("orders")[0]
            for number, key in enumerate(server.keys_of(shard_id, 8)):
                item = {**key, "n": {"N": f"{generation}{number}"}}
                wire.tables.put_item(TableName="orders", Item=item)
            texts = [record["dynamodb"]["SequenceNumber"] for record in wire.read(arn, shard_id)]
            assert len(texts) == 8
            assert len({len(text) for text in texts}) == 2
            getattr(server, act)("orders" if act == "roll_over_all" else shard_id)

    def test_stay_within_the_model_and_grow(self):
        sequence, last = Numbers(), 0
        for _ in range(100):
            for _ in range(20):
                assert last < sequence.next() < 10**40
                last = sequence.last
                assert 21 <= len(str(last)) <= 40
            sequence.leap()


class TestTrim:
    @pytest.fixture
    def arn(self, wire):
        arn = wire.create()
        for key in "abcd":
            wire.put(key)
        return arn

    @pytest.fixture
    def shard_id(self, wire, arn):
        return only(wire.ids(arn))

    def test_records_up_to_a_number(self, wire, server, arn, shard_id):
        found = numbers(wire.read(arn, shard_id))
        early, exact = (wire.iterator(arn, shard_id, "AFTER_SEQUENCE_NUMBER", number) for number in found[:2])
        horizon = wire.iterator(arn, shard_id)
        server.trim_records(shard_id, found[1])
        assert wire.fails(wire.get, early) == ("TrimmedDataAccessException", 400)
        assert keys(wire.get(exact)["Records"]) == ["c", "d"]
        assert keys(wire.get(horizon)["Records"]) == ["c", "d"]
        for kind, number in (("AFTER", found[0]), ("AT", found[1])):
            code = wire.fails(wire.iterator, arn, shard_id, f"{kind}_SEQUENCE_NUMBER", number)
            assert code == ("TrimmedDataAccessException", 400)
        assert server.shard(shard_id).trimmed_to == found[1]

    def test_a_whole_shard_of_records(self, wire, server, arn, shard_id):
        latest = wire.iterator(arn, shard_id, "LATEST")
        wire.put("e")
        server.trim_records(shard_id)
        assert wire.fails(wire.get, latest) == ("TrimmedDataAccessException", 400)
        idle = wire.iterator(arn, shard_id, "LATEST")
        assert wire.read(arn, shard_id) == []
        wire.put("f")
        assert keys(wire.read(arn, shard_id)) == keys(wire.get(idle)["Records"]) == ["f"]

    @pytest.mark.parametrize("first", ["nothing to show", "a record", "an empty page"])
    def test_after_its_first_page_the_horizon_loses_what_is_trimmed(self, wire, server, first):
        arn = wire.create()
        shard_id = only(wire.ids(arn))
        if first != "nothing to show":
            wire.put("a")
        if first == "an empty page":
            server.troubles.empty_pages(1)
        iterator = wire.get(wire.iterator(arn, shard_id))["NextShardIterator"]
        wire.put("b")
        assert keys(wire.get(iterator)["Records"])[-1] == "b"
        server.trim_records(shard_id)
        assert wire.fails(wire.get, iterator) == ("TrimmedDataAccessException", 400)

    def test_everything_so_far(self, wire, server, arn, shard_id):
        before = wire.iterator(arn, shard_id, "AFTER_SEQUENCE_NUMBER", numbers(wire.read(arn, shard_id))[0])
        child = server.roll_over(shard_id)
        wire.put("e")
        server.trim("orders")
        assert wire.ids(arn) == [child]
        assert wire.listed(arn)[0]["ParentShardId"] == shard_id
        assert wire.read(arn, child) == []
        assert wire.fails(wire.get, before) == ("ResourceNotFoundException", 400)
        wire.put("f")
        assert keys(wire.read(arn, child)) == ["f"]

    def test_by_age(self, wire, server, arn, shard_id):
        server.advance(3600)
        wire.put("e")
        server.trim("orders", older_than=1800)
        assert keys(wire.read(arn, shard_id)) == ["e"]

    def test_a_day_later_it_happens_by_itself(self, wire, server, arn, shard_id):
        child = server.roll_over(shard_id)
        server.advance(23 * 3600)
        wire.put("e")
        assert keys(wire.read(arn, shard_id)) == [*"abcd"]
        server.advance(3601)
        assert wire.ids(arn) == [child]
        assert keys(wire.read(arn, child)) == ["e"]

    def test_a_trimmed_shard_may_be_listed(self, wire, server, arn, shard_id):
        server.roll_over(shard_id)
        server.drop_shards([shard_id], Remains.LISTED)
        assert shard_id in wire.ids(arn)
        for kind in ("TRIM_HORIZON", "LATEST"):
            iterator = wire.iterator(arn, shard_id, kind)
            assert wire.fails(wire.get, iterator) == ("TrimmedDataAccessException", 400)

    def test_a_vanished_shard_may_be_listed(self, wire, server, arn, shard_id):
        server.roll_over(shard_id)
        server.habits.remains = Remains.VANISHED
        server.advance(25 * 3600)
        assert shard_id in wire.ids(arn)
        assert wire.fails(wire.get, wire.iterator(arn, shard_id)) == ("ResourceNotFoundException", 400)

    def test_the_oldest_shards(self, wire, server, arn):
        server.grow("orders", total=20, open_shards=2)
        before = wire.ids(arn)
        gone = server.drop_oldest("orders", 7)
        assert gone == before[:7]
        assert wire.ids(arn) == before[7:]
        assert wire.listed(arn)[0]["ParentShardId"] in gone

    def test_an_open_shard_is_not_dropped(self, server, shard_id):
        with pytest.raises(ValueError, match="is open"):
            server.drop_shards([shard_id])


class TestDeletesByExpiry:
    @pytest.mark.parametrize("lower", [False, True])
    def test_say_who_deleted(self, wire, server, lower):
        server.habits.lower_case_identity = lower
        arn = wire.create()
        wire.put("a")
        server.expire_item("orders", {"id": {"S": "a"}})
        record = wire.read(arn, only(wire.ids(arn)))[1]
        assert record["eventName"] == "REMOVE"
        # boto3 supports only the upper case.
        identity = {"PrincipalId": "dynamodb.amazonaws.com", "Type": "Service"}
        assert record["userIdentity"] == ({} if lower else identity)

    def test_need_an_item(self, wire, server):
        wire.create()
        with pytest.raises(KeyError, match="there is no item"):
            server.expire_item("orders", {"id": {"S": "a"}})


class TestPoison:
    @pytest.mark.parametrize("kind", Poison, ids=lambda kind: kind.value)
    def test_comes_between_good_records(self, wire, server, kind):
        arn = wire.create()
        bodies = []
        wire.streams.meta.events.register(
            "before-parse.dynamodb-streams.GetRecords", lambda response_dict, **_: raw(response_dict, bodies)
        )
        wire.put("a")
        number = server.poison("orders", {"id": {"S": "p"}}, kind)
        wire.put("b")
        wire.get(wire.iterator(arn, only(wire.ids(arn))))
        first, poison, last = bodies[0]["Records"]
        assert [record["dynamodb"]["Keys"]["id"]["S"] for record in (first, last)] == ["a", "b"]
        assert poison["dynamodb"]["SequenceNumber"] == str(number)
        image = poison["dynamodb"]["NewImage"]
        expected = {
            Poison.NUMBER: image.get("poison") == {"N": "twelve"},
            Poison.TAG: image.get("poison") == {"Q": "?"},
            Poison.BINARY: image.get("poison") == {"B": "*"},
            Poison.EVENT_NAME: poison["eventName"] == "UPSERT",
            Poison.KEYS: "Keys" not in poison["dynamodb"],
        }
        assert [each for each, there in expected.items() if there] == [kind]

    def test_is_in_the_keys_where_there_is_no_image(self, wire, server):
        arn = wire.create(view="KEYS_ONLY")
        server.poison("orders", {"id": {"S": "p"}})
        record = only(wire.read(arn, only(wire.ids(arn))))
        assert record["dynamodb"]["Keys"] == {"id": {"N": "twelve"}}

    def test_any_record_can_be_written(self, wire, server):
        arn = wire.create()
        server.write_record("orders", {"id": {"S": "p"}}, lambda record: record.pop("eventID"))
        assert "eventID" not in only(wire.read(arn, only(wire.ids(arn))))

    def test_a_change_of_the_image_leaves_the_keys(self, wire, server):
        def change(record):
            record["dynamodb"]["NewImage"]["id"]["S"] = "other"

        arn = wire.create()
        server.write_record("orders", {"id": {"S": "p"}}, change)
        assert keys(wire.read(arn, only(wire.ids(arn)))) == ["p"]


def raw(response_dict, bodies):
    bodies.append(orjson.loads(response_dict["body"]))
    response_dict["body"] = b"{}"


class TestTroubles:
    @pytest.mark.parametrize("code", KNOWN)
    def test_every_error_comes_as_it_is(self, wire, server, code):
        trouble = server.troubles.fail("ListStreams", code)
        assert wire.fails(wire.streams.list_streams) == (code, KNOWN[code].status)
        assert trouble.happened == 1
        wire.streams.list_streams()

    def test_an_error_has_its_message_and_status(self, wire, server):
        server.troubles.fail("ListStreams", "Odd", message="so", status=418, retry_after=0.5)
        with pytest.raises(wire.streams.exceptions.ClientError) as caught:
            wire.streams.list_streams()
        assert caught.value.response["Error"] == {"Code": "Odd", "Message": "so"}
        metadata = caught.value.response["ResponseMetadata"]
        assert metadata["HTTPStatusCode"] == 418
        assert metadata["HTTPHeaders"]["x-amz-retry-after"] == "500"

    def test_modelled_errors_are_those_of_boto3(self, wire, server):
        exceptions = wire.streams.exceptions
        for raised in (
            exceptions.ExpiredIteratorException,
            exceptions.InternalServerError,
            exceptions.LimitExceededException,
            exceptions.ResourceNotFoundException,
            exceptions.TrimmedDataAccessException,
        ):
            server.troubles.fail("GetRecords", raised.__name__)
            with pytest.raises(raised):
                wire.get("x")

    def test_every_call_can_fail_until_it_is_over(self, wire, server):
        trouble = server.troubles.fail(None, "ExpiredTokenException", times=None)
        for call in (wire.tables.list_tables, wire.streams.list_streams, wire.create):
            assert wire.fails(call) == ("ExpiredTokenException", 400)
        trouble.end()
        wire.create()
        assert trouble.happened == 3

    def test_the_next_calls_of_one_shard_fail(self, wire, server):
        server.habits.initial_shards = 2
        arn = wire.create()
        bad, good = (wire.iterator(arn, shard_id) for shard_id in wire.ids(arn))
        server.troubles.fail("GetRecords", "ThrottlingException", times=2, shard=wire.ids(arn)[0])
        wire.get(good)
        for _ in range(2):
            assert wire.fails(wire.get, bad) == ("ThrottlingException", 400)
        wire.get(bad)

    def test_every_other_call_fails(self, wire, server):
        trouble = server.troubles.fail("ListStreams", "ServiceUnavailable", times=2, every=2)
        outcomes = []
        for _ in range(6):
            try:
                wire.streams.list_streams()
                outcomes.append("ok")
            except botocore.exceptions.ClientError as error:
                outcomes.append(error.response["ResponseMetadata"]["HTTPStatusCode"])
        assert outcomes == ["ok", 503, "ok", 503, "ok", "ok"]
        assert trouble.happened == 2

    def test_troubles_come_one_after_the_other(self, wire, server):
        server.troubles.fail("ListStreams", "ThrottlingException")
        server.troubles.fail("ListStreams", "InternalServerError")
        codes = [wire.fails(wire.streams.list_streams)[0] for _ in range(2)]
        assert codes == ["ThrottlingException", "InternalServerError"]

    def test_renewed_iterators_expire_and_fresh_ones_do_not(self, wire, server):
        arn = wire.create()
        wire.put("a")
        fresh = wire.iterator(arn, only(wire.ids(arn)))
        server.troubles.expire(times=1)
        renewed = wire.get(fresh)["NextShardIterator"]
        assert wire.fails(wire.get, renewed) == ("ExpiredIteratorException", 400)
        wire.get(fresh)
        wire.get(renewed)

    def test_a_connection_is_dropped_before_the_answer(self, wire, server):
        wire.create()
        server.troubles.drop("DescribeTable")
        with pytest.raises(botocore.exceptions.ConnectionClosedError):
            wire.tables.describe_table(TableName="orders")
        wire.tables.describe_table(TableName="orders")

    def test_a_dropped_write_is_not_done_and_one_cut_off_is(self, wire, server):
        arn = wire.create()
        server.troubles.drop("PutItem")
        server.troubles.drop("PutItem", mid_body=True, reset=True)
        for key in "ab":
            with pytest.raises(botocore.exceptions.HTTPClientError):
                wire.put(key)
        assert keys(wire.read(arn, only(wire.ids(arn)))) == ["b"]

    def test_a_connection_is_reset_within_a_page_of_records(self, wire, server):
        arn = wire.create()
        trouble = server.troubles.drop("GetRecords", mid_body=True, reset=True, with_records=True)
        iterator = wire.iterator(arn, only(wire.ids(arn)))
        wire.get(iterator)
        wire.put("a")
        with pytest.raises(botocore.exceptions.ConnectionClosedError):
            wire.get(iterator)
        assert keys(wire.get(iterator)["Records"]) == ["a"]
        assert trouble.happened == 1

    def test_boto3_takes_a_page_that_was_cut_for_the_end_of_the_shard(self, wire, server):
        arn = wire.create()
        wire.put("a")
        iterator = wire.iterator(arn, only(wire.ids(arn)))
        server.troubles.drop("GetRecords", mid_body=True)
        assert wire.get(iterator).keys() == {"ResponseMetadata"}
        assert keys(wire.get(iterator)["Records"]) == ["a"]

    @pytest.mark.parametrize("argument", ["reset", "with_records"])
    def test_before_the_answer_nothing_is_known_of_it(self, server, argument):
        with pytest.raises(ValueError, match="only be used with mid_body"):
            server.troubles.drop("GetRecords", **{argument: True})

    def test_answers_are_late(self, wire, server):
        arn = wire.create()
        iterator = wire.iterator(arn, only(wire.ids(arn)))
        trouble = server.troubles.delay("GetRecords", 0.1)
        began = time.monotonic()
        wire.get(iterator)
        assert time.monotonic() - began >= 0.1
        assert server.journal.calls("GetRecords")[0].seconds >= 0.1
        trouble.end()
        wire.get(iterator)
        assert trouble.happened == 1

    def test_a_call_is_not_answered_until_it_is_over(self, wire, server):
        trouble = server.troubles.hang("ListTables")
        impatient = connected(server, "dynamodb", read_timeout=0.1)
        with pytest.raises(botocore.exceptions.ReadTimeoutError):
            impatient.list_tables()
        impatient.close()
        with ThreadPoolExecutor() as pool:
            call = pool.submit(wire.tables.list_tables)
            while trouble.happened < 2:
                time.sleep(0.001)
            assert not call.done()
            trouble.end()
            assert call.result()["TableNames"] == []

    def test_pages_are_empty_though_records_lie_behind(self, wire, server):
        server.habits.initial_shards = 2
        arn = wire.create()
        ids = wire.ids(arn)
        for shard_id in ids:
            server.fill(shard_id, 3)
            assert server.shard(shard_id).records == 3
        server.troubles.empty_pages(2)
        for shard_id in ids:
            iterator, sizes = wire.iterator(arn, shard_id), []
            for _ in range(4):
                answer = wire.get(iterator)
                sizes.append(len(answer["Records"]))
                iterator = answer["NextShardIterator"]
            assert sizes == [0, 0, 3, 0]

    def test_empty_pages_of_a_closed_shard_are_not_its_end(self, wire, server):
        arn = wire.create()
        wire.put("a")
        shard_id = only(wire.ids(arn))
        number = only(numbers(wire.read(arn, shard_id)))
        server.roll_over(shard_id)
        server.troubles.empty_pages(1, shard=shard_id)
        answer = wire.get(wire.iterator(arn, shard_id, "AT_SEQUENCE_NUMBER", number))
        assert answer["Records"] == []
        assert keys(wire.get(answer["NextShardIterator"])["Records"]) == ["a"]

    def test_something_happens_while_a_page_is_under_way(self, wire, server):
        arn = wire.create()
        shard_id = only(wire.ids(arn))
        trouble = server.troubles.act(lambda: server.split(shard_id))
        iterator = wire.get(wire.iterator(arn, shard_id))["NextShardIterator"]
        assert server.shard(shard_id).is_open
        wire.put("a")
        answer = wire.get(iterator)
        assert keys(answer["Records"]) == ["a"]
        assert not server.shard(shard_id).is_open
        assert "NextShardIterator" not in wire.get(answer["NextShardIterator"])
        assert trouble.happened == 1

    def test_all_end_together(self, wire, server):
        server.troubles.fail(None, "ThrottlingException", times=None)
        server.troubles.drop(None, times=None)
        server.troubles.end()
        wire.create()


class TestJournal:
    def test_every_call_is_there(self, wire, server):
        arn = wire.create()
        wire.put("a")
        shard_id = only(wire.ids(arn))
        wire.get(wire.iterator(arn, shard_id), Limit=5)
        wire.fails(wire.get, "x")
        assert [call.operation for call in server.journal.calls()] == [
            "CreateTable",
            "PutItem",
            "DescribeStream",
            "GetShardIterator",
            "GetRecords",
            "GetRecords",
        ]
        asked = only(server.journal.calls("GetShardIterator", shard_id))
        assert (asked.iterator_type, asked.stream, asked.code) == ("TRIM_HORIZON", arn, None)
        good, bad = server.journal.calls("GetRecords")
        assert (good.shard, good.records, good.limit, good.code) == (shard_id, 1, 5, None)
        assert (bad.shard, bad.records, bad.code) == (None, 0, "ValidationException")
        assert good.began + good.seconds <= bad.began

    def test_counts_by_operation_and_shard(self, wire, server):
        server.habits.initial_shards = 2
        arn = wire.create()
        first, second = wire.ids(arn)
        for shard_id, times in ((first, 3), (second, 2)):
            iterator = wire.iterator(arn, shard_id)
            for _ in range(times):
                wire.get(iterator)
        count = server.journal.count
        assert (count("GetRecords"), count("GetRecords", first), count(None, second)) == (5, 3, 3)
        assert count() == 1 + 1 + 2 + 5
        server.journal.clear()
        assert (count(), server.journal.calls()) == (0, [])

    def test_notes_what_was_dropped(self, wire, server):
        server.troubles.drop("ListTables")
        with pytest.raises(botocore.exceptions.ConnectionClosedError):
            wire.tables.list_tables()
        assert only(server.journal.calls()).code == "dropped"

    def read_together(self, wire, arn, readers):
        shard_id = only(wire.ids(arn))
        iterator = wire.iterator(arn, shard_id)
        trouble = wire.server.troubles.hang("GetRecords")
        with ThreadPoolExecutor(readers) as pool:
            calls = [pool.submit(wire.get, iterator) for _ in range(readers)]
            while wire.server.journal.count("GetRecords") < readers:
                time.sleep(0.001)
            trouble.end()
        return shard_id, [call.exception() for call in calls]

    def test_two_readers_of_a_shard_are_well(self, wire, server):
        arn = wire.create()
        self.read_together(wire, arn, 2)
        assert server.journal.most_readers == 2
        assert server.journal.violations == []

    def test_a_third_reader_is_one_too_many(self, wire, server):
        arn = wire.create()
        shard_id, errors = self.read_together(wire, arn, 3)
        assert errors == [None] * 3
        assert server.journal.violations == [Violation("GetRecords", shard_id, 3)]

    def test_a_third_reader_can_be_refused(self, wire, server):
        server.habits.enforce_limits = True
        arn = wire.create()
        _, errors = self.read_together(wire, arn, 3)
        refused = only([error for error in errors if error])
        assert refused.response["Error"]["Code"] == "LimitExceededException"
        # Calls that have ended are no longer counted.
        assert self.read_together(wire, arn, 2)[1] == [None] * 2

    def test_listings_are_counted_by_the_second(self):
        now = iter([0.0, 0.5, 0.9, 1.1, 1.4, 9.0])
        journal = Journal(Habits(describes_per_second=3), lambda: next(now))
        assert [journal.enter("DescribeStream", None, "arn") for _ in range(6)] == [
            *[True] * 4,
            False,
            True,
        ]
        assert journal.most_describes == 4
        assert journal.violations == [Violation("DescribeStream", "arn", 4)]

    def test_too_many_listings_can_be_refused(self, wire, server):
        arn = wire.create()
        server.habits.describes_per_second = 0
        wire.ids(arn)
        assert server.journal.violations == [Violation("DescribeStream", arn, 1)]
        server.habits.enforce_limits = True
        assert wire.fails(wire.ids, arn) == ("LimitExceededException", 400)
        server.habits.describes_per_second = 100
        wire.ids(arn)


class TestReference:
    """Tests the facts on which the DynamoDB provider relies."""

    def test_limits_of_the_service_model(self, wire):
        arn = wire.create()
        iterator = wire.iterator(arn, only(wire.ids(arn)))
        # boto3 checks lengths and the lowest value. The server refuses other invalid values.
        for call, named in (
            (wire.streams.describe_stream, {"StreamArn": arn, "Limit": 101}),
            (wire.streams.list_streams, {"Limit": 101}),
            (wire.streams.get_records, {"ShardIterator": iterator, "Limit": 1001}),
        ):
            assert wire.fails(call, **named) == ("ValidationException", 400)

    @pytest.mark.parametrize(
        ("operation", "named"),
        [
            ("describe_stream", {"StreamArn": "a" * 36}),
            ("describe_stream", {"StreamArn": "a" * 1025}),
            ("describe_stream", {"StreamArn": "a" * 40, "ExclusiveStartShardId": "s" * 27}),
            ("describe_stream", {"StreamArn": "a" * 40, "Limit": 0}),
            ("describe_stream", {}),
            ("get_records", {"ShardIterator": ""}),
            ("get_records", {"ShardIterator": "x" * 2049}),
            ("get_records", {"ShardIterator": "x", "Limit": 0}),
        ],
    )
    def test_lengths_are_checked(self, wire, server, operation, named):
        unchecked = connected(server, "dynamodbstreams", parameter_validation=False)
        assert wire.fails(getattr(unchecked, operation), **named) == ("ValidationException", 400)
        unchecked.close()

    @pytest.mark.parametrize("length", [20, 41])
    def test_sequence_numbers_have_21_to_40_digits(self, wire, server, length):
        arn = wire.create()
        unchecked = Wire(server)
        unchecked.streams = connected(server, "dynamodbstreams", parameter_validation=False)
        code = wire.fails(unchecked.iterator, arn, only(wire.ids(arn)), "AT_SEQUENCE_NUMBER", "1" * length)
        assert code == ("ValidationException", 400)
        unchecked.close()

    def test_identifiers_pass_the_checks_of_boto3(self, wire, server):
        arn = wire.create("abc")
        server.grow("abc", total=200, open_shards=4)
        assert 37 <= len(arn) <= 1024
        for shard in wire.listed(arn):
            assert 28 <= len(shard["ShardId"]) <= 65
            for number in shard["SequenceNumberRange"].values():
                assert 21 <= len(number) <= 40
                wire.iterator(arn, shard["ShardId"], "AT_SEQUENCE_NUMBER", number)

    def test_an_error_has_the_shape_of_the_service(self, server):
        headers = {"Authorization": "x", "X-Amz-Target": "DynamoDBStreams_20120810.GetRecords"}
        server.troubles.fail("GetRecords", "TrimmedDataAccessException")
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(urllib.request.Request(server.endpoint_url, b"{}", headers))
        with caught.value as answer:
            body = orjson.loads(answer.read())
            assert answer.headers["Content-Type"] == "application/x-amz-json-1.0"
            assert "x-amz-crc32" not in answer.headers
        assert body["__type"] == "com.amazonaws.dynamodb.v20120810#TrimmedDataAccessException"
        assert body.keys() == {"__type", "message"}

    def test_the_key_schema_and_the_view_are_in_the_description(self, wire):
        arn = wire.create(view="OLD_IMAGE", sort_key=True)
        page = only(wire.pages(arn))
        assert page["StreamArn"] == arn
        assert arn.endswith(page["StreamLabel"])
        assert page["TableName"] == "orders"
        assert page["StreamStatus"] == "ENABLED"
        assert page["StreamViewType"] == "OLD_IMAGE"
        assert [each["KeyType"] for each in page["KeySchema"]] == ["HASH", "RANGE"]
        assert START <= page["CreationRequestDateTime"] < START + timedelta(minutes=1)

    def test_the_hook_before_the_parser_works(self, wire):
        arn = wire.create()
        wire.put("a", b={"B": b"\0"})

        def hook(response_dict, customized_response_dict, **_):
            customized_response_dict.update(orjson.loads(response_dict["body"]))
            response_dict["body"] = b"{}"

        wire.streams.meta.events.register("before-parse.dynamodb-streams.GetRecords", hook)
        change = only(wire.get(wire.iterator(arn, only(wire.ids(arn))))["Records"])["dynamodb"]
        assert change["NewImage"]["b"] == {"B": "AA=="}
        assert isinstance(change["ApproximateCreationDateTime"], int)

    def test_a_walk_over_the_lineage_loses_nothing(self, wire, server):
        """A read through the lineage loses no record, even if all kinds of faults happen at the same time."""
        server.habits.order = Order.SHUFFLED
        server.habits.late_children = 1
        server.habits.initial_shards = 2
        server.troubles.empty_pages(1)
        server.troubles.expire(times=3, every=2)
        arn = wire.create()
        rounds = itertools.count()
        for generation in range(5):
            for number in range(30):
                wire.put(f"k-{number}", n={"N": str(generation)})
            for shard_id in server.open_shards("orders"):
                (server.split if next(rounds) % 3 else server.roll_over)(shard_id)
        seen = Counter()
        latest = {}
        while len(seen) < 150:
            for shard in sorted(wire.listed(arn), key=lambda each: int(first_number(each))):
                for record in drained(wire, arn, shard["ShardId"]):
                    change = record["dynamodb"]
                    key = change["Keys"]["id"]["S"]
                    seen[key, change["NewImage"]["n"]["N"]] += 1
                    assert latest.get((key, shard["ShardId"]), 0) < int(change["SequenceNumber"])
                    latest[key, shard["ShardId"]] = int(change["SequenceNumber"])
            latest.clear()
        assert {generation for _, generation in seen} == {*"01234"}


def first_number(shard):
    return shard["SequenceNumberRange"]["StartingSequenceNumber"]


def drained(wire, arn, shard_id):
    """Return all records that a shard contains now, even if the server is set to return faults."""
    records, last = [], None
    iterator = wire.iterator(arn, shard_id)
    empty = 0
    while iterator and empty < 3:
        try:
            page = wire.get(iterator, Limit=4)
        except wire.streams.exceptions.ExpiredIteratorException:
            kind = "TRIM_HORIZON" if last is None else "AFTER_SEQUENCE_NUMBER"
            iterator = wire.iterator(arn, shard_id, kind, last)
            continue
        records += page["Records"]
        if page["Records"]:
            last = page["Records"][-1]["dynamodb"]["SequenceNumber"]
        empty = 0 if page["Records"] else empty + 1
        iterator = page.get("NextShardIterator")
    return records


class TestHabits:
    def test_habits_can_be_given_at_the_start(self):
        with wired(habits=Habits(initial_shards=3), region="ap-south-1") as wire:
            arn = wire.create()
            assert len(wire.ids(arn)) == 3
            assert arn.split(":")[3] == "ap-south-1"

    def test_two_servers_share_nothing(self):
        with wired() as first, wired() as second:
            first.create()
            assert second.tables.list_tables()["TableNames"] == []


class TestAnswersOfOthers:
    def test_a_function_changes_an_answer_before_it_is_sent(self):
        with wired() as wire:
            arn = wire.create()
            trouble = wire.server.troubles.rewrite(
                lambda answer: answer["StreamDescription"].pop("StreamLabel"), 2, operation="DescribeStream"
            )
            found = [wire.streams.describe_stream(StreamArn=arn)["StreamDescription"] for _ in range(3)]
            assert ["StreamLabel" in each for each in found] == [False, False, True]
            assert trouble.happened == 2

    def test_requests_with_an_expired_key_are_refused(self):
        with wired() as wire:
            arn = wire.create()
            wire.server.habits.expired_keys.update({"scripted", "another"})
            with pytest.raises(wire.streams.exceptions.ClientError, match="ExpiredTokenException"):
                wire.streams.describe_stream(StreamArn=arn)
            wire.server.habits.expired_keys.remove("scripted")
            assert wire.ids(arn)
