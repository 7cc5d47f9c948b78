"""Tests the provider as a whole: clients, identities, addresses, damaged tokens, and refused requests."""

import logging
import traceback

import attrs
import boto3
import pytest
from botocore.config import Config

from multiclouddb_api import (
    Beginning,
    ChangeFeedRequest,
    ClientConfig,
    ErrorCategory,
    FromContinuationToken,
    MulticloudDbError,
    MulticloudDbKey,
    NewItemStateMode,
    Now,
    OldItemStateMode,
    PhysicalPartition,
    ResourceAddress,
    Snapshot,
    connect,
)
from multiclouddb_conformance.refusals import refusal
from multiclouddb_conformance.waiting import wait_until
from multiclouddb_dynamo import DynamoClients
from multiclouddb_dynamo.catalog import check_table
from multiclouddb_dynamo.client import Calls, Table
from multiclouddb_spi import FeedSpec, ProviderFault, encode_partition_id
from multiclouddb_spi.continuation.token import decode_token, encode_token
from testing.frames import shown_by

from .servers.server import CREDENTIALS, REGION
from .world import ADDRESS, TABLE, markers, session

READ = "GetRecords"
OPERATIONS = ["DescribeTable", "DescribeStream", "GetShardIterator", READ]
SECRETS = (CREDENTIALS["AWS_SECRET_ACCESS_KEY"], "a-session-token")
BROKEN_FILES = {
    "no equals sign": f"[default]\naws_access_key_id = me\naws_secret_access_key {SECRETS[1]}\n",
    "no profile": f"aws_secret_access_key = {SECRETS[1]}\n",
    "no UTF-8": f"[default]\naws_access_key_id = me\naws_secret_access_key = {SECRETS[1]}é\n",
    "half a key": f"[default]\naws_access_key_id = {SECRETS[1]}\n",
    "a program without JSON": f"[default]\ncredential_process = echo {SECRETS[1]}\n",
    "a program with half a key": f"""[default]\ncredential_process =
        echo '{{"Version": 1, "AccessKeyId": "{SECRETS[1]}"}}'\n""",
    "no such program": f"[default]\ncredential_process = /no/such/program {SECRETS[1]}\n",
}
INVALID, EXPIRED = ErrorCategory.INVALID_REQUEST, ErrorCategory.CHECKPOINT_EXPIRED
NOT_FOUND = ErrorCategory.NOT_FOUND


def refused(act, category, *words):
    """Return the error of a call. The error must have the given category and words, and contain no secret."""
    return refusal(category, act, *words, hidden=SECRETS)


def reading(client, start=None, **request):
    asked = {"address": ADDRESS, "start_position": start or Beginning()} | request
    return lambda: client.read_changes(ChangeFeedRequest(**asked))


def client_of(endpoint_url, **connection):
    return connect(ClientConfig("dynamo", {"region": REGION, "endpoint_url": endpoint_url} | connection))


def pools_of(client):
    return client._endpoint.http_session._manager.pool_classes_by_scheme


@pytest.fixture
def native(world):
    config = Config(retries={"mode": "standard", "total_max_attempts": 2})
    settings = {"region_name": REGION, "endpoint_url": world.script.endpoint_url, "config": config}
    made = DynamoClients(*(session().client(name, **settings) for name in ("dynamodb", "dynamodbstreams")))
    yield made
    made.dynamodb.close()
    made.streams.close()


class TestApplication:
    def test_native_clients_read_the_same_with_their_own_retries(self, world, native):
        written = world.put("a", "b")
        with connect("dynamo://", native_client=native) as client:
            world.troubles.fail(READ, "InternalServerError", None)
            with pytest.raises(MulticloudDbError):
                reading(client)()
            assert world.journal.count(READ) == 2
            world.troubles.end()
            page = reading(client)()
            assert markers(page.events) == written
            assert page.events == reading(world.client())().events

    def test_nothing_is_written_and_the_clients_of_the_application_stay_as_they_are(self, world, native):
        def state():
            return [
                (repr(each.meta.events._emitter._handlers._root), repr(pools_of(each)))
                for each in (native.dynamodb, native.streams)
            ]

        before, written, key = state(), world.put("a", "b"), MulticloudDbKey({"id": "a"})
        world.journal.clear()
        with connect("dynamo://", native_client=native) as client:
            scan = world.consumer(Snapshot(segments=1), client=client)
            scan.until_idle()
            assert scan.markers == written
            assert markers(reading(client)().events) == written
            assert client.lookup(ADDRESS, [key])[key].new_item_state["n"] == 1
            assert client.list_physical_partitions(ADDRESS)
        assert {call.operation for call in world.journal.calls()} == {*OPERATIONS, "Scan", "BatchGetItem"}
        assert state() == before
        assert native.dynamodb.list_tables()["TableNames"] == [TABLE]

    def test_a_closed_client_leaves_no_connection(self, world, native):
        """botocore opens a connection for a call that began before the client was closed."""
        client = world.client()
        reading(client)()
        client.close()
        calls = Calls(native, ours=True)
        native.dynamodb.meta.events.register("before-send", lambda **_: calls.close())
        calls.describe_table(TABLE)
        world.server.close()
        wait_until(lambda: world.script.connections == 0)


class TestIdentity:
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

    def test_the_password_of_a_proxy_is_shown_nowhere(self, monkeypatch, caplog):
        caplog.set_level(logging.INFO, "multiclouddb")
        monkeypatch.setenv("HTTPS_PROXY", f"http://me:{SECRETS[1]}/x@localhost:1")
        with connect(f"dynamo://{REGION}") as client:
            error = refused(reading(client), INVALID, "check HTTPS_PROXY")
        assert SECRETS[1] not in "".join(traceback.format_exception(error)) + caplog.text

    @pytest.mark.parametrize("lines", BROKEN_FILES.values(), ids=[*BROKEN_FILES])
    def test_a_broken_file_of_credentials_is_shown_nowhere(self, monkeypatch, tmp_path, lines):
        """boto3 has the file's lines in its frames, and in an exception that it does not show."""
        file = tmp_path / "credentials"
        file.write_bytes(lines.encode("latin-1"))
        for name in CREDENTIALS:
            monkeypatch.delenv(name)
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
        monkeypatch.setenv("AWS_CONFIG_FILE", str(file))
        with pytest.raises(MulticloudDbError) as caught:
            connect(f"dynamo://{REGION}")
        assert caught.value.category in (INVALID, ErrorCategory.AUTHENTICATION_FAILED)
        assert [text for text in shown_by(caught.value, without=__file__) if SECRETS[1] in text] == []

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
        own = boto3.Session(*CREDENTIALS.values(), SECRETS[1], REGION)
        trouble = world.troubles.fail(operation, code, None)
        start = Now() if operation == "DescribeStream" else consumer.start
        with client_of(world.script.endpoint_url, session=own) as client:
            error = refused(reading(client, start), category, word, code)
        assert not error.retryable
        assert trouble.happened == 1
        world.troubles.end()
        consumer.until_idle()
        assert consumer.markers == written


class TestAddresses:
    @pytest.mark.parametrize(
        ("names", "category", "words"),
        [
            ((None, "x"), INVALID, []),
            ((None, "x" * 2000), INVALID, []),
            ((None, "a b"), NOT_FOUND, []),
            ((None, "söng"), NOT_FOUND, []),
            ((None, "arn:aws:dynamodb:eu-west-1:1:table/none"), NOT_FOUND, []),
            (("shop", TABLE), INVALID, ["address.database", "leave it out"]),
            ((None, "plain"), INVALID, ["StreamEnabled=true", "plain"]),
        ],
    )
    def test_an_address_that_is_none(self, world, names, category, words):
        world.server.create_table("plain", None)
        refused(reading(world.client(), address=ResourceAddress(*names)), category, *words)

    @pytest.mark.parametrize("shard", ["shardId-00000001541626099285-f35f62ef", "x", "é" * 40, "s" * 100])
    def test_a_shard_that_is_unknown(self, world, shard):
        scope = PhysicalPartition(encode_partition_id("dynamo", ADDRESS, world.arn, shard))
        refused(reading(world.client(), scope=scope), INVALID, "list_physical_partitions")

    def test_nobody_listens_at_the_endpoint(self):
        with client_of("http://127.0.0.1:9") as client:
            refused(reading(client), ErrorCategory.TRANSIENT_FAILURE, "endpoint_url", "127.0.0.1:9")


# Each row: a cursor that nobody has made, and the category with which it may be refused too: a position
# before the shard's first record, or with an iterator, may have expired.
CURSORS = {
    "a short number": (["123", 1], EXPIRED),
    "a number of another shard": (["9" * 38, 1], INVALID),
    "zero": (["0" * 21, 1], EXPIRED),
    "no iterator": (["n", 1_700_000_000, "nonsense"], EXPIRED),
}


def test_a_damaged_cursor_is_refused_and_the_original_token_still_works(world):
    written = world.put("a")
    consumer = world.consumer()
    consumer.until_idle()
    envelope, fresh = decode_token(consumer.token), world.client()
    held = envelope.state["p"][0][1][:2]
    cases = [(world.chain(), *case) for case in CURSORS.values()]
    cases += [(name, held, EXPIRED) for name in ("shardId-00000001541626099285-f35f62ef", "x" * 200)]
    for shard, cursor, category in cases:
        token = encode_token(attrs.evolve(envelope, state={"p": [[shard, cursor]]}))
        for client in (fresh, consumer.client):
            with pytest.raises(MulticloudDbError) as caught:
                reading(client, FromContinuationToken(token))()
            assert caught.value.category in (INVALID, category), cursor
    assert consumer.markers == written
    assert consumer.restart().until_idle() == []
    after = world.put("b")
    assert consumer.until_idle() == after


@pytest.mark.parametrize("part", ["SequenceNumber", "Keys"])
def test_a_record_without_a_part(world, part):
    before = world.put("a")
    world.script.write_record(TABLE, {"id": {"S": "p"}}, lambda record: record["dynamodb"].pop(part))
    consumer = world.consumer(max_page_size=1)
    consumer.read()
    with pytest.raises(MulticloudDbError):
        consumer.read()
    assert consumer.markers == before


@pytest.mark.parametrize(
    ("view", "new", "old"),
    [("KEYS_ONLY", False, False), ("NEW_IMAGE", True, False), ("OLD_IMAGE", False, True),
     ("NEW_AND_OLD_IMAGES", True, True)],
)  # fmt: skip
def test_items_that_a_stream_does_not_hold_are_refused(view, new, old):
    table = Table("arn", True, view, ("id",))
    for held, mode in (
        (new, {"new_item_state_mode": NewItemStateMode.REQUIRE}),
        (old, {"old_item_state_mode": OldItemStateMode.REQUIRE}),
    ):
        if held:
            check_table(table, FeedSpec(ADDRESS, **mode))
            continue
        with pytest.raises(ProviderFault, match=view) as caught:
            check_table(table, FeedSpec(ADDRESS, **mode))
        assert caught.value.fault.category == ErrorCategory.UNSUPPORTED_CAPABILITY
