"""Checks the page about MongoDB on a real replica set: its commands, programs, roles and tables."""

import json
import re
import socket
import subprocess
import time
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from pymongo import MongoClient
from pymongo.errors import ConnectionFailure, OperationFailure

import multiclouddb_api as api
from multiclouddb_conformance.waiting import wait_until
from testing import command_line

from .page import Page, servers

PAGE = Page("databases/mongodb.md")
ORDERS = api.ResourceAddress("shop", "orders")


def mongod():
    return servers("mongo")("mongod")


@contextmanager
def started(folder, **options):
    with mongod().ReplicaSet(folder, **options) as replica_set:
        yield replica_set


@pytest.fixture
def empty(tmp_path, monkeypatch):
    """Start a separate deployment, named in the environment, because its oplog must not contain other tests'
    changes.
    """
    monkeypatch.chdir(tmp_path)
    with started(tmp_path / "servers") as replica_set:
        monkeypatch.setenv("MONGODB_URI", replica_set.uri())
        yield replica_set


@pytest.fixture(scope="module")
def users(tmp_path_factory):
    """Provide a deployment with authentication and one collection."""
    with started(tmp_path_factory.mktemp("users"), auth=True) as replica_set:
        replica_set.client()["shop"]["orders"].insert_one({"_id": "o-1"})
        yield replica_set


# -- The page


def by_mongosh(name):
    """Return the arguments of each mongosh call on the page to a method with this name."""
    calls = []
    for block in PAGE.blocks("js"):
        for found in re.finditer(r"^(?:db|rs)\.(\w+)\((.*?)\)$", block, re.DOTALL | re.MULTILINE):
            if found[1] == name:
                text = found[2].replace("passwordPrompt()", '"a secret"')
                calls.append(json.loads(re.sub(r"([{,]\s*)(\w+):", r'\1"\2":', f"[{text}]")))
    return calls


def adminly(name):
    """Return the page's `adminCommand` that starts with this text."""
    (found,) = (call for (call,) in by_mongosh("adminCommand") if next(iter(call)) == name)
    return found


def create_orders(client):
    """Create the collection that the page describes, with the page's command."""
    ((name, options),) = by_mongosh("createCollection")
    return client["shop"].create_collection(name, **options)


def words_of(cell):
    """Return the texts in backticks."""
    return re.findall(r"`([^`]+)`", cell)


# -- Reading


def page_of(client, address, start, **asked):
    if isinstance(start, str):
        start = api.FromContinuationToken(start)
    return client.read_changes(api.ChangeFeedRequest(address, start, **asked))


class TestPrograms:
    def test_from_a_replica_set_to_the_first_event(self, empty):
        create_orders(empty.client())
        assert PAGE.run("write.py") == ""
        assert PAGE.run("first.py") == PAGE.said_behind("first.py")
        assert PAGE.run("options.py") == PAGE.said_behind("options.py")

        tail, partitions, check = (
            PAGE.commands(f"multiclouddb {name}")[0][1:] for name in ("tail", "partitions", "token")
        )
        assert command_line.said(*tail, "--until-idle") == ""
        PAGE.run("write.py")
        seen = command_line.said(*tail, "--until-idle")
        assert [line.split()[1] for line in seen.splitlines()] == ["CREATE", "UPDATE", "DELETE"]
        assert command_line.said(*tail, "--until-idle") == ""
        assert "1 open" in command_line.said(*partitions)
        assert "yes" in command_line.said(*check)
        assert PAGE.programs.keys() == PAGE.programs_run_in(__file__)

    def test_the_page_starts_a_server_that_will_do(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        (folder,) = PAGE.commands("mkdir")
        (words,) = PAGE.commands("mongod")
        (((config,),)) = by_mongosh("initiate")
        (export,) = PAGE.commands("export")
        with closing(socket.socket()) as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        there = words[words.index("--port") + 1]
        program = mongod().fetch()
        Path(folder[-1]).mkdir()
        process = subprocess.Popen(
            [str(program), *(port if word == there else word for word in words[1:])],
            stdout=subprocess.DEVNULL,
        )
        try:
            with MongoClient("localhost", int(port), directConnection=True) as client:
                answered(lambda: client.admin.command("ping"))
                client.admin.command("replSetInitiate", json.loads(json.dumps(config).replace(there, port)))
                answered(lambda: create_orders(client))
            url = export[1].partition("=")[2].replace(there, port)
            with api.connect(url) as client:
                assert page_of(client, ORDERS, api.Now()).idle
        finally:
            process.kill()
            process.wait()


def answered(call):
    """Wait until the server accepts the call."""

    def is_accepted():
        try:
            call()
        except (ConnectionFailure, OperationFailure):
            return False
        return True

    wait_until(is_accepted)


ASKED = {
    "collection": (ORDERS, {}),
    "key": (ORDERS, {"scope": api.LogicalPartition(api.MulticloudDbKey({"_id": "o-1"}))}),
    "database": (api.ResourceAddress(database="shop"), {"scope": api.EntireDatabase()}),
    "cluster": (api.ResourceAddress(), {"scope": api.EntireCluster()}),
}


class TestRoles:
    """Tests what a user with each role in the page's table may do, and what the page's own user may do."""

    COLLECTION = ({"db": "shop", "collection": "orders"}, ["find", "changeStream"])
    LIST = ({"db": "shop", "collection": ""}, ["listCollections"])
    DATABASE = ({"db": "shop", "collection": ""}, ["find", "changeStream", "listCollections"])
    EVERYTHING = ({"db": "", "collection": ""}, ["find", "changeStream"])

    @contextmanager
    def reader(self, users, *privileges, roles=()):
        """Provide a client of a user who has exactly the given privileges and roles."""
        admin = users.client()["admin"]
        name = f"reader-{time.monotonic_ns()}"
        if privileges:
            what = [{"resource": resource, "actions": actions} for resource, actions in privileges]
            admin.command("createRole", f"role-{name}", privileges=what, roles=[])
            roles = [*roles, f"role-{name}"]
        admin.command("createUser", name, pwd="a secret", roles=list(roles))
        with api.connect(api.ClientConfig("mongo", self.connection(users, name))) as client:
            yield client
        admin.command("dropUser", name)

    def connection(self, users, name):
        hosts = users.uri().rpartition("@")[2]
        return {"url": f"mongodb://{hosts}", "username": name, "password": "a secret"}

    def may(self, client, what):
        address, asked = ASKED[what]
        try:
            page = page_of(client, address, api.Beginning(), **asked)
        except api.MulticloudDbError as error:
            if error.category != api.ErrorCategory.AUTHORIZATION_FAILED:
                raise
            return False
        page_of(client, address, page.continuation_token, **asked)
        return True

    def can(self, client):
        return {what for what in ASKED if self.may(client, what)}

    def test_the_roles_of_the_table(self, users):
        rows = PAGE.rows_below("## Permissions")
        assert [words_of(cell) for _, cell, _ in rows] == [
            ["read"],
            ["read"],
            ["readAnyDatabase"],
            ["read", "local"],
            ["clusterMonitor"],
        ]
        for roles, can in (
            ([{"role": "read", "db": "shop"}], {"collection", "key", "database"}),
            (["readAnyDatabase"], {"collection", "key", "database", "cluster"}),
            ([{"role": "read", "db": "local"}], set()),
        ):
            with self.reader(users, roles=roles) as client:
                assert self.can(client) == can

    @pytest.mark.parametrize(
        ("row", "privileges", "can"),
        [
            (0, [COLLECTION, LIST], {"collection", "key"}),
            (1, [DATABASE], {"collection", "key", "database"}),
            (2, [EVERYTHING], {"cluster"}),
        ],
    )
    def test_what_they_come_down_to_and_none_of_it_can_be_left_out(self, users, row, privileges, can):
        said = set(words_of(PAGE.rows_below("## Permissions")[row][2]))
        assert said == {action for _, actions in privileges for action in actions}
        with self.reader(users, *privileges) as client:
            assert self.can(client) == can
        what = ("collection", "database", "cluster")[row]
        for resource, actions in privileges:
            for action in actions:
                fewer = [
                    (each, [name for name in names if (each, name) != (resource, action)])
                    for each, names in privileges
                ]
                with self.reader(users, *[(each, names) for each, names in fewer if names]) as client:
                    assert not self.may(client, what), action

    def test_the_user_of_the_page_can_all_that_the_page_says(self, users):
        admin = users.client()["admin"]
        for name in ("createRole", "createUser"):
            admin.command(adminly(name))
        feed = adminly("createUser")
        with api.connect(api.ClientConfig("mongo", self.connection(users, feed["createUser"]))) as client:
            assert page_of(client, ORDERS, api.Beginning()).events
            with client.run_cursor_command("local", {"find": "oplog.rs", "limit": 1}) as found:
                assert next(found)["ts"]
            assert not self.may(client, "database")


class TestOplog:
    def test_the_server_takes_what_the_page_sets(self, users):
        admin = users.client()["admin"]
        wanted = adminly("replSetResizeOplog")
        admin.command(wanted)
        assert users.client()["local"].command("collStats", "oplog.rs")["maxSize"] == wanted["size"] * 2**20
        truncation = admin.command("serverStatus")["oplogTruncation"]
        assert truncation["oplogMinRetentionHours"] == wanted["minRetentionHours"]
        wanted = adminly("setClusterParameter")
        images = wanted["setClusterParameter"]["changeStreamOptions"]["preAndPostImages"]
        admin.command(wanted)
        (found,) = admin.command("getClusterParameter", "changeStreamOptions")["clusterParameters"]
        assert found["preAndPostImages"] == images
        assert '`expireAfterSeconds: "off"`' in PAGE.text
        images["expireAfterSeconds"] = "off"
        admin.command(wanted)


class TestConnection:
    def test_the_file_of_the_page_is_one(self, tmp_path, monkeypatch):
        (text,) = PAGE.blocks("toml")
        path = tmp_path / "mongo.toml"
        path.write_text(text, encoding="utf-8")
        monkeypatch.setenv("MONGODB_PASSWORD", "hunter2")
        with api.connect(str(path)) as client:
            assert client.config.connection["password"] == "hunter2"
            assert "hunter2" not in repr(client)
