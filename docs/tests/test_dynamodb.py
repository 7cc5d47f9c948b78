"""Checks the page about DynamoDB on DynamoDB Local: its commands, programs, policy and tables."""

import json
import re
from contextlib import closing
from datetime import UTC, datetime

import boto3
import pytest

from multiclouddb_api import (
    AtTime,
    Beginning,
    ChangeFeedRequest,
    ClientConfig,
    EntireCluster,
    EntireDatabase,
    ErrorCategory,
    FromContinuationToken,
    LogicalPartition,
    MulticloudDbKey,
    NewItemStateMode,
    Now,
    OldItemStateMode,
    ResourceAddress,
    Snapshot,
    connect,
)
from multiclouddb_conformance import command_line
from multiclouddb_conformance.refusals import refused
from multiclouddb_conformance.waiting import SOON

from .page import ROOT, Page, servers

PAGE = Page("dynamodb.md", "dynamodb-production.md")
ORDERS = ResourceAddress(collection="orders")


@pytest.fixture(scope="module")
def account():
    with servers("dynamo")("local").LocalDynamo() as made:
        yield made


@pytest.fixture(autouse=True)
def nobody(tmp_path, monkeypatch):
    """Hide from boto3 all settings of the user who runs the tests."""
    for name in ("AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))


@pytest.fixture
def server(account, tmp_path, monkeypatch):
    """Provide an empty account, found through boto3's own environment variables."""
    for name, value in servers("dynamo")("server").CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AWS_ENDPOINT_URL", account.endpoint_url)
    yield account
    for name in account.client().list_tables()["TableNames"]:
        account.client().delete_table(TableName=name)


def by_boto3(words):
    """Make the call of an `aws dynamodb` command with boto3, which checks every name and value."""
    region = words.index("--region")
    region_name = words[region + 1]
    words = words[2:region] + words[region + 2 :]
    arguments = {}
    for name, value in zip(words[1::2], words[2::2], strict=True):
        pairs = dict(pair.split("=") for pair in value.split(",") if "=" in pair)
        if pairs.get("StreamEnabled"):
            pairs["StreamEnabled"] = json.loads(pairs["StreamEnabled"])
        if name in ("--attribute-definitions", "--key-schema"):
            pairs = [pairs]
        arguments["".join(part.title() for part in name.split("-"))] = pairs or value
    with closing(boto3.client("dynamodb", region_name=region_name)) as client:
        getattr(client, words[0].replace("-", "_"))(**arguments)


def put(server, *keys):
    for key in keys:
        server.client().put_item(TableName="orders", Item={"id": {"S": key}})


@pytest.fixture
def orders(server):
    """Create the table of the page."""
    (create,) = PAGE.commands("aws dynamodb create-table")
    by_boto3(create)
    return server


class TestPrograms:
    def test_from_an_empty_account_to_the_first_event(self, orders):
        assert PAGE.run("worker.py") == ""  # saves a position before the first record
        assert PAGE.run("write.py") == ""
        assert PAGE.run("first.py") == PAGE.said_behind("first.py")
        assert PAGE.run("own_session.py") == PAGE.run("own_clients.py") == "3\n"
        assert PAGE.run("worker.py").splitlines() == [
            f"{kind} {{'id': 'o-1'}} False" for kind in ("CREATE", "UPDATE", "DELETE")
        ]
        assert PAGE.run("worker.py") == ""

    def test_what_was_there_before(self, orders):
        put(orders, "o-1", "o-2", "o-3")
        orders.client().delete_item(TableName="orders", Key={"id": {"S": "o-2"}})
        assert PAGE.run("snapshot.py") == "['o-1', 'o-3']\n"

    def test_all_programs_are_run_here(self):
        assert PAGE.programs.keys() == PAGE.programs_run_in(__file__)

    @pytest.mark.parametrize("name", [pytest.param("stream.py", id="stream.py-jvm")])  # conftest.py reads it
    def test_spark(self, orders, name):
        PAGE.run("write.py")
        assert PAGE.run(name) == "3\n"

    def test_a_table_gets_its_stream_later(self, server):
        server.create_table("orders", None, partition_key="id")
        with connect("dynamo://eu-west-1") as client:
            request = ChangeFeedRequest(ORDERS, Beginning())
            with refused(ErrorCategory.INVALID_REQUEST, "stream"):
                client.read_changes(request)
            (update,) = PAGE.commands("aws dynamodb update-table")
            by_boto3(update)
            assert client.read_changes(request).events == ()


class TestCommandLine:
    def test_a_tail_that_is_killed_misses_nothing(self, orders):
        words, partitions, check = (
            PAGE.commands(f"multiclouddb {name}")[0][1:] for name in ("tail", "partitions", "token")
        )
        tail = command_line.Tail(*words[1:])
        tail.run_until_saved()
        with tail.running() as came:
            put(orders, "o-1")
            came.get(timeout=SOON)
        put(orders, "o-2", "o-3")
        tail.finish()
        assert tail.keys() == ["o-1", "o-2", "o-3"]
        assert "1 open" in command_line.said(*partitions)
        assert "yes" in command_line.said(*check)


class TestPermissions:
    @pytest.fixture
    def allowed(self):
        """Map each action that the page's policy allows to its resource."""
        (text,) = PAGE.blocks("json")
        policy = json.loads(text)
        assert policy["Version"] == "2012-10-17"
        assert {statement["Effect"] for statement in policy["Statement"]} == {"Allow"}
        return {
            action: statement["Resource"]
            for statement in policy["Statement"]
            for action in (
                [statement["Action"]] if isinstance(statement["Action"], str) else statement["Action"]
            )
        }

    def test_the_policy_allows_what_is_called_and_no_more(self, orders, allowed):
        """The policy allows listings, and reads from `Beginning` and `Now`, from a token, with a snapshot,
        and across a rollover.
        """
        called = set()
        session = boto3.Session()

        def note(model, **_):
            called.add(f"{model.service_model.signing_name}:{model.name}")

        session.events.register("before-call", note)
        with connect(ClientConfig("dynamo", {"region": "eu-west-1", "session": session})) as client:
            put(orders, "o-1")
            client.read_changes(ChangeFeedRequest(ORDERS, Now()))
            page = client.read_changes(ChangeFeedRequest(ORDERS, Beginning()))
            orders.rollover()
            put(orders, "o-2")
            start = FromContinuationToken(page.continuation_token)
            with client.iterate_changes(ChangeFeedRequest(ORDERS, start), until_idle=True) as changes:
                assert [event.key.components["id"] for event in changes] == ["o-2"]
            assert len(client.list_physical_partitions(ORDERS)) > 0
            with client.iterate_changes(ChangeFeedRequest(ORDERS, Snapshot()), until_idle=True) as changes:
                rows = [event for event in changes if event.backfilled]
            assert len(rows) == 2
            assert all(client.lookup(ORDERS, [row.key for row in rows]).values())
        assert called == allowed.keys()

    def test_each_action_is_allowed_on_its_own_kind_of_resource(self, allowed):
        text = (ROOT / "docs/configuration.md").read_text(encoding="utf-8")
        assert set(re.findall(r"dynamodb:[A-Z]\w+", text)) == allowed.keys()
        table = allowed.pop("dynamodb:DescribeTable")
        assert allowed.pop("dynamodb:Scan") == allowed.pop("dynamodb:BatchGetItem") == table
        assert re.fullmatch(r"arn:aws:dynamodb:[\w-]+:\d{12}:table/orders", table)
        assert set(allowed.values()) == {f"{table}/stream/*"}


class TestViewTypes:
    def test_an_event_has_what_the_table_says(self, server):
        rows = PAGE.rows_below("The view type decides")
        assert "| `StreamViewType` | `new_item_state` | `old_item_state` |" in PAGE.text
        for kind, *said in rows:
            name = kind.strip("`")
            server.create_table(name, name)
            for number in ("1", "2"):
                server.client().put_item(TableName=name, Item={"pk": {"S": "a"}, "n": {"N": number}})
            server.client().delete_item(TableName=name, Key={"pk": {"S": "a"}})
            request = ChangeFeedRequest(
                ResourceAddress(collection=name),
                Beginning(),
                old_item_state_mode=OldItemStateMode.INCLUDE_IF_AVAILABLE,
            )
            with connect("dynamo://eu-west-1") as client:
                events = client.read_changes(request).events
            for field, words in zip(("new_item_state", "old_item_state"), said, strict=True):
                has = [event.type.value for event in events if getattr(event, field) is not None]
                assert words == (f"on {' and '.join(has)}" if has else "never"), (name, field)
        assert len(rows) == 4


ASKED = {
    "`AtTime(…)`": {"start_position": AtTime(datetime(2026, 1, 31, tzinfo=UTC))},
    "`LogicalPartition(…)`": {"scope": LogicalPartition(MulticloudDbKey({"id": "o-1"}))},
    "`EntireDatabase()`": {"scope": EntireDatabase(), "address": ResourceAddress(database="shop")},
    "`EntireCluster()`": {"scope": EntireCluster(), "address": ResourceAddress()},
}


class TestRefusals:
    def test_what_is_not_there_is_refused(self, orders):
        said = " ".join(name for name, _ in PAGE.rows_below("## What it cannot do"))
        unsupported = ErrorCategory.UNSUPPORTED_CAPABILITY
        with connect("dynamo://eu-west-1") as client:
            for name, asked in ASKED.items():
                assert name in said
                with refused(unsupported, "; "):
                    client.read_changes(
                        ChangeFeedRequest(**{"address": ORDERS, "start_position": Beginning()} | asked)
                    )
            assert "`run_command(…)`" in said
            with refused(unsupported, "boto3"):
                client.run_command("orders", {})
            for kind in ("NEW_IMAGE", "OLD_IMAGE"):
                orders.create_table(kind, kind)
            for kind, field, mode in (
                ("OLD_IMAGE", "new_item_state_mode", NewItemStateMode.REQUIRE),
                ("NEW_IMAGE", "old_item_state_mode", OldItemStateMode.REQUIRE),
            ):
                asked = {"address": ResourceAddress(collection=kind), "start_position": Now(), field: mode}
                with refused(unsupported, kind):
                    client.read_changes(ChangeFeedRequest(**asked))

    def test_a_stream_that_was_switched_off_and_on(self, orders):
        table = orders.client()
        token = FromContinuationToken
        with connect("dynamo://eu-west-1") as client:
            page = client.read_changes(ChangeFeedRequest(ORDERS, Now()))
        table.update_table(TableName="orders", StreamSpecification={"StreamEnabled": False})
        with connect("dynamo://eu-west-1") as client, refused(ErrorCategory.INVALID_REQUEST, "disabled"):
            client.read_changes(ChangeFeedRequest(ORDERS, Now()))
        (update,) = PAGE.commands("aws dynamodb update-table")
        by_boto3(update)
        with connect("dynamo://eu-west-1") as client, refused(ErrorCategory.INVALID_REQUEST, "recreated"):
            client.read_changes(ChangeFeedRequest(ORDERS, token(page.continuation_token)))


def test_each_service_has_an_address_of_its_own(monkeypatch):
    exports = {}
    for _, word in PAGE.commands("export AWS_ENDPOINT_URL_"):
        name, _, value = word.partition("=")
        monkeypatch.setenv(name, value)
        exports[name] = value
    session = boto3.Session(aws_access_key_id="local", aws_secret_access_key="local")
    for service, name in (("dynamodb", "DYNAMODB"), ("dynamodbstreams", "DYNAMODB_STREAMS")):
        with closing(session.client(service, region_name="eu-west-1")) as client:
            assert client.meta.endpoint_url == exports[f"AWS_ENDPOINT_URL_{name}"]
