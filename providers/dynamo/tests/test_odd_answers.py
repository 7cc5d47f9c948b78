"""Tests answers that the API allows or that other servers give: optional fields, endless listings, cycles."""

import binascii
import contextlib
import threading
import time
from types import SimpleNamespace

import attrs
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, PaginationError

from multiclouddb_api import (
    Beginning,
    ChangeFeedRequest,
    ClientConfig,
    ErrorCategory,
    FromContinuationToken,
    MulticloudDbError,
    MulticloudDbKey,
    NewItemStateMode,
    NotKnown,
    Now,
    OldItemStateMode,
    Resnapshot,
    Snapshot,
    connect,
)
from multiclouddb_conformance.refusals import refused
from multiclouddb_dynamo.client import Calls
from multiclouddb_dynamo.native import DynamoClients
from multiclouddb_dynamo.position import Horizon, cursor_of
from multiclouddb_dynamo.shards import Shard, ShardMap
from multiclouddb_dynamo.source import ReaderContext
from multiclouddb_dynamo_emulator import Remains, stream_calls
from multiclouddb_dynamo_emulator.service import Service
from multiclouddb_dynamo_emulator.stream import Stream
from multiclouddb_spi import Continue, Reached, RecordFault

from .world import ADDRESS, HOUR, TABLE, World, all_of, fetch, seconds, soon, state_of

PERMANENT = ErrorCategory.PERMANENT_FAILURE
STARTS = pytest.mark.parametrize("start", [Beginning(), Now()], ids=["beginning", "now"])
REQUIRE = NewItemStateMode.REQUIRE


def shards_of(answer):
    return answer["StreamDescription"]["Shards"]


def described(world, change):
    return world.troubles.rewrite(change, operation="DescribeStream")


def without_time(record):
    del record["dynamodb"]["ApproximateCreationDateTime"]


class TestOptionalFields:
    """In the API reference of DynamoDB Streams, no field of a record, a shard or a stream is required."""

    @pytest.mark.parametrize("size", [1, 0], ids=["pages of one", "one page"])
    def test_records_without_a_time_have_the_time_of_the_record_before(self, world, size):
        world.put("a")
        world.script.advance(HOUR)
        for name in ("b", "c"):
            world.script.write_record(
                TABLE,
                {"id": {"S": name}},
                lambda record: record["dynamodb"].pop("ApproximateCreationDateTime"),
            )
        world.script.advance(HOUR)
        world.put("d")
        consumer = world.consumer(max_page_size=size)
        while not consumer.read().idle:
            consumer.restart()
        first, *later, last = consumer.events
        assert [event.key["id"] for event in consumer.events] == ["a", "b", "c", "d"]
        assert {event.timestamp for event in later} == {first.timestamp}
        assert (last.timestamp - first.timestamp).total_seconds() >= 2 * HOUR

    def test_a_first_record_without_a_time_is_at_most_as_old_as_the_oldest_record_can_be(self, world):
        world.script.write_record(TABLE, {"id": {"S": "a"}}, without_time)
        consumer = world.consumer()
        now = consumer.client.read_changes(ChangeFeedRequest(ADDRESS, Now())).diagnostics.watermark
        consumer.read()
        (event,) = consumer.events
        assert 0 < (now - event.timestamp).total_seconds() <= 24 * HOUR

    @pytest.mark.parametrize("native", [False, True])
    @pytest.mark.parametrize("kind", [int, float])
    def test_a_time_in_milliseconds_is_a_time(self, world, native, kind):
        def later(record):
            data = record["dynamodb"]
            data["ApproximateCreationDateTime"] = kind(data["ApproximateCreationDateTime"] * 1000)

        world.put("a")
        told = f'"ApproximateCreationDateTime": {10**12}, '
        for name in ("b", told):
            world.script.write_record(TABLE, {"id": {"S": name}}, later)
        consumer = world.consumer(max_page_size=1, include_native=native)
        while not consumer.read().idle:
            consumer.restart()
        assert [event.key["id"] for event in consumer.events] == ["a", "b", told]
        first, *later_ones = (event.timestamp for event in consumer.events)
        assert all(0 <= (each - first).total_seconds() < HOUR for each in later_ones)

    @pytest.mark.parametrize(
        "field", ["StreamStatus", "StreamViewType", "KeySchema", "CreationRequestDateTime"]
    )
    def test_a_stream_may_be_described_without(self, world, field):
        described(world, lambda answer: answer["StreamDescription"].pop(field))
        before = world.put("a")
        world.roll_over()
        assert world.consumer().until_idle() == before

    @pytest.mark.parametrize("empty", [{}, None], ids=["empty", "absent"])
    def test_an_open_shard_may_be_listed_without_its_numbers(self, world, empty):
        def change(answer):
            for shard in shards_of(answer):
                if "EndingSequenceNumber" not in shard["SequenceNumberRange"]:
                    shard["SequenceNumberRange"] = empty

        described(world, change)
        before = world.put("a")
        world.roll_over()
        after = world.put("b")
        consumer = world.consumer(max_page_size=1)
        consumer.read()
        consumer.restart().until_idle()
        assert consumer.markers == before + after

    def test_a_shard_without_its_first_number_may_have_lost_its_oldest_records(self):
        shards = [Shard("known", None, "9", "1", 0), Shard("unknown", None, "9", None, 0)]

        class Calls:
            def iterator(self, arn, shard_id, kind, seq):
                assert (shard_id, seq) == ("known", "1")

        assert ShardMap(Calls(), "arn").trimmed(shards, None) == {"unknown"}

    @pytest.mark.parametrize("parent", ["", None])
    def test_a_parent_without_a_name_is_none(self, world, parent):
        before = world.put("a")
        described(world, lambda answer: [shard.update(ParentShardId=parent) for shard in shards_of(answer)])
        assert world.consumer().until_idle() == before

    @pytest.mark.parametrize("member", ["Shards", "ShardId"])
    def test_a_listing_without_shards_is_never_a_stream_without_shards(self, world, member):
        def change(answer):
            found = answer["StreamDescription"] if member == "Shards" else shards_of(answer)[0]
            del found[member]

        trouble = described(world, change)
        world.put("a")
        consumer = world.consumer()
        with refused(ErrorCategory.TRANSIENT_FAILURE, member):
            consumer.read(seconds(1))
        trouble.end()
        assert consumer.until_idle() == [1]

    def test_an_answer_may_have_an_iterator_and_no_records(self, world):
        def change(answer):
            if not answer["Records"]:
                del answer["Records"]

        world.troubles.rewrite(change, operation="GetRecords")
        world.put("a")
        consumer = world.consumer()
        consumer.until_idle()
        world.put("b")
        consumer.until_idle()
        assert consumer.markers == [1, 2]

    @pytest.mark.parametrize("left", [{}, {"NextShardIterator": ""}], ids=["nothing", "an empty iterator"])
    def test_an_answer_that_says_nothing_does_not_end_a_shard(self, world, left):
        def change(answer):
            answer.clear()
            answer.update(left)

        world.put("a")
        consumer = world.consumer()
        consumer.until_idle()
        trouble = world.troubles.rewrite(change, operation="GetRecords")
        with pytest.raises(MulticloudDbError) as caught:
            consumer.read(seconds(1))
        assert (caught.value.category, caught.value.detail.retryable) == (
            ErrorCategory.TRANSIENT_FAILURE,
            True,
        )
        trouble.end()
        world.put("b")
        consumer.until_idle()
        assert consumer.markers == [1, 2]


@pytest.mark.parametrize(
    ("told", "by_hand"),
    [
        ({}, False),
        ({"Replicas": [{"RegionName": "eu-west-3"}]}, None),
        ({"GlobalTableVersion": "2019.11.21"}, None),
    ],
    ids=["one region", "replicas", "a replica"],
)
def test_with_replicas_only_an_expiry_that_is_named_is_known(world, told, by_hand):
    """The replicated delete of an item that has expired elsewhere looks like a delete of the application."""
    world.troubles.rewrite(lambda answer: answer["Table"].update(told), operation="DescribeTable")
    consumer = world.consumer()
    consumer.until_idle()
    world.put("a", "b")
    world.server.client().delete_item(TableName=TABLE, Key={"id": {"S": "a"}})
    world.script.expire_item(TABLE, {"id": {"S": "b"}})
    consumer.until_idle()
    found = {(event.key["id"], event.type.value): event.by_expiry for event in consumer.events}
    assert found == {
        ("a", "CREATE"): False, ("b", "CREATE"): False, ("a", "DELETE"): by_hand, ("b", "DELETE"): True
    }  # fmt: skip


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize(
    ("identity", "by_expiry"),
    [
        ({"PrincipalId": "dynamodb.amazonaws.com", "Type": "Service"}, True),
        ({"PrincipalId": "replication.dynamodb.amazonaws.com", "Type": "Service"}, None),
        ({"PrincipalId": "AIDACKCEVSQ6C2EXAMPLE", "Type": "IAMUser"}, False),
        ({"PrincipalId": "dynamodb.amazonaws.com"}, None),
        ({}, None),
        (None, False),
    ],
    ids=str,
)
def test_an_identity_that_is_not_known_says_nothing_about_expiry(world, identity, by_expiry, native):
    """localstack/localstack#11343 and scylladb/scylladb#26460 are about the spelling of this member."""
    world.put("a")
    world.server.client().delete_item(TableName=TABLE, Key={"id": {"S": "a"}})

    def told(answer):
        for record in answer["Records"]:
            if record["eventName"] == "REMOVE":
                record["userIdentity"] = identity

    world.troubles.rewrite(told, operation="GetRecords")
    consumer = world.consumer(include_native=native)
    consumer.until_idle()
    assert [event.by_expiry for event in consumer.events] == [False, by_expiry]


@pytest.mark.parametrize("native", [False, True])
def test_an_expiry_that_botocore_cannot_name_is_not_called_the_applications(world, native):
    """With native records, botocore parses the answer, and drops members that its model does not have."""
    world.habits.lower_case_identity = True
    world.put("a")
    world.script.expire_item(TABLE, {"id": {"S": "a"}})
    consumer = world.consumer(include_native=native)
    consumer.until_idle()
    assert [event.by_expiry for event in consumer.events] == [False, None if native else True]


@pytest.mark.parametrize("fails", [False, True])
def test_a_table_that_becomes_a_global_one_is_noticed(world, monkeypatch, fails):
    monkeypatch.setattr("multiclouddb_dynamo.source._REPLICAS_SECONDS", 0.0)
    consumer = world.consumer()
    for key in "ab":
        world.put(key)
        world.server.client().delete_item(TableName=TABLE, Key={"id": {"S": key}})
        consumer.until_idle()
        if fails:
            world.troubles.fail("DescribeTable", "InternalServerError", None)
        else:
            world.troubles.rewrite(
                lambda answer: answer["Table"].update(Replicas=[{"RegionName": "eu-west-3"}]),
                operation="DescribeTable",
            )
    found = [(event.key["id"], event.by_expiry) for event in consumer.events if event.type.value == "DELETE"]
    assert found == [("a", False), ("b", None)]


def without_iterator(answer):
    answer.pop("NextShardIterator", None)


def with_empty_iterator(answer):
    answer["NextShardIterator"] = ""


def with_bad_iterator(answer):
    answer["NextShardIterator"] = "None"


NO_ITERATOR = pytest.mark.parametrize(
    "no_iterator", [without_iterator, with_empty_iterator, with_bad_iterator]
)


class TestEndsAndNumbers:
    @pytest.fixture(autouse=True)
    def short_pauses(self, monkeypatch):
        monkeypatch.setattr("multiclouddb_dynamo.reader._MOST_PAUSE", 0.05)

    @STARTS
    @pytest.mark.parametrize("read", [0, 1], ids=["nothing read", "one read"])
    @pytest.mark.parametrize("times", [1, 2, 7])
    def test_an_open_shard_without_an_iterator_has_not_ended(self, start, read, times):
        """localstack/localstack#12483: DynamoDB Local leaves the iterator out now and then."""
        with World() as world:
            consumer = world.consumer(start)
            consumer.until_idle()
            world.put(*["a"][:read])
            consumer.until_idle()
            trouble = world.troubles.rewrite(without_iterator, times, operation="GetRecords")
            for _ in range(times + 2):
                consumer.read()
            trouble.end()
            world.put("b")
            consumer.restart().until_idle()
            world.roll_over()
            world.put("c")
            consumer.until_idle()
            assert consumer.markers == list(range(1, read + 3))

    @STARTS
    @NO_ITERATOR
    def test_a_server_that_never_sends_an_iterator_loses_nothing(self, start, no_iterator):
        with World() as world:
            world.troubles.rewrite(no_iterator, operation="GetRecords")
            consumer = world.consumer(start)
            for number in range(3):
                consumer.until_idle()
                world.put("a", "b")
                if number == 1:
                    world.roll_over()
                    world.put("c")
            consumer.until_idle()
            assert consumer.markers == list(range(1, 8))

    @NO_ITERATOR
    @pytest.mark.parametrize("late", [1, 2, 3, 7])
    def test_a_page_is_not_idle_before_the_service_has_said_whether_the_shard_is_open(
        self, monkeypatch, no_iterator, late
    ):
        """It may be asked seldom, and between two refused iterators it answers as an open shard does."""
        has_ended, left = ReaderContext.has_ended, [0]

        def asked(source, *about):
            left[0] -= 1
            return None if left[0] >= 0 else has_ended(source, *about)

        monkeypatch.setattr(ReaderContext, "has_ended", asked)
        with World() as world:
            world.troubles.rewrite(no_iterator, operation="GetRecords")
            consumer = world.consumer()
            world.put("a")
            consumer.until_idle()
            world.roll_over()
            world.put("b")
            left[0] = late
            consumer.until_idle()
            assert consumer.markers == [1, 2]

    @pytest.mark.parametrize("end", ["", "None"])
    def test_a_shard_whose_end_is_not_told_by_null_ends(self, world, end):
        """An empty text (scylladb/scylladb#7237), or a name that the server itself refuses (LocalStack)."""

        def change(answer):
            if answer.get("NextShardIterator") is None:
                answer["NextShardIterator"] = end

        world.put("a", "b")
        world.roll_over()
        world.put("c")
        world.troubles.rewrite(change, operation="GetRecords")
        consumer = world.consumer(max_page_size=1)
        assert consumer.until_idle() == [1, 2, 3]
        world.enable(enabled=False)
        assert consumer.until_idle() == []

    def test_children_that_are_listed_late_do_not_make_a_feed_idle(self, world):
        """Until the service has said in both places that the shard has ended, its end is not known."""
        consumer = world.consumer()
        consumer.until_idle()
        (parent,) = world.open()
        world.roll_over()
        world.put("b")

        def hide(answer):
            listed = answer["StreamDescription"]["Shards"]
            listed[:] = [each for each in listed if each.get("ParentShardId") != parent]
            for each in listed:
                each["SequenceNumberRange"].pop("EndingSequenceNumber", None)

        trouble = described(world, hide)
        assert not any(consumer.read(seconds(1)).idle for _ in range(3))
        trouble.end()
        assert consumer.until_idle() == [1]

    def test_an_ended_shard_costs_at_most_one_more_iterator(self, world):
        world.put("a")
        consumer = world.consumer()
        consumer.until_idle()
        world.roll_over()
        world.put("b")
        world.journal.clear()
        consumer.until_idle()
        assert consumer.markers == [1, 2]
        assert world.journal.count("GetShardIterator") <= 2  # one is for the child

    @pytest.mark.parametrize("number", [None, "", "x1"])
    def test_a_record_without_a_number_is_told_after_what_precedes_it(self, world, number):
        """localstack/localstack#5018."""
        world.put("a")
        world.script.write_record(
            TABLE, {"id": {"S": "p"}}, lambda record: record["dynamodb"].update(SequenceNumber=number)
        )
        world.roll_over()  # the answer with the record is also the last of its shard
        world.put("b")
        consumer = world.consumer()
        with refused(ErrorCategory.PROVIDER_ERROR, "no valid sequence number"):
            consumer.until_idle()
        assert consumer.markers == [1]
        with refused(ErrorCategory.PROVIDER_ERROR):
            consumer.restart().until_idle()

    def test_records_that_are_repeated_for_ever_are_told(self, world):
        """scylladb/scylladb#6942: the last record came in place of none, again and again."""
        kept = []

        def change(answer):
            kept[:] = answer["Records"][-1:] or kept
            answer["Records"] = answer["Records"] or kept

        world.troubles.rewrite(change, operation="GetRecords")
        world.put("a", "b")
        consumer = world.consumer()
        with refused(PERMANENT, "repeats records"):
            consumer.until_idle()
        assert consumer.markers == [1, 2]


def cursor_in(token):
    (found,) = state_of(token)
    return found[1]


class TestServersThatNumberOtherwise:
    """ScyllaDB Alternator and LocalStack speak the protocol, but number and cut differently."""

    BATCH = 2

    @pytest.fixture
    def batches(self, world, monkeypatch):
        """Give all records of a batch one number, and answer with whole batches, whatever the Limit.

        Alternator does so (scylladb/scylladb#28439, #31608).
        """
        numbers = []
        original, answer_of = Calls.iterator, Calls.records

        def change(answer):
            for record in answer["Records"]:
                number = record["dynamodb"]["SequenceNumber"]
                if number not in numbers:
                    numbers.append(number)
                first = numbers.index(number) // self.BATCH * self.BATCH
                record["dynamodb"]["SequenceNumber"] = self.told(numbers, first)

        def iterator(calls, arn, shard_id, kind, seq=None):
            if kind == "AT_SEQUENCE_NUMBER":
                kind, seq = "AT_SEQUENCE_NUMBER", numbers[numbers.index(seq) - self.BATCH + 1]
            return original(calls, arn, shard_id, kind, seq)

        def records(calls, iterator, limit, *, native):
            whole = min(1000, limit + -limit % self.BATCH)
            return answer_of(calls, iterator, whole, native=native)

        def learn():
            provider, feed = world.feed()
            oldest = original(feed._source.calls, world.arn, world.chain(), "TRIM_HORIZON")
            found = feed._source.calls.records(oldest, 1000, native=False)["Records"]
            numbers[:] = [record["dynamodb"]["SequenceNumber"] for record in found]
            provider.close()
            world.troubles.rewrite(change, operation="GetRecords")
            monkeypatch.setattr(Calls, "iterator", iterator)
            monkeypatch.setattr(Calls, "records", records)
            return lambda: monkeypatch.setattr(Calls, "iterator", original)

        return learn

    @staticmethod
    def told(numbers, first):
        return numbers[min(first + TestServersThatNumberOtherwise.BATCH, len(numbers)) - 1]

    @pytest.mark.parametrize("batch", [2, 3])
    @pytest.mark.parametrize("size", [1, 2, 4, 0])
    def test_a_page_that_ends_between_records_of_one_number_loses_and_repeats_none(
        self, world, batches, monkeypatch, size, batch
    ):
        monkeypatch.setattr(type(self), "BATCH", batch)
        world.put(*"abcdef")
        batches()
        consumer = world.consumer(max_page_size=size)
        while not consumer.restart().read().idle:
            pass
        assert consumer.markers == [1, 2, 3, 4, 5, 6]

    def test_a_range_ends_between_records_of_one_number(self, world, batches):
        world.put(*"abcdef")
        batches()
        consumer = world.consumer(max_page_size=1)
        consumer.read()
        provider, feed = world.feed()
        name, until = world.chain(), cursor_in(consumer.token)
        batch = fetch(feed.open(name, cursor_of(Horizon(None)), until))
        assert all_of(batch) == [1]
        assert isinstance(batch.outcome, Reached)
        assert all_of(fetch(feed.open(name, until))) == [2, 3, 4, 5, 6]
        provider.close()

    def test_a_server_that_forgets_the_first_records_of_a_number_loses_none(self, world, batches):
        world.put(*"abcdef")
        forget = batches()
        consumer = world.consumer(max_page_size=1)
        consumer.read()
        forget()  # from now on, the number stands for the last record of its batch only
        while not consumer.restart().read().idle:
            pass
        assert consumer.markers == [1, 2, 3, 4, 5, 6]

    @pytest.mark.parametrize("ended", [True, False])
    def test_a_small_limit_that_hides_records_does_not_end_a_shard(self, world, monkeypatch, ended):
        """scylladb/scylladb#31582: a Limit below the size of a batch brings no records and no iterator."""
        original = Calls.records

        def records(calls, iterator, limit, *, native):
            answer = original(calls, iterator, limit, native=native)
            hides = limit < 4 and answer["Records"]
            return {"Records": [], "ResponseMetadata": answer["ResponseMetadata"]} if hides else answer

        monkeypatch.setattr(Calls, "records", records)
        written = world.put(*"abcdefgh")
        if ended:
            world.roll_over()
            written += world.put("i")
        assert world.consumer(max_page_size=1).until_idle() == written

    @pytest.mark.parametrize("event_id", ["79ac67bf", "E:0:0"], ids=["LocalStack", "Alternator"])
    def test_records_with_one_event_id_are_different_events(self, world, event_id):
        """localstack/localstack#5018, scylladb/scylladb#31294."""
        for name in "abc":
            world.script.write_record(
                TABLE, {"id": {"S": name}}, lambda record: record.update(eventID=event_id)
            )
        first, again = world.consumer(), world.consumer(max_page_size=1)
        for consumer in (first, again):
            while not consumer.read().idle:
                pass
        assert len({event.event_id for event in first.events}) == 3
        assert [event.event_id for event in first.events] == [event.event_id for event in again.events]

    def test_short_numbers_are_asked_for_in_the_length_that_boto3_accepts(self, world):
        world.put("a", "b")

        def change(answer):
            for record in answer["Records"]:
                record["dynamodb"]["SequenceNumber"] = record["dynamodb"]["SequenceNumber"].lstrip("0")[-19:]

        world.troubles.rewrite(change, operation="GetRecords")
        asked, original = [], Calls.iterator
        token = world.consumer(max_page_size=1).read().continuation_token
        number = cursor_in(token)[0]
        provider, feed = world.feed()
        feed._source.calls._clients.streams.meta.events.register(
            "before-parameter-build.dynamodb-streams.GetShardIterator",
            lambda params, **_: asked.append(params["SequenceNumber"]),
        )
        assert len(number) < 21
        with contextlib.suppress(ClientError):  # our server has other numbers
            original(feed._source.calls, world.arn, world.chain(), "AFTER_SEQUENCE_NUMBER", number)
        assert asked == [number.zfill(21)]
        provider.close()


class TestShortIds:
    """ExtendDB/extenddb#247: botocore refuses ids that are shorter than DynamoDB's before it sends them."""

    @pytest.fixture(autouse=True)
    def _short(self, monkeypatch):
        monkeypatch.setattr(stream_calls, "_SHARD_LENGTHS", (1, 65))
        add = Stream._add

        def short(stream, parent, low, high):
            shard = add(stream, parent, low, high)
            del stream.shards[shard.shard_id]
            shard.shard_id = f"s{len(stream.shards)}"
            stream.shards[shard.shard_id] = shard
            return shard

        monkeypatch.setattr(Stream, "_add", short)

    def test_their_shards_are_read(self, world):
        consumer = world.consumer(Now())
        consumer.read()
        markers = world.put("a", "b")
        world.roll_over()
        markers += world.put("c")
        while len(consumer.events) < 3:
            consumer.restart().read()
        assert consumer.markers == markers
        assert world.chain() == "s1"

    def test_a_client_that_refuses_them_is_named(self, world):
        tables, streams = (world.server.client(name) for name in ("dynamodb", "dynamodbstreams"))
        client = connect(ClientConfig("dynamo"), native_client=DynamoClients(tables, streams))
        with client, refused(ErrorCategory.INVALID_REQUEST, "ShardId", "parameter_validation=False"):
            client.read_changes(ChangeFeedRequest(ADDRESS, Beginning()), seconds(5))


class TestServersThatUseNumbersAgain:
    """A server with its stream in memory, or one that was restored, has other records under old numbers.

    floci-io/floci#2077: with the same ARN, the same shard and no refusal, everything up to the number of a
    position was left out.
    """

    @pytest.fixture(params=[True, False], ids=["numbers are refused", "numbers are taken"])
    def is_strict(self, request, monkeypatch):
        plain = stream_calls._position

        def position(stream, shard, arguments):
            kind, number = arguments.get("ShardIteratorType"), arguments.get("SequenceNumber")
            if number is None or request.param:
                return plain(stream, shard, arguments)
            return int(number) - (kind == "AT_SEQUENCE_NUMBER"), False

        monkeypatch.setattr(stream_calls, "_position", position)
        return request.param

    @pytest.mark.parametrize("new", [1, 6, 12])
    @pytest.mark.parametrize("is_idle", [True, False])
    @pytest.mark.parametrize("same_client", [True, False])
    def test_a_position_from_before_is_refused(self, world, is_strict, new, is_idle, same_client):
        consumer = world.consumer(max_page_size=3)
        saved = world.script.save()
        world.put(*"abcdef")
        while len(consumer.events) < 6 or (is_idle and not consumer.pages[-1].idle):
            consumer.read()
        world.script.restore(saved)
        world.script.advance(1)
        world.put(*map(str, range(new)))
        if same_client:  # a call has failed while the server was restarted
            trouble = world.troubles.fail("GetRecords", "InternalServerError", None)
            world.journal.clear()
            while not world.journal.count("GetRecords"):  # what was read ahead comes first
                with contextlib.suppress(MulticloudDbError):
                    consumer.read(seconds(0.5))
            trouble.end()
        else:
            consumer.restart()
        with refused(ErrorCategory.INVALID_REQUEST, "uses numbers again"):
            consumer.until_idle()
        assert consumer.markers == [1, 2, 3, 4, 5, 6]

    def test_a_reader_of_a_quiet_shard_asks_again(self, world, is_strict, monkeypatch):
        monkeypatch.setattr("multiclouddb_dynamo.last_record._SURE_SECONDS", 0.0)
        consumer = world.consumer()
        saved = world.script.save()
        world.put("a", "b")
        consumer.until_idle()
        world.script.restore(saved)
        world.put("c")
        with refused(ErrorCategory.INVALID_REQUEST, "uses numbers again"):
            consumer.until_idle()

    @pytest.mark.parametrize("is_strict", [False], indirect=True)
    def test_nothing_is_refused_as_long_as_nothing_is_left_out(self, world, is_strict):
        consumer = world.consumer()
        saved = world.script.save()
        world.put("a", "b")
        consumer.until_idle()
        world.script.restore(saved)
        assert consumer.restart().until_idle() == []
        world.put("c")
        with refused(ErrorCategory.INVALID_REQUEST, "uses numbers again"):
            consumer.restart().until_idle()

    def test_a_record_that_takes_many_answers_is_not_missing(self, world):
        world.put("a")
        consumer = world.consumer()
        consumer.until_idle()
        world.habits.empty_pages = 20
        world.put("b")
        consumer.restart().until_found([2])
        assert consumer.markers == [1, 2]

    def test_a_position_whose_record_is_trimmed_goes_on_behind_it(self, world):
        world.put("a", "b")
        consumer = world.consumer(max_page_size=1)
        consumer.read()
        world.script.trim_records(world.chain(), int(cursor_in(consumer.token)[0]))
        assert consumer.restart().until_idle() == [2]

    def test_a_missing_record_before_others_has_expired(self, world, is_strict):
        """Some servers trim records and refuse no number."""
        world.put("a", "b")
        consumer = world.consumer(max_page_size=1)
        consumer.read()
        world.troubles.rewrite(lambda answer: answer["Records"].pop(0), 1, operation="GetRecords")
        with refused(ErrorCategory.CHECKPOINT_EXPIRED, "is missing"):
            consumer.restart().read()


class TestServersThatTrimInSilence:
    """Records of such a server vanish, and it refuses no position before them."""

    @pytest.fixture(autouse=True)
    def silent(self, world):
        world.habits.refuses_trimmed = False

    @pytest.mark.parametrize("ends", [True, False])
    def test_a_reader_that_runs_needs_no_record_of_yesterday(self, world, monkeypatch, ends):
        """It makes sure of the record every few minutes, and others may have come when it does."""
        clock = SimpleNamespace(monotonic=world.script.clock.seconds)
        monkeypatch.setattr("multiclouddb_dynamo.last_record.time", clock)
        world.put("a")
        _, feed = world.feed()
        reader = feed.open(world.chain(), cursor_of(Horizon(None)))
        found = all_of(fetch(reader))
        for _ in range(24 * 5):
            world.script.advance(HOUR / 5)
            found += all_of(fetch(reader)) + all_of(fetch(reader))
        world.script.advance(120)
        assert world.script.shards(TABLE)[0].records == 0
        if ends:
            world.roll_over()
        else:
            world.put("b")
        batch = fetch(reader)
        while ends and isinstance(batch.outcome, Continue):
            batch = fetch(reader)
        assert found + all_of(batch) == ([1] if ends else [1, 2])

    @pytest.mark.parametrize("ends", [True, False])
    def test_what_nobody_has_read_is_not_passed_over(self, world, ends):
        consumer = world.consumer()
        world.put("a")
        consumer.until_idle()
        world.put("b")
        world.script.advance(HOUR)
        if ends:
            world.roll_over()
        world.habits.retention_seconds, before = 25 * HOUR, world.habits.retention_seconds
        world.script.advance(24 * HOUR)
        world.script.trim_records(world.script.shards(TABLE)[0].shard_id)
        world.habits.retention_seconds = before
        with refused(ErrorCategory.CHECKPOINT_EXPIRED, "is gone"):
            consumer.restart().until_idle()

    def test_a_position_of_today_goes_on(self, world):
        consumer = world.consumer()
        world.put("a")
        consumer.until_idle()
        world.script.trim_records(world.chain())
        world.script.advance(23 * HOUR)
        assert consumer.restart().until_idle() == []
        (new,) = world.put("b")
        consumer.until_found([new])


HALF = b"CUT-\\ud83d"
PLACES = {
    "a text": {"S": "MARK"},
    "a list": {"L": [{"S": "x"}, {"S": "MARK"}]},
    "a set": {"SS": ["MARK"]},
    "a name": {"M": {"MARK": {"N": "1"}}},
    "a key": None,
}


@pytest.mark.parametrize("idle", [0, 1, 3])
@pytest.mark.parametrize("remains", list(Remains), ids=lambda each: each.value)
def test_a_token_of_an_idle_feed_expires_as_any_other(world, idle, remains):
    """spiceai/spiceai#10754: a checkpoint that is older than 24 hours. An idle feed's has an iterator."""
    world.habits.remains = remains
    consumer = world.consumer()
    world.put("a")
    consumer.until_idle()
    for _ in range(idle):
        consumer.read()
    world.put("b")
    world.script.advance(26 * HOUR)
    world.put("c")
    consumer.restart()
    for _ in range(2):
        with pytest.raises(MulticloudDbError) as caught:
            consumer.read()
        assert caught.value.category is ErrorCategory.CHECKPOINT_EXPIRED
    consumer.request["on_expired"] = Resnapshot()
    consumer.until_idle()
    assert set(consumer.markers) == {1, 2, 3}


class TestTextWithoutUtf8:
    """JSON's escapes can hold half of a surrogate pair, but no form of an event can."""

    @pytest.fixture
    def halves(self, monkeypatch):
        """Let the service answer with half a pair in place of a mark, and take it back in requests."""
        original = Service.__call__

        def call(service, request):
            asked = request.body.replace(HALF, b"MARK")
            reply = original(service, attrs.evolve(request, body=asked))
            if reply is None:
                return None
            body = reply.body.replace(b"MARK", HALF)
            sums = {"x-amz-crc32": str(binascii.crc32(body))}
            return attrs.evolve(reply, body=body, headers={**reply.headers, **sums})

        monkeypatch.setattr(Service, "__call__", call)

    @staticmethod
    def read(client, position, native):
        """Return the keys up to the first idle page, and the errors whose record was skipped."""
        found, errors = [], []
        while True:
            try:
                request = ChangeFeedRequest(ADDRESS, position, include_native=native)
                page = client.read_changes(request, seconds(30))
            except MulticloudDbError as error:
                errors.append(error)
                if error.detail.skip_token is None:
                    return found, errors
                position = FromContinuationToken(error.detail.skip_token)
                continue
            found += [event.key["id"] for event in page.events]
            position = FromContinuationToken(page.continuation_token)
            if page.idle:
                return found, errors

    @staticmethod
    def put(world, where):
        service, second = world.server.client(), "bMARK" if where == "a key" else "b"
        for key, value in (("a", None), (second, PLACES[where]), ("c", None)):
            service.put_item(TableName=TABLE, Item={"id": {"S": key}, "v": value or {"S": "x"}})
        return service

    @pytest.mark.parametrize("form", ["events", "native", "own client"])
    @pytest.mark.parametrize("where", PLACES)
    @pytest.mark.parametrize("start", [Beginning(), Snapshot(segments=1)], ids=["stream", "snapshot"])
    def test_it_is_a_record_that_can_be_skipped(self, world, halves, start, where, form):
        service = self.put(world, where)
        own = DynamoClients(service, world.server.client("dynamodbstreams")) if form == "own client" else None
        config = ClientConfig("dynamo", {}) if own else world.config()
        with connect(config, native_client=own) as client:
            found, (error,) = self.read(client, start, form == "native")
        assert sorted(found) == ["a", "c"]
        assert error.category == ErrorCategory.PROVIDER_ERROR
        assert "CUT" not in error.message
        assert ("sequence" if start == Beginning() else "the key sha256:") in error.message

    @pytest.mark.parametrize("where", PLACES)
    @pytest.mark.parametrize("scans", [False, True], ids=["stream", "snapshot"])
    def test_arrow_refuses_the_same_records(self, world, halves, where, scans):
        self.put(world, where)
        provider, feed = world.feed()
        if scans:
            scan = feed.snapshot(1, soon())
            (segment,), _ = feed.segments(scan.scan, scan.rest, 8, soon())
            batch = fetch(feed.open_segment(segment))
        else:
            batch = fetch(feed.open(world.chain(), cursor_of(Horizon(None))))
        refusals = 0
        for index in range(3):
            try:
                assert len(batch.arrow(index, index + 1)) == 1
            except RecordFault:
                refusals += 1
        assert refusals == 1
        provider.close()

    @pytest.mark.parametrize("where", [each for each in PLACES if each != "a key"])
    def test_a_look_up_says_that_it_does_not_know(self, world, halves, where):
        world.server.client().put_item(TableName=TABLE, Item={"id": {"S": "b"}, "v": PLACES[where]})
        key = MulticloudDbKey({"id": "b"})
        with world.client() as client:
            answer = client.lookup(ADDRESS, [key], seconds(30))[key]
        assert isinstance(answer, NotKnown)
        assert "CUT" not in answer.reason


class TestDamagedAnswers:
    """The service sends a sum of each answer (`x-amz-crc32`), which botocore only checks for a retry."""

    @pytest.mark.parametrize(
        "retries", [None, {"mode": "standard", "total_max_attempts": 1}], ids=["ours", "own"]
    )
    @pytest.mark.parametrize("operation", ["GetRecords", "Scan", "BatchGetItem"])
    def test_a_damaged_answer_is_never_delivered(self, world, operation, retries):
        world.server.client().put_item(TableName=TABLE, Item={"id": {"S": "a"}, "n": {"S": "balance-100"}})
        connection = dict(world.config().connection)
        if retries is not None:
            connection["config"] = Config(retries=retries)
        with connect(ClientConfig("dynamo", connection)) as client:
            damage = world.troubles.damage(b"balance-100", b"balance-900", None, operation=operation)
            position = Beginning() if operation == "GetRecords" else Snapshot(segments=1)

            def read(limit):
                nonlocal position
                if operation == "BatchGetItem":
                    found = client.lookup(ADDRESS, [MulticloudDbKey({"id": "a"})], limit).values()
                else:
                    page = client.read_changes(ChangeFeedRequest(ADDRESS, position), limit)
                    position, found = FromContinuationToken(page.continuation_token), page.events
                return [each.new_item_state["n"] for each in found]

            with refused(ErrorCategory.TRANSIENT_FAILURE, "damaged"):
                for _ in range(3):
                    assert read(seconds(2)) == []  # the first page of a snapshot is its plan
            damage.end()
            found = []
            while not found:
                found = read(seconds(30))
            assert found == ["balance-100"]


class TestListingsThatNeverEnd:
    """scylladb/scylladb#8012: a listing whose pages repeat, or whose last page names an empty text."""

    @STARTS
    @pytest.mark.parametrize("open_shards", [1, 2])
    def test_repeated_pages_are_told_at_once(self, start, open_shards):
        with World(shards=open_shards, start_after_last=True) as world:

            def change(answer):
                last = shards_of(answer)[-1:] or [{"ShardId": world.open()[-1]}]
                answer["StreamDescription"]["LastEvaluatedShardId"] = last[0]["ShardId"]

            trouble = described(world, change)
            world.put("a")
            consumer = world.consumer(start)
            began = time.monotonic()
            with refused(PERMANENT, "the listing never ends"):
                consumer.read(seconds(30))
            assert time.monotonic() - began < 10
            assert world.journal.count("DescribeStream") <= 4
            trouble.end()
            consumer.until_idle()
            assert world.put("b") == consumer.until_idle()[-1:]

    @STARTS
    def test_an_empty_text_is_no_page(self, world, start):
        described(world, lambda answer: answer["StreamDescription"].update(LastEvaluatedShardId=""))
        consumer = world.consumer(start)
        consumer.until_idle()
        assert world.put("b") == consumer.until_idle()

    def test_a_scan_that_ends_where_it_begins_is_told(self, world):
        world.put("a", "b")
        world.troubles.rewrite(
            lambda answer: answer.update(LastEvaluatedKey={"id": {"S": "b"}}), operation="Scan"
        )
        with refused(PERMANENT, "the scan never ends"):
            world.consumer(Snapshot(segments=1)).until_idle()

    def test_repeated_pages_of_tables_are_told(self, world):
        world.troubles.rewrite(
            lambda answer: answer.update(LastEvaluatedTableName=TABLE), operation="ListTables"
        )
        provider, _ = world.feed()
        with pytest.raises(PaginationError, match="The same next token was received twice") as caught:
            provider.collections(None, soon())
        fault = provider.classify(caught.value)
        assert fault.category == PERMANENT
        assert "whoever runs the service" in fault.message


class TestCycles:
    """No server was seen with these; in scylladb/scylladb#28382 shards had wrong parents."""

    @STARTS
    @pytest.mark.parametrize("kind", ["its own parent", "each other's parents"])
    def test_shards_that_descend_from_themselves_are_told_and_nothing_spins(self, start, kind):
        def change(answer):
            found = shards_of(answer)
            for index, shard in enumerate(found):
                other = found[(index + 1) % len(found)] if kind == "each other's parents" else shard
                shard["ParentShardId"] = other["ShardId"]

        with World(shards=2) as world:
            world.roll_over()
            trouble = described(world, change)
            consumer = world.consumer(start)
            began = time.monotonic()
            for _ in range(2):  # what was read before the failure is not used
                with refused(PERMANENT, "descends from itself"):
                    consumer.read(seconds(20))
            assert time.monotonic() - began < 10
            trouble.end()
            consumer.until_idle()
            assert world.put("b") == consumer.until_idle()[-1:]
            consumer.client.close()
            assert not [each for each in threading.enumerate() if each.name.startswith("multiclouddb-shards")]

    def test_a_child_that_is_listed_as_an_ancestor_is_not_read_again(self, world):
        """Shards that are read are not listed again, so only the answer about children shows the cycle."""
        world.put("a")
        consumer = world.consumer()
        consumer.until_idle()
        oldest = world.chain()

        def change(answer):
            for shard in shards_of(answer):
                shard["ParentShardId"] = oldest if shard["ShardId"] != oldest else world.chain()

        world.roll_over()
        described(world, change)
        with refused(PERMANENT, "descends from itself"):
            for _ in range(20):
                consumer.read(seconds(5))
        assert consumer.markers == [1]


class TestRequiredImages:
    """`REQUIRE` holds for each record: its document is whole, or the read is refused."""

    def write(self, world, name, *lacking):
        def change(record):
            for image in lacking:
                del record["dynamodb"][image]
            record["dynamodb"]["StreamViewType"] = "KEYS_ONLY"

        return world.script.write_record(TABLE, {"id": {"S": name}}, change)

    @pytest.mark.parametrize("size", [1, 0], ids=["pages of one", "one page"])
    def test_what_precedes_a_record_without_its_image_is_delivered_first(self, world, size):
        world.put("a", "b")
        number = self.write(world, "c", "NewImage")
        world.put("d")
        consumer = world.consumer(max_page_size=size, new_item_state_mode=REQUIRE)
        with refused(ErrorCategory.UNSUPPORTED_CAPABILITY, str(number), "KEYS_ONLY", "INCLUDE_IF_AVAILABLE"):
            consumer.until_idle()
        assert consumer.markers == [1, 2]
        with refused(ErrorCategory.UNSUPPORTED_CAPABILITY):
            consumer.restart().read()
        other = world.consumer(FromContinuationToken(consumer.pages[-1].continuation_token))
        other.until_idle()
        assert [(event.key["id"], event.new_item_state is None) for event in other.events] == [
            ("c", True),
            ("d", False),
        ]

    @pytest.mark.parametrize("view", ["KEYS_ONLY", "NEW_IMAGE", "OLD_IMAGE"])
    def test_a_stream_that_was_disabled_keeps_the_promise(self, view):
        """The table no longer tells the type of its stream."""
        with World(view=view) as world:
            token = world.consumer().read().continuation_token
            world.put("a", "a")
            world.server.client().delete_item(TableName=TABLE, Key={"id": {"S": "a"}})
            world.enable(enabled=False)
            for modes, whole in (
                ({"new_item_state_mode": REQUIRE}, "NEW" in view),
                ({"old_item_state_mode": OldItemStateMode.REQUIRE}, "OLD" in view),
            ):
                consumer = world.consumer(FromContinuationToken(token), **modes)
                if whole:
                    consumer.until_idle()
                    assert len(consumer.events) == 3
                else:
                    with refused(ErrorCategory.UNSUPPORTED_CAPABILITY, "REQUIRE"):
                        consumer.until_idle()

    def test_records_that_have_no_such_item_need_none(self, world):
        world.put("a", "a")
        world.server.client().delete_item(TableName=TABLE, Key={"id": {"S": "a"}})
        modes = {"new_item_state_mode": REQUIRE, "old_item_state_mode": OldItemStateMode.REQUIRE}
        consumer = world.consumer(**modes)
        consumer.until_idle()
        found = [(event.new_item_state is None, event.old_item_state is None) for event in consumer.events]
        assert found == [(False, True), (False, False), (True, False)]
