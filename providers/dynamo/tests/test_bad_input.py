"""Tests mistakes of users and failures of networks: every error says what to do and shows no secret."""

import http.server
import threading

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
from .world import ADDRESS, TABLE, World

SECRETS = (CREDENTIALS["AWS_SECRET_ACCESS_KEY"], "a-session-token")
OPERATIONS = ["DescribeTable", "DescribeStream", "GetShardIterator", "GetRecords"]


@pytest.fixture
def world():
    with World() as made:
        yield made


def refused(act, category, *words):
    """Return the error of a call. The error must have the given category and words, and contain no secret."""
    return refusal(category, act, *words, hidden=SECRETS)


def reading(client, start=None, **request):
    asked = {"address": ADDRESS, "start_position": start or Beginning()} | request
    return lambda: client.read_changes(ChangeFeedRequest(**asked))


def client_of(**connection):
    return connect(ClientConfig("dynamo", connection))


class TestTheWay:
    """Tests failures of connections to the service."""

    def test_nobody_listens_at_the_endpoint(self):
        with client_of(region=REGION, endpoint_url="http://127.0.0.1:9") as client:
            refused(reading(client), ErrorCategory.TRANSIENT_FAILURE, "endpoint_url", "127.0.0.1:9")

    def test_what_answers_is_no_dynamodb(self, world):
        """The server sends an answer that DynamoDB would not send, for example the answer of a web server."""

        class Page(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(200)
                self.send_header("Content-Length", "13")
                self.end_headers()
                self.wfile.write(b"<html></html>")

            def log_message(self, *_):
                """Suppress log messages."""

        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
            thread = threading.Thread(target=server.serve_forever, args=(0.01,))
            thread.start()
            url = f"http://127.0.0.1:{server.server_port}"
            with client_of(region=REGION, endpoint_url=url) as client:
                refused(reading(client), ErrorCategory.TRANSIENT_FAILURE, "try again")
            server.shutdown()
            thread.join()


class TestTheIdentity:
    """Tests that the provider does not guess settings and shows no secret."""

    def test_no_credentials(self, world, monkeypatch):
        for name in CREDENTIALS:
            monkeypatch.delenv(name)
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        with client_of(region=REGION, endpoint_url=world.script.endpoint_url) as client:
            refused(reading(client), ErrorCategory.AUTHENTICATION_FAILED, "credential")
        assert world.journal.count("DescribeStream") == 0

    def test_half_of_the_credentials(self, world, monkeypatch):
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")

        def act():
            with client_of(region=REGION, endpoint_url=world.script.endpoint_url) as client:
                reading(client)()

        refused(act, ErrorCategory.AUTHENTICATION_FAILED, "AWS_SECRET_ACCESS_KEY")

    @pytest.mark.parametrize("operation", OPERATIONS)
    @pytest.mark.parametrize(
        ("code", "category", "word"),
        [
            ("UnrecognizedClientException", ErrorCategory.AUTHENTICATION_FAILED, "get-caller-identity"),
            ("AccessDeniedException", ErrorCategory.AUTHORIZATION_FAILED, "permissions"),
        ],
    )
    def test_refused_by_the_service(self, world, operation, code, category, word):
        """A call that the service refuses is made only once.

        After the cause is removed, reading continues without any loss.
        """
        consumer = world.consumer(max_page_size=1)
        written = world.put("a", "b")
        consumer.read()
        consumer.restart()
        key, secret = CREDENTIALS.values()
        session = boto3.Session(key, secret, SECRETS[1], REGION)
        connection = {"session": session, "endpoint_url": world.script.endpoint_url}
        trouble = world.troubles.fail(operation, code, None)
        start = Now() if operation == "DescribeStream" else consumer.start
        with client_of(**connection) as client:
            error = refused(reading(client, start), category, word, code)
        assert not error.retryable
        assert trouble.happened == 1
        world.troubles.end()
        consumer.until_idle()
        assert consumer.markers == written


class TestAddresses:
    @pytest.mark.parametrize("name", ["x", "x" * 2000])
    def test_a_name_that_is_none(self, world, name):
        def act():
            reading(world.client(), address=ResourceAddress(collection=name))()

        refused(act, ErrorCategory.INVALID_REQUEST)

    @pytest.mark.parametrize("name", ["a b", "söng", "arn:aws:dynamodb:eu-west-1:1:table/none"])
    def test_a_name_that_only_the_service_refuses(self, world, name):
        refused(reading(world.client(), address=ResourceAddress(collection=name)), ErrorCategory.NOT_FOUND)

    def test_a_database(self, world):
        refused(
            reading(world.client(), address=ResourceAddress("shop", TABLE)),
            ErrorCategory.INVALID_REQUEST,
            "address.database",
            "leave it out",
        )

    def test_a_table_without_a_stream(self, world):
        world.server.create_table("plain", None)
        refused(
            reading(world.client(), address=ResourceAddress(collection="plain")),
            ErrorCategory.INVALID_REQUEST,
            "StreamEnabled=true",
            "plain",
        )

    @pytest.mark.parametrize("shard", ["shardId-00000001541626099285-f35f62ef", "x", "é" * 40, "s" * 100])
    def test_a_shard_that_is_unknown(self, world, shard):
        name = encode_partition_id("dynamo", ADDRESS, world.arn, shard)
        refused(
            reading(world.client(), scope=PhysicalPartition(name)),
            ErrorCategory.INVALID_REQUEST,
            "list_physical_partitions",
        )


def tampered(token, change):
    """Return a valid token with a changed state."""
    envelope = decode_token(token)
    return FromContinuationToken(encode_token(attrs.evolve(envelope, state=change(envelope.state))))


CURSORS = {
    "a short number": ["123", 1],
    "a long number": ["1" * 41, 1],
    "letters": ["12x" * 8, 1],
    "a negative number": ["-" + "1" * 21, 1],
    "a number of another shard": ["9" * 38, 1],
    "zero": ["0" * 21, 1],
    "Arabic digits": ["٣" * 21, 1],
    "a huge iterator": ["n", 1_700_000_000, "x" * 2049],
    "no iterator": ["n", 1_700_000_000, "nonsense"],
    "an unknown form": ["z", 1],
    "nothing": None,
    "a nest": [[[[]]]],
    "a time of the year 99999": ["h", 10**13],
    "a time in front of 1970": ["s", -5],
    "an object": {"seq": "1"},
}


class TestTokens:
    """Each damaged token is refused with an error that says what to do, and never with a crash.

    The original token still works.
    """

    @pytest.mark.parametrize("name", CURSORS)
    @pytest.mark.parametrize("fresh", [True, False], ids=["other process", "same process"])
    def test_a_cursor_that_was_changed(self, world, name, fresh):
        written = world.put("a")
        consumer = world.consumer()
        consumer.until_idle()
        shard = world.chain()
        start = tampered(consumer.token, lambda _: {"p": [[shard, CURSORS[name]]]})
        client = world.client() if fresh else consumer.client
        with pytest.raises(MulticloudDbError) as caught:
            reading(client, start)()
        # A position before the shard's first record may have expired. A position with an iterator may also
        # have expired.
        allowed = {ErrorCategory.INVALID_REQUEST} | (
            {ErrorCategory.CHECKPOINT_EXPIRED} if name in ("zero", "a short number", "no iterator") else set()
        )
        assert caught.value.category in allowed, caught.value
        assert "\n" not in caught.value.message
        assert len(caught.value.message) < 800
        assert consumer.markers == written
        assert consumer.restart().until_idle() == []
        after = world.put("b")
        assert consumer.until_idle() == after

    def test_a_shard_that_was_never_there(self, world):
        world.put("a")
        consumer = world.consumer()
        consumer.until_idle()
        unknown = "shardId-00000001541626099285-f35f62ef"
        for shard in (unknown, "x", "y" * 200):
            start = tampered(
                consumer.token, lambda state, shard=shard: {"p": [[shard, state["p"][0][1][:2]]]}
            )
            with pytest.raises(MulticloudDbError) as caught:
                reading(world.client(), start)()
            assert caught.value.category in (ErrorCategory.CHECKPOINT_EXPIRED, ErrorCategory.INVALID_REQUEST)


class TestRecords:
    """Tests damaged records in the service's answers."""

    @pytest.mark.parametrize("part", ["SequenceNumber", "ApproximateCreationDateTime", "Keys"])
    def test_a_record_without_a_part(self, world, part):
        before = world.put("a")
        world.script.write_record(TABLE, {"id": {"S": "p"}}, lambda record: record["dynamodb"].pop(part))
        consumer = world.consumer(max_page_size=1)
        consumer.read()
        with pytest.raises(MulticloudDbError) as caught:
            consumer.read()
        assert consumer.markers == before
        assert "\n" not in caught.value.message
