"""Checks the page about DynamoDB on DynamoDB Local: its commands, programs, policy and tables."""

import json
from contextlib import closing

import boto3
import pytest

import multiclouddb_api as api
from multiclouddb_conformance.refusals import refused
from multiclouddb_conformance.waiting import SOON
from testing import command_line

from .page import Page, servers

PAGE = Page("databases/dynamodb.md")
ORDERS = api.ResourceAddress(collection="orders")


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
        assert PAGE.run("write.py") == ""
        assert PAGE.run("first.py") == PAGE.said_behind("first.py")

    def test_all_programs_are_run_here(self):
        assert PAGE.programs.keys() == PAGE.programs_run_in(__file__)

    def test_a_table_gets_its_stream_later(self, server):
        server.create_table("orders", None, partition_key="id")
        with api.connect("dynamo://eu-west-1") as client:
            request = api.ChangeFeedRequest(ORDERS, api.Beginning())
            with refused(api.ErrorCategory.INVALID_REQUEST, "stream"):
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
        with api.connect(api.ClientConfig("dynamo", {"region": "eu-west-1", "session": session})) as client:
            put(orders, "o-1")
            client.read_changes(api.ChangeFeedRequest(ORDERS, api.Now()))
            page = client.read_changes(api.ChangeFeedRequest(ORDERS, api.Beginning()))
            orders.rollover()
            put(orders, "o-2")
            start = api.FromContinuationToken(page.continuation_token)
            with client.iterate_changes(api.ChangeFeedRequest(ORDERS, start), until_idle=True) as changes:
                assert [event.key.components["id"] for event in changes] == ["o-2"]
            assert len(client.list_physical_partitions(ORDERS)) > 0
            with client.iterate_changes(
                api.ChangeFeedRequest(ORDERS, api.Snapshot()), until_idle=True
            ) as changes:
                rows = [event for event in changes if event.backfilled]
            assert len(rows) == 2
            assert all(client.lookup(ORDERS, [row.key for row in rows]).values())
        assert called == allowed.keys()


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
            request = api.ChangeFeedRequest(
                api.ResourceAddress(collection=name),
                api.Beginning(),
                old_item_state_mode=api.OldItemStateMode.INCLUDE_IF_AVAILABLE,
            )
            with api.connect("dynamo://eu-west-1") as client:
                events = client.read_changes(request).events
            for field, words in zip(("new_item_state", "old_item_state"), said, strict=True):
                has = [event.type.value for event in events if getattr(event, field) is not None]
                assert words == (f"on {' and '.join(has)}" if has else "never"), (name, field)
        assert len(rows) == 4


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
