"""Tests mistakes of users and failures of networks: every error says what to do and shows no secret."""

import attrs
import boto3
import pytest

from multiclouddb_api import (
    Beginning,
    ChangeFeedRequest,
    ClientConfig,
    ErrorCategory,
    FromContinuationToken,
    MulticloudDbError,
    Now,
    PhysicalPartition,
    ResourceAddress,
    connect,
)
from multiclouddb_conformance.refusals import refusal
from multiclouddb_spi import encode_partition_id
from multiclouddb_spi.continuation.token import decode_token, encode_token

from .servers.server import CREDENTIALS, REGION
from .world import ADDRESS, TABLE

SECRETS = (CREDENTIALS["AWS_SECRET_ACCESS_KEY"], "a-session-token")
OPERATIONS = ["DescribeTable", "DescribeStream", "GetShardIterator", "GetRecords"]
INVALID, EXPIRED = ErrorCategory.INVALID_REQUEST, ErrorCategory.CHECKPOINT_EXPIRED


def refused(act, category, *words):
    """Return the error of a call. The error must have the given category and words, and contain no secret."""
    return refusal(category, act, *words, hidden=SECRETS)


def reading(client, start=None, **request):
    asked = {"address": ADDRESS, "start_position": start or Beginning()} | request
    return lambda: client.read_changes(ChangeFeedRequest(**asked))


def client_of(endpoint_url, **connection):
    return connect(ClientConfig("dynamo", {"region": REGION, "endpoint_url": endpoint_url} | connection))


class TestTheWay:
    """Tests failures of connections to the service."""

    def test_nobody_listens_at_the_endpoint(self):
        with client_of("http://127.0.0.1:9") as client:
            refused(reading(client), ErrorCategory.TRANSIENT_FAILURE, "endpoint_url", "127.0.0.1:9")


class TestTheIdentity:
    """Tests that the provider does not guess settings and shows no secret."""

    @pytest.mark.parametrize("missing", [list(CREDENTIALS), ["AWS_SECRET_ACCESS_KEY"]], ids=["all", "half"])
    def test_credentials_that_are_missing(self, world, monkeypatch, missing):
        for name in missing:
            monkeypatch.delenv(name)
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")

        def act():
            with client_of(world.script.endpoint_url) as client:
                reading(client)()

        word = "credential" if len(missing) > 1 else "AWS_SECRET_ACCESS_KEY"
        refused(act, ErrorCategory.AUTHENTICATION_FAILED, word)
        assert world.journal.count("DescribeStream") == 0

    @pytest.mark.parametrize("operation", OPERATIONS)
    @pytest.mark.parametrize(
        ("code", "category", "word"),
        [
            ("UnrecognizedClientException", ErrorCategory.AUTHENTICATION_FAILED, "get-caller-identity"),
            ("AccessDeniedException", ErrorCategory.AUTHORIZATION_FAILED, "permissions"),
        ],
    )
    def test_a_call_that_is_refused_is_made_once_and_loses_nothing(
        self, world, operation, code, category, word
    ):
        consumer = world.consumer(max_page_size=1)
        written = world.put("a", "b")
        consumer.read()
        consumer.restart()
        key, secret = CREDENTIALS.values()
        session = boto3.Session(key, secret, SECRETS[1], REGION)
        trouble = world.troubles.fail(operation, code, None)
        start = Now() if operation == "DescribeStream" else consumer.start
        with client_of(world.script.endpoint_url, session=session) as client:
            error = refused(reading(client, start), category, word, code)
        assert not error.retryable
        assert trouble.happened == 1
        world.troubles.end()
        consumer.until_idle()
        assert consumer.markers == written


ADDRESSES = [
    (("x",), INVALID, []),
    (("x" * 2000,), INVALID, []),
    (("a b",), ErrorCategory.NOT_FOUND, []),
    (("söng",), ErrorCategory.NOT_FOUND, []),
    (("arn:aws:dynamodb:eu-west-1:1:table/none",), ErrorCategory.NOT_FOUND, []),
    (("shop", TABLE), INVALID, ["address.database", "leave it out"]),
    (("plain",), INVALID, ["StreamEnabled=true", "plain"]),
]


class TestAddresses:
    @pytest.mark.parametrize(("names", "category", "words"), ADDRESSES, ids=range(len(ADDRESSES)))
    def test_an_address_that_is_none(self, world, names, category, words):
        world.server.create_table("plain", None)
        address = ResourceAddress(*names) if len(names) > 1 else ResourceAddress(collection=names[0])
        refused(lambda: reading(world.client(), address=address)(), category, *words)

    @pytest.mark.parametrize("shard", ["shardId-00000001541626099285-f35f62ef", "x", "é" * 40, "s" * 100])
    def test_a_shard_that_is_unknown(self, world, shard):
        scope = PhysicalPartition(encode_partition_id("dynamo", ADDRESS, world.arn, shard))
        refused(reading(world.client(), scope=scope), INVALID, "list_physical_partitions")


# Each row: a cursor that nobody has made, and the category with which it may be refused too: a position
# before the shard's first record, or with an iterator, may have expired.
CURSORS = {
    "a short number": (["123", 1], EXPIRED),
    "a long number": (["1" * 41, 1], INVALID),
    "letters": (["12x" * 8, 1], INVALID),
    "a negative number": (["-" + "1" * 21, 1], INVALID),
    "a number of another shard": (["9" * 38, 1], INVALID),
    "zero": (["0" * 21, 1], EXPIRED),
    "a huge iterator": (["n", 1_700_000_000, "x" * 2049], INVALID),
    "no iterator": (["n", 1_700_000_000, "nonsense"], EXPIRED),
    "an unknown form": (["z", 1], INVALID),
    "nothing": (None, INVALID),
    "a nest": ([[[[]]]], INVALID),
    "a time of the year 99999": (["h", 10**13], INVALID),
    "an object": ({"seq": "1"}, INVALID),
}


class TestTokens:
    """Each damaged token is refused with an error that says what to do; the original token still works."""

    def test_a_cursor_that_was_changed(self, world):
        written = world.put("a")
        consumer = world.consumer()
        consumer.until_idle()
        envelope, fresh = decode_token(consumer.token), world.client()
        shards = [(name, world.chain(), *CURSORS[name]) for name in CURSORS]
        held = envelope.state["p"][0][1][:2]
        shards += [
            (name, name, held, EXPIRED) for name in ("shardId-00000001541626099285-f35f62ef", "x" * 200)
        ]
        for name, shard, cursor, category in shards:
            token = encode_token(attrs.evolve(envelope, state={"p": [[shard, cursor]]}))
            for client in (fresh, consumer.client):
                with pytest.raises(MulticloudDbError) as caught:
                    reading(client, FromContinuationToken(token))()
                assert caught.value.category in (INVALID, category), name
                assert "\n" not in caught.value.message
                assert len(caught.value.message) < 800
        assert consumer.markers == written
        assert consumer.restart().until_idle() == []
        after = world.put("b")
        assert consumer.until_idle() == after


@pytest.mark.parametrize("part", ["SequenceNumber", "ApproximateCreationDateTime", "Keys"])
def test_a_record_without_a_part(world, part):
    before = world.put("a")
    world.script.write_record(TABLE, {"id": {"S": "p"}}, lambda record: record["dynamodb"].pop(part))
    consumer = world.consumer(max_page_size=1)
    consumer.read()
    with pytest.raises(MulticloudDbError) as caught:
        consumer.read()
    assert consumer.markers == before
    assert "\n" not in caught.value.message
