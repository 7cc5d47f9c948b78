"""What the page about DynamoDB says, on DynamoDB Local: its commands, programs, policy and tables."""

import functools
import json
import os
import queue
import re
import shlex
import subprocess
import sys
import threading
from contextlib import closing
from datetime import UTC, datetime
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import boto3
import pytest
from botocore.awsrequest import AWSResponse

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
    MulticloudDbError,
    MulticloudDbKey,
    NewItemStateMode,
    Now,
    OldItemStateMode,
    ResourceAddress,
    connect,
)

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/how-to/dynamodb.md").read_text(encoding="utf-8")
PROGRAM = re.compile(r'^```python title="(?P<name>[^"]+)"\n(?P<code>.*?)^```$', re.DOTALL | re.MULTILINE)
PROGRAMS = {found["name"]: found["code"] for found in PROGRAM.finditer(PAGE)}
SOON = 60.0
ORDERS = ResourceAddress(collection="orders")


@functools.cache
def servers():
    """The servers of the provider's tests, which are no package of their own."""
    spec = ModuleSpec("dynamodb_servers", None, is_package=True)
    spec.submodule_search_locations = [str(ROOT / "providers/dynamo/tests/servers")]
    sys.modules[spec.name] = module_from_spec(spec)
    return import_module(f"{spec.name}.local")


@pytest.fixture(autouse=True)
def nobody(tmp_path, monkeypatch):
    """boto3 finds nothing of the person who runs the tests."""
    for name in ("AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))


@pytest.fixture
def server(tmp_path, monkeypatch):
    """An empty account, found by boto3's own variables."""
    local = servers()
    for name, value in import_module("dynamodb_servers.server").CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    with local.LocalDynamo() as made:
        monkeypatch.setenv("AWS_ENDPOINT_URL", made.endpoint_url)
        yield made


def commands(start):
    """Commands of the page that begin so, as their words."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [shlex.split(line) for line in lines if line.startswith(start)]


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


@pytest.fixture
def orders(server):
    """The table of the page."""
    (create,) = commands("aws dynamodb create-table")
    by_boto3(create)
    return server


def run(name):
    """What a program of the page prints."""
    Path(name).write_text(PROGRAMS[name], encoding="utf-8")
    ours = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    ran = subprocess.run(
        [sys.executable, "-W", "error", name], env=ours, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def said_behind(name):
    """What the page says that a program prints."""
    end = next(found.end() for found in PROGRAM.finditer(PAGE) if found["name"] == name)
    return re.match(r"\n\n```text\n(.*?)^```$", PAGE[end:], re.DOTALL | re.MULTILINE)[1]


def rows_below(heading):
    """The rows of the first table below a heading or a paragraph, header and all."""
    table = re.search(r"^\|.*?\n\n", PAGE[PAGE.index(heading) :], re.DOTALL | re.MULTILINE)[0]
    rows = [line.strip("|").split("|") for line in table.strip().splitlines()]
    return [[cell.strip() for cell in row] for row in rows[:1] + rows[2:]]


def refused(category, *words):
    return pytest.raises(
        MulticloudDbError,
        match=".*".join(map(re.escape, words)),
        check=lambda error: error.category == category,
    )


class TestPrograms:
    def test_from_an_empty_account_to_the_first_event(self, orders):
        assert run("worker.py") == ""  # a position, before there is any record
        assert run("write.py") == ""
        assert run("first.py") == said_behind("first.py")
        assert run("own_session.py") == run("own_clients.py") == "3\n"
        assert run("worker.py").splitlines() == [
            f"{kind} {{'id': 'o-1'}} False" for kind in ("CREATE", "UPDATE", "DELETE")
        ]
        assert run("worker.py") == ""

    def test_all_programs_are_run_here(self):
        ran = set(re.findall(r'(?:run|param)\("([^"]+\.py)"', Path(__file__).read_text(encoding="utf-8")))
        assert PROGRAMS.keys() == ran

    @pytest.mark.parametrize("name", [pytest.param("stream.py", id="stream.py-jvm")])  # for conftest.py
    def test_spark(self, orders, name):
        run("write.py")
        assert run(name) == "3\n"

    def test_a_table_gets_its_stream_later(self, server):
        server.create_table("orders", None, partition_key="id")
        with connect("dynamo://eu-west-1") as client:
            request = ChangeFeedRequest(ORDERS, Beginning())
            with refused(ErrorCategory.INVALID_REQUEST, "has no stream", "update-table"):
                client.read_changes(request)
            (update,) = commands("aws dynamodb update-table")
            by_boto3(update)
            assert client.read_changes(request).events == ()


class TestCommandLine:
    def test_a_tail_that_is_killed_misses_nothing(self, orders):
        tail, partitions, check = (
            commands(f"multiclouddb {name}")[0] for name in ("tail", "partitions", "token")
        )
        with Tail(tail) as process:
            process.wait_for_checkpoint()
            orders.client().put_item(TableName="orders", Item={"id": {"S": "o-1"}})
            assert 'id="o-1"' in process.line()
            process.kill()
        for number in (2, 3):
            orders.client().put_item(TableName="orders", Item={"id": {"S": f"o-{number}"}})
        with Tail(tail) as process:
            seen = ""
            while 'id="o-3"' not in seen:  # o-1 may be told again
                seen += process.line()
            assert 'id="o-2"' in seen
            process.kill()
        assert "1 open" in by_command_line(partitions)
        assert "yes" in by_command_line(check)


def by_command_line(words):
    ran = subprocess.run(
        [sys.executable, "-m", "multiclouddb_cli", *words[1:]], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


class Tail:
    """A command that runs until it is killed, and its lines."""

    def __init__(self, words):
        self.checkpoint = Path(words[words.index("--checkpoint") + 1])
        self.process = subprocess.Popen(
            [sys.executable, "-m", "multiclouddb_cli", *words[1:]], stdout=subprocess.PIPE, text=True
        )
        self.lines = queue.Queue()
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            self.lines.put(line)

    def line(self):
        return self.lines.get(timeout=SOON)

    def wait_for_checkpoint(self):
        pause = threading.Event()
        for _ in range(int(SOON / 0.05)):
            if self.checkpoint.exists():
                return
            pause.wait(0.05)
        raise TimeoutError("no checkpoint")

    def kill(self):
        self.process.kill()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.reader.join(SOON)
        self.process.stdout.close()


class TestPermissions:
    def policy(self):
        (text,) = re.findall(r"^```json\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
        return json.loads(text)

    def allowed(self):
        """Action → resource."""
        found = {}
        for statement in self.policy()["Statement"]:
            assert statement["Effect"] == "Allow"
            actions = statement["Action"]
            for action in [actions] if isinstance(actions, str) else actions:
                found[action] = statement["Resource"]
        return found

    def test_the_policy_allows_what_is_called_and_no_more(self, orders):
        """A feed from both ends, over a roll-over, from a token, with the list of its partitions."""
        called = set()
        session = boto3.Session()

        def note(model, **_):
            called.add(f"{model.service_model.signing_name}:{model.name}")

        session.events.register("before-call", note)
        with connect(ClientConfig("dynamo", {"region": "eu-west-1", "session": session})) as client:
            orders.client().put_item(TableName="orders", Item={"id": {"S": "o-1"}})
            client.read_changes(ChangeFeedRequest(ORDERS, Now()))
            start = FromContinuationToken(
                client.read_changes(ChangeFeedRequest(ORDERS, Beginning())).continuation_token
            )
            orders.rollover()
            orders.client().put_item(TableName="orders", Item={"id": {"S": "o-2"}})
            with client.iterate_changes(ChangeFeedRequest(ORDERS, start), until_idle=True) as changes:
                assert [event.key.components["id"] for event in changes] == ["o-2"]
            assert len(client.list_physical_partitions(ORDERS)) > 0
        assert called == self.allowed().keys()

    def test_each_action_is_allowed_on_its_own_kind_of_resource(self):
        streams = self.allowed()
        table = streams.pop("dynamodb:DescribeTable")
        assert re.fullmatch(r"arn:aws:dynamodb:[\w-]+:\d{12}:table/orders", table)
        assert set(streams.values()) == {f"{table}/stream/*"}
        assert self.policy()["Version"] == "2012-10-17"

    def test_the_page_about_configuration_names_the_same(self):
        text = (ROOT / "docs/configuration.md").read_text(encoding="utf-8")
        assert set(re.findall(r"dynamodb:[A-Z]\w+", text)) == self.allowed().keys()


class TestViewTypes:
    def test_an_event_has_what_the_table_says(self, server):
        rows = rows_below("The view type decides")
        assert rows[0] == ["`StreamViewType`", "`new_item_state`", "`old_item_state`"]
        for kind, *said in rows[1:]:
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
        assert len(rows) == 5


ASKED = {
    "`AtTime(…)`": {"start_position": AtTime(datetime(2026, 1, 31, tzinfo=UTC))},
    "`LogicalPartition(…)`": {"scope": LogicalPartition(MulticloudDbKey({"id": "o-1"}))},
    "`EntireDatabase()`": {"scope": EntireDatabase(), "address": ResourceAddress("shop")},
    "`EntireCluster()`": {"scope": EntireCluster(), "address": ResourceAddress()},
}


class TestRefusals:
    def test_what_is_not_there_is_refused(self, orders):
        said = " ".join(name for name, _ in rows_below("## What it cannot do"))
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

    def test_each_category_has_its_row(self):
        rows = rows_below("## When it fails")
        named = {category.partition("`:")[0].strip("`") for category, *_ in rows[1:]}
        # Nothing conflicts with a reader, and a permanent failure has no way out but a report.
        assert named == set(ErrorCategory.known()) - {"CONFLICT", "PERMANENT_FAILURE"}

    def test_a_stream_that_was_switched_off_and_on(self, orders):
        table = orders.client()
        token = FromContinuationToken
        with connect("dynamo://eu-west-1") as client:
            page = client.read_changes(ChangeFeedRequest(ORDERS, Now()))
        table.update_table(TableName="orders", StreamSpecification={"StreamEnabled": False})
        with connect("dynamo://eu-west-1") as client, refused(ErrorCategory.INVALID_REQUEST, "disabled"):
            client.read_changes(ChangeFeedRequest(ORDERS, Now()))
        (update,) = commands("aws dynamodb update-table")
        by_boto3(update)
        with connect("dynamo://eu-west-1") as client, refused(ErrorCategory.INVALID_REQUEST, "recreated"):
            client.read_changes(ChangeFeedRequest(ORDERS, token(page.continuation_token)))


class TestHosts:
    ARN = "arn:aws:dynamodb:eu-west-1:111122223333:table/orders/stream/2026-01-31T12:00:00.000"

    @pytest.mark.parametrize("mode", ["preferred", "disabled"])
    def test_streams_are_called_where_the_page_says(self, monkeypatch, mode):
        monkeypatch.setenv("AWS_ACCOUNT_ID_ENDPOINT_MODE", mode)
        session = boto3.Session(aws_access_key_id="local", aws_secret_access_key="local")
        streams = session.client("dynamodbstreams", region_name="eu-west-1")
        hosts = []

        def answer(request, **_):
            hosts.append(urlsplit(request.url).hostname)
            return AWSResponse(request.url, 200, {}, SimpleNamespace(stream=lambda: [b"{}"]))

        streams.meta.events.register("before-send", answer)
        streams.describe_stream(StreamArn=self.ARN)
        streams.close()
        (host,) = hosts
        pattern = host.replace("111122223333", "ACCOUNT").replace("eu-west-1", "REGION")
        assert f"`{pattern}`" in PAGE
        assert ("ACCOUNT" in pattern) is (mode == "preferred")

    def test_each_service_has_an_address_of_its_own(self, monkeypatch):
        exports = {}
        for _, word in commands("export AWS_ENDPOINT_URL_"):
            name, _, value = word.partition("=")
            monkeypatch.setenv(name, value)
            exports[name] = value
        session = boto3.Session(aws_access_key_id="local", aws_secret_access_key="local")
        for service, name in (("dynamodb", "DYNAMODB"), ("dynamodbstreams", "DYNAMODB_STREAMS")):
            with closing(session.client(service, region_name="eu-west-1")) as client:
                assert client.meta.endpoint_url == exports[f"AWS_ENDPOINT_URL_{name}"]
