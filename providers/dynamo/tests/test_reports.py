"""Tests what users of other readers reported, and what AWS documents; docs/reports.toml has the sources."""

import pytest
from botocore.awsrequest import AWSResponse
from botocore.exceptions import ClientError

from multiclouddb_api import (
    Beginning,
    ChangeFeedRequest,
    ClientConfig,
    ErrorCategory,
    Fail,
    FromContinuationToken,
    MulticloudDbError,
    MulticloudDbKey,
    NotKnown,
    Now,
    ResourceAddress,
    SkipToOldest,
    Snapshot,
    connect,
)
from multiclouddb_conformance.refusals import refused
from multiclouddb_dynamo import batch_item_failures, events_from_lambda
from multiclouddb_dynamo.capabilities import CEILING, MOST_DIGITS
from multiclouddb_dynamo.mapping import order_key
from multiclouddb_dynamo.shards import ShardMap
from multiclouddb_dynamo.snapshots import FLOOR
from multiclouddb_dynamo_emulator.store import Store
from multiclouddb_dynamo_emulator.stream import Stream
from multiclouddb_spi import ProviderFault

from .servers.server import REGION, session
from .world import ADDRESS, EXPIRED, TABLE, World, fetch, seconds, soon

GONE = "ResourceNotFoundException"
SAME = "shardId-00000000000000000001-00000001"
KEY_LOST = "INACCESSIBLE_ENCRYPTION_CREDENTIALS"
A = MulticloudDbKey({"id": "a"})


@pytest.fixture
def world():
    with World() as made:
        yield made


def described(world, **members):
    return world.troubles.rewrite(lambda answer: answer["Table"].update(members), operation="DescribeTable")


def read(world, start, client=None, **request):
    asked = ChangeFeedRequest(request.pop("address", ADDRESS), start, **request)
    return (client or world.client()).read_changes(asked, seconds(5))


class TestATableThatIsNotActive:
    """The service refuses calls for it and for its stream with the code for what does not exist."""

    @pytest.fixture
    def lock(self, world):
        """Return a function that lets the service refuse all calls, with this status of the table."""

        def lock(status):
            described(world, TableStatus=status)
            for operation in ("GetRecords", "GetShardIterator", "Scan", "BatchGetItem"):
                world.troubles.fail(operation, GONE, None)

        return lock

    @pytest.mark.parametrize("on_expired", [Fail(), SkipToOldest()], ids=["fail", "skip"])
    def test_its_changes_are_not_lost(self, world, lock, on_expired):
        world.put("a", "b")
        token = FromContinuationToken(read(world, Beginning(), max_page_size=1).continuation_token)
        lock(KEY_LOST)
        with refused(ErrorCategory.TRANSIENT_FAILURE, KEY_LOST, "KMS key") as caught:
            read(world, token, on_expired=on_expired)
        assert caught.value.detail.retryable
        world.troubles.end()
        page = read(world, token, on_expired=on_expired)
        assert ([event.key["id"] for event in page.events], page.notices) == (["b"], ())

    def test_a_shard_that_has_ended_is_not_left_out_at_the_beginning(self, world):
        world.put("a")
        (ended,) = world.open()
        world.roll_over()
        world.put("b")
        described(world, TableStatus=KEY_LOST)
        world.troubles.fail("GetShardIterator", GONE, None, shard=ended)
        with refused(ErrorCategory.TRANSIENT_FAILURE, KEY_LOST):
            read(world, Beginning())
        world.troubles.end()
        assert world.consumer().until_idle() == [1, 2]

    @pytest.mark.parametrize("start", [Now(), Snapshot()], ids=["now", "snapshot"])
    def test_a_start_says_why(self, world, lock, start):
        lock("CREATING")
        with refused(ErrorCategory.TRANSIENT_FAILURE, "CREATING", "wait until it is ACTIVE"):
            read(world, start)

    def test_a_scan_and_a_look_up_say_why(self, world):
        world.put("a")
        client = world.client()
        described(world, TableStatus=KEY_LOST)
        world.troubles.fail("Scan", GONE, None)
        world.troubles.fail("BatchGetItem", GONE, None)
        with refused(ErrorCategory.TRANSIENT_FAILURE, KEY_LOST):
            read(world, Snapshot(), client)
        with refused(ErrorCategory.TRANSIENT_FAILURE, KEY_LOST):
            client.lookup(ADDRESS, [A])

    @pytest.mark.parametrize("status", ["ARCHIVED", "ARCHIVING", "DELETING"])
    def test_one_that_will_never_be_active_again_is_not_waited_for(self, world, lock, status):
        world.put("a", "b")
        token = FromContinuationToken(read(world, Beginning(), max_page_size=1).continuation_token)
        lock(status)
        with refused(ErrorCategory.NOT_FOUND, status, "is another table") as caught:
            read(world, token)
        assert not caught.value.detail.retryable

    def test_no_shard_is_taken_for_gone(self):
        """What is once taken for gone is never asked for again."""
        fault = ProviderFault.of(ErrorCategory.TRANSIENT_FAILURE, "not now", retryable=True)

        class Calls:
            def iterator(self, *_):
                raise ClientError({"Error": {"Code": GONE}}, "GetShardIterator")

        def check():
            if faults:
                raise faults.pop()

        faults, shards = [fault], ShardMap(Calls(), "arn", check)
        with pytest.raises(ProviderFault, match="not now"):
            shards.gone(["one"], soon())
        assert shards.gone(["one"], soon()) == {"one"}


def test_a_stream_that_is_being_enabled_is_waited_for(world):
    enabling = world.troubles.rewrite(
        lambda answer: answer["Table"].pop("LatestStreamArn"), operation="DescribeTable"
    )
    with refused(ErrorCategory.TRANSIENT_FAILURE, "is being enabled") as caught:
        read(world, Beginning())
    assert caught.value.detail.retryable
    enabling.end()
    assert read(world, Beginning()).events == ()


@pytest.mark.parametrize("start", [Beginning(), Now()], ids=["beginning", "now"])
def test_a_stream_without_shards_is_no_start(world, start):
    def change(answer):
        answer["StreamDescription"] |= {"StreamStatus": "ENABLING", "Shards": []}

    enabling = world.troubles.rewrite(change, operation="DescribeStream")
    with refused(ErrorCategory.TRANSIENT_FAILURE, "names no partition"):
        read(world, start)
    enabling.end()
    consumer = world.consumer(start)
    consumer.read()
    assert consumer.restart().until_idle() + world.put("a") == [1]
    assert consumer.until_idle() == [1]


@pytest.mark.parametrize("seq", ["0", "0" * 21, "1", "9" * 40, "9" * MOST_DIGITS])
def test_every_change_is_above_the_rows_of_a_snapshot_and_below_the_ceiling(seq):
    """A server may count from 0, and LocalStack has Kinesis's numbers."""
    assert FLOOR < order_key(seq) < CEILING


@pytest.mark.parametrize("native", [False, True], ids=["orjson", "botocore"])
def test_a_value_of_an_unknown_type_is_never_left_out(world, native):
    """ScyllaDB Alternator has a type for vectors. botocore leaves out what it does not know."""
    vector = {"FLOAT32VECTOR": [1.0, 2.5]}

    def change(answer):
        images = [record["dynamodb"]["NewImage"] for record in answer.get("Records", ())]
        images += answer.get("Items", ())
        images += [item for items in answer.get("Responses", {}).values() for item in items]
        for image in images:
            image["list"] = {"L": [vector]}

    world.put("a", "b")
    for operation in ("GetRecords", "Scan", "BatchGetItem"):
        world.troubles.rewrite(change, operation=operation)
    with refused(ErrorCategory.PROVIDER_ERROR, "cannot be decoded") as caught:
        read(world, Beginning(), include_native=native)
    assert caught.value.detail.skip_token is not None
    (answer,) = world.client().lookup(ADDRESS, [A]).values()
    assert isinstance(answer, NotKnown)
    client = world.client()
    page = read(world, Snapshot(), client, include_native=native)
    with refused(ErrorCategory.PROVIDER_ERROR, "cannot be decoded"):
        while not page.events:
            page = read(world, FromContinuationToken(page.continuation_token), client, include_native=native)


def test_a_refused_kms_key_is_not_taken_for_a_missing_permission(world):
    world.put("a")
    world.troubles.fail("GetRecords", "AccessDeniedException", None, message="KMS key access denied error")
    with refused(ErrorCategory.AUTHORIZATION_FAILED, "KMS key access denied", "names no other reason"):
        read(world, Beginning())


def test_what_a_newer_table_has_does_not_matter(world):
    """A witness region, indexes of vectors and with several partition keys."""
    kinds = {"x": "HASH", "y": "HASH", "z": "RANGE"}
    keys = [{"AttributeName": name, "KeyType": kind} for name, kind in kinds.items()]
    described(
        world,
        MultiRegionConsistency="STRONG",
        Replicas=[{"RegionName": "us-east-2", "ReplicaStatus": "ACTIVE"}],
        GlobalTableWitnesses=[{"RegionName": "us-west-2", "WitnessStatus": "ACTIVE"}],
        GlobalSecondaryIndexes=[{"IndexName": "several", "KeySchema": keys}],
        VectorIndexes=[{"IndexName": "vectors", "Dimensions": 3}],
    )
    world.put("a")
    world.server.client().delete_item(TableName=TABLE, Key={"id": {"S": "a"}})
    page = read(world, Beginning())
    assert [(event.key, event.by_expiry) for event in page.events] == [(A, False), (A, None)]


def test_a_delete_in_a_global_table_of_2017_is_not_called_the_applications(world):
    """Only the attributes of its items show that it has replicas."""

    def change(answer):
        for record in answer["Records"]:
            for image in ("OldImage", "NewImage"):
                if image in record["dynamodb"]:
                    record["dynamodb"][image]["aws:rep:updateregion"] = {"S": "eu-west-3"}

    world.put("a", "b")
    world.server.client().delete_item(TableName=TABLE, Key={"id": {"S": "a"}})
    world.script.expire_item(TABLE, {"id": {"S": "b"}})
    world.troubles.rewrite(change, operation="GetRecords")
    events = read(world, Beginning()).events
    assert [event.by_expiry for event in events] == [False, False, None, True]


def test_a_table_is_named_by_its_arn(world):
    """That is how a table of another account is read, if its policy and that of its stream allow it."""
    arn = world.arn.partition("/stream/")[0]
    address, client = ResourceAddress(collection=arn), world.client()
    world.put("a")
    page = read(world, Beginning(), client, address=address)
    assert [(event.key, event.address) for event in page.events] == [(A, address)]
    assert read(world, FromContinuationToken(page.continuation_token), client, address=address).events == ()
    assert client.lookup(address, [A])[A].new_item_state == page.events[0].new_item_state
    with refused(ErrorCategory.NOT_FOUND, "another account by its ARN"):
        read(world, Beginning(), client, address=ResourceAddress(collection="elsewhere"))


def test_an_empty_key_ends_a_scan(world):
    world.put("a", "b", "c")
    world.troubles.rewrite(lambda answer: answer.setdefault("LastEvaluatedKey", {}), operation="Scan")
    assert sorted(world.consumer(Snapshot()).until_idle()) == [1, 2, 3]


@pytest.mark.parametrize("ask", [lambda event: events_from_lambda(event, "Id"), batch_item_failures])
def test_a_batch_of_eventbridge_pipes_is_a_list(ask):
    with pytest.raises(MulticloudDbError, match=r'EventBridge Pipes.*pass {"Records": event}'):
        ask([{"eventSource": "aws:dynamodb"}])


class TestRefusedKeys:
    """BatchGetItem refuses a request as a whole, with one code for every reason."""

    def test_a_refusal_of_right_keys_is_the_services(self, world):
        world.troubles.fail("BatchGetItem", "ValidationException", None)
        with refused(ErrorCategory.PERMANENT_FAILURE, "types and sizes", "whoever runs the service"):
            world.client().lookup(ADDRESS, [A])

    @pytest.mark.parametrize("value", [7, b"a", "", "x" * 2049, "é" * 1025])
    def test_a_key_that_no_item_has_is_the_callers(self, world, value):
        world.troubles.fail("BatchGetItem", "ValidationException", None)
        with refused(ErrorCategory.INVALID_REQUEST, "keys", "'id'", "type S, as event.key has it"):
            world.client().lookup(ADDRESS, [A, MulticloudDbKey({"id": value})])

    def test_without_the_types_of_the_table_nobody_is_blamed_alone(self, world):
        described(world, AttributeDefinitions=[])
        world.troubles.fail("BatchGetItem", "ValidationException", None)
        with refused(ErrorCategory.INVALID_REQUEST, "BatchGetItem: ValidationException", "event.key"):
            world.client().lookup(ADDRESS, [A])


class TestStreamsAtAnotherEndpoint:
    """boto3 finds the endpoint of streams apart from that of tables; PrivateLink has two."""

    @pytest.fixture
    def apart(self, world):
        with World() as other, pytest.MonkeyPatch.context() as patch:
            other.server.client().delete_table(TableName=TABLE)
            patch.setenv("AWS_ENDPOINT_URL_DYNAMODB", world.script.endpoint_url)
            patch.setenv("AWS_ENDPOINT_URL_DYNAMODB_STREAMS", other.script.endpoint_url)
            with connect(ClientConfig("dynamo", {"session": session(), "region": REGION})) as client:
                yield other, client

    @pytest.mark.parametrize("on_expired", [Fail(), SkipToOldest()], ids=["fail", "skip"])
    @pytest.mark.parametrize("start", [Beginning(), Now()], ids=["beginning", "now"])
    def test_a_service_that_does_not_know_the_stream_has_not_trimmed_it(
        self, world, apart, start, on_expired
    ):
        world.put("a", "b")
        token = FromContinuationToken(read(world, start, max_page_size=1).continuation_token)
        other, client = apart
        hosts = (world.script.endpoint_url, other.script.endpoint_url)
        words = [*(host.partition("//")[2] for host in hosts), "AWS_ENDPOINT_URL_DYNAMODB_STREAMS"]
        for position in (start, Snapshot(), token):
            with refused(ErrorCategory.NOT_FOUND, *words):
                read(world, position, client, on_expired=on_expired)

    def test_an_endpoint_without_streams_is_named(self, world, apart):
        other, client = apart
        other.troubles.fail("DescribeStream", "UnknownOperationException", None)
        with refused(ErrorCategory.INVALID_REQUEST, "PrivateLink", "AWS_ENDPOINT_URL_DYNAMODB_STREAMS"):
            read(world, Beginning(), client)


class Raw:
    """The body of an answer that no server has sent."""

    def __init__(self, body):
        self._body = body

    def stream(self, **_):
        yield self._body


@pytest.mark.parametrize(
    ("body", "own"),
    [
        (b"<html>busy</html>", False),
        (b'{"message": "busy"}', False),
        (b'{"__type": "com.amazonaws.dynamodb.v20120810#InternalServerError"}', True),
    ],
)
def test_the_clock_of_a_proxy_is_not_that_of_the_service(world, body, own):
    """By its clock, positions would expire, and pages would seem to be read up to another time."""

    def busy(request, **_):
        return AWSResponse(request.url, 503, {"Date": "Fri, 01 Jan 2100 00:00:00 GMT"}, Raw(body))

    provider, feed = world.feed()
    (seed,) = feed.start(Now(), None, soon())
    streams = provider._calls._clients.streams
    streams.meta.events.register("before-send.dynamodb-streams.GetRecords", busy)
    with pytest.raises(ClientError):
        fetch(feed.open(seed.partition_id, seed.cursor))
    assert (feed.clock(soon()).year == 2100) == own
    provider.close()


@pytest.mark.parametrize(
    "change",
    [lambda answer: answer.clear(), lambda answer: answer.update(Responses={}, UnprocessedKeys={})],
    ids=["nothing", "no table"],
)
def test_an_answer_without_the_table_proves_no_absence(world, change):
    """kumo answered so if none of the keys had an item."""
    client = world.client()
    world.troubles.rewrite(change, operation="BatchGetItem")
    with refused(ErrorCategory.TRANSIENT_FAILURE, "cut off"):
        client.lookup(ADDRESS, [A])


@pytest.mark.usefixtures("hasty")
class TestShardsOfOtherReaders:
    @pytest.mark.parametrize("start", [Beginning(), Now()])
    def test_iterators_expire_and_shards_end_before_their_first_record_was_read(self, start):
        """apache/camel PR 24861: shards of a second page, new ones and those without a position were lost."""
        with World(shards=5, shards_per_page=2) as world:
            consumer = world.consumer(start)
            consumer.read()
            world.script.advance(EXPIRED)
            written = world.put_everywhere()
            world.roll_over()
            world.script.split(world.open()[0])
            written += world.put_everywhere()
            consumer.until_found(written)
            assert sorted(consumer.markers) == written

    @pytest.mark.parametrize("restarts", [False, True])
    def test_a_reader_that_was_held_up_goes_on_after_its_last_record(self, restarts):
        """redpanda-data/connect PR 4545: it asked again with the expired iterator, for ever."""
        with World(shards=3) as world:
            written = world.put_everywhere() + world.put_everywhere()
            consumer = world.consumer(max_page_size=1)
            for _ in range(2):
                consumer.read()
            world.script.advance(EXPIRED)
            written += world.put_everywhere()
            if restarts:
                consumer.restart()
            consumer.until_found(written)
            assert sorted(consumer.markers) == written

    @pytest.mark.parametrize("new", [1, 2, 3])
    def test_a_table_that_is_created_again_with_the_same_arn(self, world, monkeypatch, new):
        """BlackbirdWorks/gopherstack issue 1781: every stream has the label `latest`, and the same shard."""
        add = Stream._add

        def same(stream, *asked):
            shard = add(stream, *asked)
            stream.shards = {SAME: shard}
            shard.shard_id = SAME
            return shard

        monkeypatch.setattr(Stream, "_add", same)
        monkeypatch.setattr(Store, "_label", lambda _: "latest")
        arns = []
        for number in (2, new):
            world.server.client().delete_table(TableName=TABLE)
            arns.append(world.server.create_table(TABLE, partition_key="id"))
            world.script.advance(1)
            for key in range(number):
                world.put(f"{number}-{key}")
            if len(arns) == 1:
                consumer = world.consumer()
                consumer.until_idle()
        assert arns[0] == arns[1]
        with refused(ErrorCategory.INVALID_REQUEST, "uses numbers again"):
            consumer.restart().until_idle()
        assert len(consumer.markers) == 2
