"""Checks the page about MongoDB on a real replica set: its commands, programs, roles and tables."""

import json
import re
import socket
import subprocess
import time
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from urllib.parse import quote

import attrs
import bson
import pytest
from pymongo import MongoClient
from pymongo.errors import ConnectionFailure, OperationFailure
from pymongo.monitoring import CommandListener

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
    OperationOptions,
    ResourceAddress,
    SkipToOldest,
    connect,
    decode_json,
    encode_json,
)
from multiclouddb_conformance import command_line
from multiclouddb_conformance.refusals import refused
from multiclouddb_mongo import MongoOptions, RunCommandOptions, RunCursorCommandOptions
from multiclouddb_mongo.values import CODEC

from .page import Page, servers

PAGE = Page(
    "mongodb.md",
    "mongodb-documents.md",
    "mongodb-snapshot.md",
    "mongodb-oplog.md",
    "mongodb-options.md",
    "mongodb-connection.md",
    "mongodb-spark.md",
)
ORDERS = ResourceAddress("shop", "orders")
SOON = 30.0


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


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """Provide one deployment that is shared by all tests that use separate databases."""
    with started(tmp_path_factory.mktemp("one")) as replica_set:
        yield replica_set


@pytest.fixture
def database(one, request):
    name = f"test-{abs(hash(request.node.nodeid))}"
    yield one.client()[name]
    one.client().drop_database(name)


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
        start = FromContinuationToken(start)
    return client.read_changes(ChangeFeedRequest(address, start, **asked))


def events_of(client, address, start, **asked):
    """Return all existing events."""
    with client.iterate_changes(ChangeFeedRequest(address, start, **asked), until_idle=True) as changes:
        return list(changes)


def told(page):
    return [type(notice).__name__ for notice in page.notices]


class Monitor(CommandListener):
    """Records the commands that a client sends."""

    def __init__(self):
        self.sent = []

    def started(self, event):
        self.sent.append(dict(event.command))

    def succeeded(self, event):
        pass

    def failed(self, event):
        pass

    def streams(self):
        """Return the change streams that were opened, each with its command."""
        found = []
        for command in self.sent:
            stage = (command.get("pipeline") or [{}])[0].get("$changeStream")
            # The check of the oplog's first entry has a time limit.
            if "aggregate" in command and stage is not None and "maxTimeMS" not in command:
                found.append((stage, command))
        return found


@contextmanager
def watched(replica_set):
    """Provide a client of the library, and the commands that it sends."""
    monitor = Monitor()
    with (
        MongoClient(replica_set.uri(), event_listeners=[monitor]) as native,
        connect(ClientConfig("mongo"), native_client=native) as client,
    ):
        yield client, monitor


class TestPrograms:
    def test_from_a_replica_set_to_the_first_event(self, empty):
        create_orders(empty.client())
        assert PAGE.run("worker.py") == ""  # saves a position before the first change
        assert PAGE.run("write.py") == ""
        assert PAGE.run("first.py") == PAGE.said_behind("first.py")
        assert PAGE.run("options.py") == PAGE.said_behind("options.py")
        assert PAGE.run("own_client.py") == "3\n"
        lines = PAGE.run("worker.py").splitlines()
        assert [line.split()[0] for line in lines] == ["CREATE", "UPDATE", "DELETE"]
        assert PAGE.run("worker.py") == ""
        assert re.fullmatch(r"\d+\.\d of \d+ MB hold 0\.0\d hours\n", PAGE.run("window.py"))

    def test_all_programs_are_run_here(self):
        assert PAGE.programs.keys() == PAGE.programs_run_in(__file__)

    @pytest.mark.parametrize("name", [pytest.param("stream.py", id="stream.py-jvm")])  # conftest.py reads it
    def test_spark(self, empty, name):
        create_orders(empty.client())
        PAGE.run("write.py")
        assert PAGE.run(name) == "3\n"

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
            with connect(url) as client:
                assert page_of(client, ORDERS, Now()).idle
        finally:
            process.kill()
            process.wait()


def answered(call):
    """Wait until the server accepts the call."""
    until = time.monotonic() + SOON
    while True:
        try:
            return call()
        except (ConnectionFailure, OperationFailure):
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


class TestCommandLine:
    def test_a_tail_goes_on_where_it_was(self, empty):
        create_orders(empty.client())
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


ASKED = {
    "collection": (ORDERS, {}),
    "key": (ORDERS, {"scope": LogicalPartition(MulticloudDbKey({"_id": "o-1"}))}),
    "database": (ResourceAddress("shop"), {"scope": EntireDatabase()}),
    "cluster": (ResourceAddress(), {"scope": EntireCluster()}),
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
        with connect(ClientConfig("mongo", self.connection(users, name))) as client:
            yield client
        admin.command("dropUser", name)

    def connection(self, users, name):
        hosts = users.uri().rpartition("@")[2]
        return {"url": f"mongodb://{hosts}", "username": name, "password": "a secret"}

    def may(self, client, what):
        address, asked = ASKED[what]
        try:
            page = page_of(client, address, Beginning(), **asked)
        except MulticloudDbError as error:
            if error.category != ErrorCategory.AUTHORIZATION_FAILED:
                raise
            return False
        page_of(client, address, page.continuation_token, **asked)
        return True

    @pytest.mark.parametrize(
        ("roles", "can"),
        [
            ([{"role": "read", "db": "shop"}], {"collection", "key", "database"}),
            (["readAnyDatabase"], {"collection", "key", "database", "cluster"}),
            ([{"role": "read", "db": "local"}], set()),
        ],
    )
    def test_the_roles_of_the_table(self, users, roles, can):
        said = [words_of(cell) for _, cell, _ in PAGE.rows_below("## Roles")]
        assert said == [["read"], ["read"], ["readAnyDatabase"], ["read", "local"]]
        with self.reader(users, roles=roles) as client:
            assert {what for what in ASKED if self.may(client, what)} == can

    @pytest.mark.parametrize(
        ("row", "privileges", "can"),
        [
            (0, [COLLECTION, LIST], {"collection", "key"}),
            (1, [DATABASE], {"collection", "key", "database"}),
            (2, [EVERYTHING], {"cluster"}),
        ],
    )
    def test_what_they_come_down_to(self, users, row, privileges, can):
        said = set(words_of(PAGE.rows_below("## Roles")[row][2]))
        assert said == {action for _, actions in privileges for action in actions}
        with self.reader(users, *privileges) as client:
            assert {what for what in ASKED if self.may(client, what)} == can

    @pytest.mark.parametrize(
        ("what", "privileges"),
        [("collection", [COLLECTION, LIST]), ("database", [DATABASE]), ("cluster", [EVERYTHING])],
    )
    def test_none_of_it_can_be_left_out(self, users, what, privileges):
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
        with connect(ClientConfig("mongo", self.connection(users, feed["createUser"]))) as client:
            assert page_of(client, ORDERS, Beginning()).events
            with client.run_cursor_command("local", {"find": "oplog.rs", "limit": 1}) as found:
                assert next(found)["ts"]
            assert not self.may(client, "database")

    @pytest.mark.parametrize("local", [True, False])
    def test_the_beginning_is_found_with_and_without_a_look_at_the_log(self, users, local):
        roles = [{"role": "read", "db": "shop"}, *([{"role": "read", "db": "local"}] if local else [])]
        began = time.monotonic()
        with self.reader(users, roles=roles) as client:
            assert page_of(client, ORDERS, Beginning()).events
        assert time.monotonic() - began < 20


class TestOplog:
    @pytest.fixture
    def small(self, tmp_path):
        """Provide a deployment with a small oplog."""
        with started(tmp_path / "small", oplog_mb=1, auth=True) as replica_set:
            yield replica_set

    def test_expiry_headroom_and_the_way_on(self, small):
        native = small.client()
        native["shop"]["orders"].insert_one({"_id": 1})
        with connect(small.uri()) as client:
            page = page_of(client, ORDERS, Beginning())
            # The oplog has not removed any entry yet.
            assert page.diagnostics.retention_headroom_seconds is None
            token = page.continuation_token
            fill(native)
        native["admin"].command("createUser", "reader", pwd="x", roles=[{"role": "read", "db": "shop"}])
        with connect(small.uri()) as client:
            with refused(ErrorCategory.CHECKPOINT_EXPIRED, "SkipToOldest"):
                page_of(client, ORDERS, token)
            with refused(ErrorCategory.CHECKPOINT_EXPIRED, "AtTime"):
                page_of(client, ORDERS, AtTime(datetime.now(UTC) - timedelta(days=30)))
            page = page_of(client, ORDERS, token, on_expired=SkipToOldest())
            assert told(page) == ["Gap"]
            assert page.diagnostics.retention_headroom_seconds >= 0
        only = ClientConfig("mongo", TestRoles().connection(small, "reader") | {"password": "x"})
        with connect(only) as client:
            assert page_of(client, ORDERS, Now()).diagnostics.retention_headroom_seconds is None

    def test_an_entry_is_as_large_as_the_page_says(self, one, database):
        orders = database["orders"]
        document = {"_id": "o-1", "text": "x" * 1000}
        size = len(bson.encode(document))
        orders.insert_one(document)
        found = [entry_size(one, orders)]
        orders.replace_one({"_id": "o-1"}, document | {"text": "y" * 1000})
        found.append(entry_size(one, orders))
        orders.update_one({"_id": "o-1"}, {"$set": {"n": 1}})
        found.append(entry_size(one, orders) + size)
        orders.delete_one({"_id": "o-1"})
        found.append(entry_size(one, orders) + size)
        assert "300 bytes" in PAGE.text
        assert [round(each - size, -2) for each in found] == [300] * 4

    def test_the_numbers_are_those_of_the_rule(self):
        text = " ".join(PAGE.text.split())
        writes, hourly, size, hours = re.search(
            r"([\d,]+) writes per second, with 1 KB each, need an oplog of ([\d.]+) GB for one hour, "
            r"and of (\d+) GB for (\d+) hours",
            text,
        ).groups()
        entry = (1000 + 300) * int(writes.replace(",", ""))
        assert float(hourly) == pytest.approx(entry * 3600 / 1e9, abs=0.1)
        assert int(size) == pytest.approx(entry * 3600 * int(hours) / 1e9, rel=0.03)
        minutes = re.search(r"990 MB on a small machine contains only the last (\d+) minutes", text)[1]
        assert int(minutes) == 990e6 // entry // 60

    def test_the_server_takes_what_the_page_sets(self, one):
        admin = one.client()["admin"]
        wanted = adminly("replSetResizeOplog")
        admin.command(wanted)
        assert one.client()["local"].command("collStats", "oplog.rs")["maxSize"] == wanted["size"] * 2**20
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


def entry_size(replica_set, collection):
    """Return the size in bytes of a collection's last entry in the oplog."""
    log = replica_set.client()["local"]["oplog.rs"]
    entry = log.find_one({"ns": collection.full_name}, sort=[("$natural", -1)])
    return len(bson.encode(entry, codec_options=CODEC))


def fill(native):
    """Write notes into the oplog until its present entries are removed."""
    log = native["local"]["oplog.rs"]
    last = log.find_one(sort=[("$natural", -1)])["ts"]
    while log.find_one()["ts"] <= last:
        for _ in range(15):
            native["admin"].command({"appendOplogNote": 1, "data": {"note": "x" * 100_000}})
        native["admin"].command("fsync")
        time.sleep(0.1)  # the server removes old entries once a second


class TestStates:
    """Tests two updates of a document that no longer exists, and what the tables say about such updates."""

    def changes(self, database, name, images):
        orders = database.create_collection(name, changeStreamPreAndPostImages={"enabled": images})
        orders.insert_many([{"_id": "kept", "n": 0}, {"_id": "gone", "n": 0}])
        for number in (1, 2):
            orders.update_one({"_id": "kept"}, {"$set": {"n": number}})
        orders.update_one({"_id": "gone"}, {"$set": {"n": 1}})
        orders.delete_one({"_id": "gone"})
        return ResourceAddress(database.name, name)

    @pytest.fixture
    def there(self, database):
        return {images: self.changes(database, f"images-{images}", images) for images in (True, False)}

    @pytest.mark.parametrize(
        ("number", "modes", "field", "option"),
        [
            (0, NewItemStateMode, "new_item_state", "fullDocument"),
            (1, OldItemStateMode, "old_item_state", "fullDocumentBeforeChange"),
        ],
    )
    def test_an_event_has_what_the_table_says(self, one, there, number, modes, field, option):
        rows = PAGE.rows_below("## Documents before and after a change", number)
        assert {(mode.strip("`"), where.partition(" ")[0]) for mode, where, *_ in rows} == {
            ("OMIT", "any"),
            *((mode, where) for mode in ("INCLUDE_IF_AVAILABLE", "REQUIRE") for where in ("with", "without")),
        }
        for mode, where, sent, says in rows:
            for images in (True, False):
                if where.startswith("with") and where.startswith("without") is images:
                    continue
                with watched(one) as (client, monitor):
                    asked = {f"{field}_mode": modes[mode.strip("`")]}
                    if says.startswith("refused"):
                        with refused(ErrorCategory.UNSUPPORTED_CAPABILITY, "collMod"):
                            page_of(client, there[images], Beginning(), **asked)
                        continue
                    events = events_of(client, there[images], Beginning(), **asked)
                    stage, _ = monitor.streams()[-1]
                assert [stage.get(option, "nothing")] == (words_of(sent) or [sent])
                self.check(events, field, says)

    def check(self, events, field, says):
        updates = [
            (event.key.components["_id"], (getattr(event, field) or {}).get("n"))
            for event in events
            if event.type.value == "UPDATE"
        ]
        if says.startswith("None"):
            assert {number for _, number in updates} == {None}
        elif "when it is read" in says:
            assert updates == [("kept", 2), ("kept", 2), ("gone", None)]
        elif "after the change" in says:
            assert updates == [("kept", 1), ("kept", 2), ("gone", 1)]
        else:
            assert "before the change" in says
            assert updates == [("kept", 0), ("kept", 1), ("gone", 0)]
            assert events[-1].old_item_state["n"] == 1

    def test_a_look_up_may_show_what_was_inserted_again(self, one, database):
        orders = database["orders"]
        orders.insert_one({"_id": 1, "n": 0})
        orders.update_one({"_id": 1}, {"$set": {"n": 1}})
        orders.delete_one({"_id": 1})
        orders.insert_one({"_id": 1, "n": 9})
        with connect(one.uri()) as client:
            events = events_of(client, ResourceAddress(database.name, "orders"), Beginning())
        assert [(event.new_item_state or {}).get("n") for event in events] == [0, 9, None, 9]

    def test_images_are_switched_on_later(self, one, database):
        database.create_collection("orders").insert_one({"_id": 1, "n": 0})
        database["orders"].update_one({"_id": 1}, {"$set": {"n": 1}})
        ((command,),) = by_mongosh("runCommand")
        database.command(command)
        database["orders"].update_one({"_id": 1}, {"$set": {"n": 2}})
        with connect(one.uri()) as client:
            events = events_of(client, ResourceAddress(database.name, "orders"), Beginning())
        assert [(event.new_item_state or {}).get("n") for event in events] == [0, None, 2]

    def test_an_image_is_the_document_and_little_more(self, one, database):
        orders = database.create_collection("orders", changeStreamPreAndPostImages={"enabled": True})
        orders.insert_one({"_id": "imaged", "text": "x" * 1000})
        size = len(bson.encode(orders.find_one()))
        orders.delete_one({"_id": "imaged"})
        kept = one.client()["config"]["system.preimages"].find_one({"preImage._id": "imaged"})
        assert "about 110 more bytes" in PAGE.text
        assert len(bson.encode(kept, codec_options=CODEC)) - size == pytest.approx(110, abs=5)

    def test_wider_scopes_ask_no_collection(self, one, there):
        wide = {"scope": EntireDatabase()}
        address = ResourceAddress(there[True].database)
        with watched(one) as (client, monitor):
            page_of(client, address, Now(), **wide)
            assert monitor.streams()[-1][0]["fullDocument"] == "updateLookup"
            required = wide | {"new_item_state_mode": NewItemStateMode.REQUIRE}
            with refused(ErrorCategory.UNSUPPORTED_CAPABILITY, "image"):
                events_of(client, address, Beginning(), **required)


class TestScopes:
    def test_wider_scopes_tell_where_it_was(self, empty):
        for database in ("shop", "other"):
            for collection in ("orders", "items"):
                empty.client()[database][collection].insert_one({"_id": 1})
        with connect(empty.uri()) as client:
            shop = events_of(client, ResourceAddress("shop"), Beginning(), scope=EntireDatabase())
            every = events_of(client, ResourceAddress(), Beginning(), scope=EntireCluster())
        places = [ResourceAddress(name, each) for name in ("shop", "other") for each in ("orders", "items")]
        assert [event.address for event in shop] == places[:2]
        assert [event.address for event in every] == places

    def test_one_document_of_any_key(self, one, database):
        keys = [bson.ObjectId(), 5, "o-1", {"a": 1, "b": 2}, b"x"]
        for key in keys:
            database["orders"].insert_one({"_id": key})
        with connect(one.uri()) as client:
            for key in keys:
                scope = LogicalPartition(MulticloudDbKey({"_id": key}))
                found = events_of(client, ResourceAddress(database.name, "orders"), Beginning(), scope=scope)
                assert [event.key.components["_id"] for event in found] == [key]

    def test_a_collection_is_one_partition(self, one, database):
        database.create_collection("orders")
        with connect(one.uri()) as client:
            assert len(client.list_physical_partitions(ResourceAddress(database.name, "orders"))) == 1

    def test_a_start_at_a_time_is_never_late_and_hardly_early(self, one, database):
        address = ResourceAddress(database.name, "orders")
        database["orders"].insert_one({"_id": 1})
        with connect(one.uri()) as client:
            (event,) = events_of(client, address, Beginning())
            second = event.timestamp.replace(microsecond=0)
            after = event.timestamp + timedelta(seconds=1.15)
            found = [events_of(client, address, AtTime(at)) for at in (second, event.timestamp, after)]
        assert "up to 1.1 seconds" in PAGE.text
        assert [len(events) for events in found] == [1, 1, 0]

    def test_the_token_of_a_quiet_collection_moves(self, one, database):
        address = ResourceAddress(database.name, "orders")
        database.create_collection("orders")
        with connect(one.uri()) as client:
            first = page_of(client, address, Now())
            database["other"].insert_one({"_id": 1})
            second = page_of(client, address, first.continuation_token)
        assert first.events == second.events == ()
        assert first.continuation_token != second.continuation_token


class TestOptions:
    def rows(self):
        """Map each option to its name in MongoDB and its default."""
        return {words_of(name)[0]: rest for name, *rest in PAGE.rows_below("## Options of a change stream")}

    def test_the_table_has_every_option(self):
        assert list(self.rows()) == [field.name for field in attrs.fields(MongoOptions)]

    def test_the_page_says_which_ones_a_token_is_bound_to(self):
        bound = {field.name for field in attrs.fields(MongoOptions) if field.metadata.get("positions")}
        said = re.search(r"its values of the options (.*?)\. A request", " ".join(PAGE.text.split()))[1]
        assert set(words_of(said)) == bound

    def opened(self, one, database, options):
        """Return the streams that a request and the next request open, each with all its options."""
        address = ResourceAddress(database.name, "orders")
        with watched(one) as (client, monitor):
            page = page_of(client, address, Now(), provider_options=options)
            page_of(client, address, page.continuation_token, provider_options=options)
        return [command | stage for stage, command in monitor.streams()]

    @pytest.mark.parametrize(
        ("option", "value"),
        [
            ("full_document", "required"),
            ("full_document_before_change", "required"),
            ("resume_after", None),
            ("start_after", None),
            ("start_at_operation_time", None),
            ("collation", {"locale": "de"}),
            ("comment", "accounting"),
            ("show_expanded_events", True),
        ],
    )
    def test_an_option_is_sent_by_its_name_and_else_not(self, one, database, option, value):
        database["orders"].insert_one({"_id": 1})
        with database["orders"].watch() as native:
            value = native.resume_token if option in ("resume_after", "start_after") else value
        value = bson.Timestamp(int(time.time()), 1) if option == "start_at_operation_time" else value
        (name,) = words_of(self.rows()[option][0])
        assert value in [
            said.get(name) for said in self.opened(one, database, MongoOptions(**{option: value}))
        ]
        assert self.opened(one, database, MongoOptions())[0].get(name) != value

    def test_what_counts_when_nothing_is_given(self, one, database):
        rows = {name: otherwise for name, (_, otherwise) in self.rows().items()}
        database["orders"].insert_one({"_id": 1})
        address = ResourceAddress(database.name, "orders")
        with watched(one) as (client, monitor):
            for size in (1, 10_000):
                page_of(client, address, Beginning(), max_page_size=size)
            for wait in (0, 0.6):
                token = page_of(client, address, Now()).continuation_token
                request = ChangeFeedRequest(address, FromContinuationToken(token))
                client.read_changes(request, OperationOptions(wait_seconds=wait))
        sizes = [command["cursor"]["batchSize"] for _, command in monitor.streams()]
        said = re.fullmatch(r"the size of a page, .* least (\d+) and at most ([\d,]+)", rows["batch_size"])
        least, most = said.groups()
        assert {int(least), int(most.replace(",", ""))} <= set(sizes)
        awaited = {command.get("maxTimeMS") for command in monitor.sent if "getMore" in command}
        assert rows["max_await_time_ms"] == "10, or 500 in a long poll (`wait_seconds`)"
        assert {10, 500} <= awaited
        assert rows["comment"] == "`multiclouddb`"
        assert {command["comment"] for _, command in monitor.streams()} == {"multiclouddb"}

    def test_a_value_is_the_servers_to_judge(self, one, database):
        database.create_collection("orders")
        with refused(ErrorCategory.INVALID_REQUEST, "sometimes"):
            self.opened(one, database, MongoOptions(full_document="sometimes"))

    def test_there_is_one_start(self):
        with refused(ErrorCategory.INVALID_REQUEST, "start_after"):
            MongoOptions(start_after={"_data": "82"}, resume_after={"_data": "82"})

    def test_a_consumer_comes_from_pymongo(self, one, database):
        address = ResourceAddress(database.name, "orders")
        with database["orders"].watch() as native:
            database["orders"].insert_many([{"_id": number} for number in range(3)])
            next(native)
            options = MongoOptions(resume_after=native.resume_token)
        with connect(one.uri()) as client:
            page = page_of(client, address, Now(), provider_options=options)
            assert [event.key.components["_id"] for event in page.events] == [1, 2]
            assert page_of(client, address, page.continuation_token).events == ()

    @pytest.mark.parametrize(
        "stage",
        [
            {"$match": {"operationType": "insert"}},
            {"$project": {"operationType": 1, "ns": 1, "documentKey": 1, "fullDocument": 1}},
            {"$addFields": {"fullDocument.more": 1}},
            {"$set": {"fullDocument.more": 1}},
            {"$unset": "fullDocument.less"},
            {"$replaceRoot": {"newRoot": "$$ROOT"}},
            {"$replaceWith": "$$ROOT"},
            {"$redact": "$$KEEP"},
        ],
        ids=lambda stage: next(iter(stage)),
    )
    def test_these_stages_are_allowed(self, one, database, stage):
        assert f"`{next(iter(stage))}`" in PAGE.text
        database["orders"].insert_one({"_id": 1, "less": 1})
        address, options = ResourceAddress(database.name, "orders"), MongoOptions(pipeline=[stage])
        with connect(one.uri()) as client:
            (event,) = page_of(client, address, Beginning(), provider_options=options).events
        assert event.new_item_state["_id"] == 1

    @pytest.mark.parametrize("field", ["_id", "operationType", "ns", "documentKey"])
    def test_what_an_event_needs(self, one, database, field):
        (said,) = re.findall(r"^- Leave `_id` as it is.*?(?=^- )", PAGE.text, re.DOTALL | re.MULTILINE)
        assert field in words_of(said)
        database["orders"].insert_one({"_id": 1})
        options = MongoOptions(pipeline=[{"$project": {field: 0}}])
        with connect(one.uri()) as client, refused(ErrorCategory.INVALID_REQUEST, "pipeline"):
            address = ResourceAddress(database.name, "orders")
            page_of(client, address, Beginning(), provider_options=options)

    def test_a_filter_of_documents_has_no_deletes(self, one, database):
        address = ResourceAddress(database.name, "orders")
        options = MongoOptions(pipeline=[{"$match": {"fullDocument.status": "paid"}}])
        with connect(one.uri()) as client:
            database["orders"].insert_many([{"_id": 1, "status": "new"}, {"_id": 2, "status": "paid"}])
            database["orders"].delete_many({})
            events = events_of(client, address, Beginning(), provider_options=options)
            assert [event.key.components["_id"] for event in events] == [2]
            token = page_of(client, address, Beginning(), provider_options=options).continuation_token
            with refused(ErrorCategory.INVALID_REQUEST, "provider options"):
                page_of(client, address, token)
            page = page_of(client, address, token, provider_options=options)
            database["orders"].drop()
            page = page_of(client, address, page.continuation_token, provider_options=options)
            assert "pipeline" in page.notices[-1].reason
            assert told(page)[-1] == "FeedEnded"


class TestGoneCollections:
    @pytest.mark.parametrize(
        "what", ["the collection is dropped", "the collection is renamed", "the database is dropped"]
    )
    def test_the_notices_are_those_of_the_table(self, one, database, what):
        (said,) = (row[1] for row in PAGE.rows_below("## When a collection goes away") if row[0] == what)
        orders, address, asked = database["orders"], ResourceAddress(database.name, "orders"), {}
        orders.insert_one({"_id": 1})
        if "database" in what:
            address, asked = ResourceAddress(database.name), {"scope": EntireDatabase()}
        with connect(one.uri()) as client:
            token = page_of(client, address, Now(), **asked).continuation_token
            orders.insert_one({"_id": 2})
            if "renamed" in what:
                orders.rename("former")
            elif "database" in what:
                one.client().drop_database(database.name)
            else:
                orders.drop()
            notices, events = [], []
            while "FeedEnded" not in notices:
                page = page_of(client, address, token, **asked)
                token = page.continuation_token
                notices += told(page)
                events += page.events
            assert [event.key.components["_id"] for event in events] == [2]
            assert notices == re.findall(r"`(\w+)`", said)
            assert told(page_of(client, address, token, **asked)) == ["FeedEnded"]

    def test_following_and_waiting(self, one, database):
        address = ResourceAddress(database.name, "orders")
        with connect(one.uri()) as client:
            with refused(ErrorCategory.NOT_FOUND, "allow_missing"):
                page_of(client, address, Now())
            asked = {"provider_options": MongoOptions(allow_missing=True, after_invalidate="follow")}
            token = page_of(client, address, Now(), **asked).continuation_token
            database["orders"].insert_one({"_id": 1})
            database["orders"].drop()
            database["orders"].insert_one({"_id": 2})
            notices, events = [], []
            while len(events) < 2:
                page = page_of(client, address, token, **asked)
                token = page.continuation_token
                notices += told(page)
                events += page.events
            assert [event.key.components["_id"] for event in events] == [1, 2]
            assert notices == ["Dropped", "Invalidated"]

    def test_a_recreated_collection_refuses_the_old_token(self, one, database):
        address = ResourceAddress(database.name, "orders")
        database.create_collection("orders")
        with connect(one.uri()) as client:
            token = page_of(client, address, Now()).continuation_token
        database["orders"].drop()
        database.create_collection("orders")
        with connect(one.uri()) as client, refused(ErrorCategory.INVALID_REQUEST, "recreated"):
            page_of(client, address, token)


class TestSpecialEvents:
    def test_a_large_event_is_read_with_the_other_mode(self, one, database):
        orders = database.create_collection("orders", changeStreamPreAndPostImages={"enabled": True})
        address = ResourceAddress(database.name, "orders")
        asked = {"old_item_state_mode": OldItemStateMode.INCLUDE_IF_AVAILABLE}
        with connect(one.uri()) as client:
            orders.insert_one({"_id": 1, "text": "a" * 9_000_000})
            token = page_of(client, address, Now()).continuation_token
            orders.replace_one({"_id": 1}, {"text": "b" * 9_000_000})
            with refused(ErrorCategory.PROVIDER_ERROR, "OMIT"):
                page_of(client, address, token, **asked)
            (event,) = page_of(client, address, token).events
        assert len(event.new_item_state["text"]) == 9_000_000

    def test_poison_and_what_is_none(self, one, database):
        orders, address = database["orders"], ResourceAddress(database.name, "orders")
        database.create_collection("orders")
        with connect(one.uri()) as client:
            token = page_of(client, address, Now()).continuation_token
            orders.insert_one({"_id": 1, "date": bson.DatetimeMS(253402300800000)})
            good = bson.encode({"_id": 2, "text": "damaged"})
            orders.insert_one(bson.raw_bson.RawBSONDocument(good.replace(b"damaged", b"damage\xff")))
            orders.insert_one({"_id": 3})
            page = page_of(client, address, token)
            assert isinstance(page.events[0].new_item_state["date"], bson.DatetimeMS)
            with refused(ErrorCategory.PROVIDER_ERROR, "UTF-8") as raised:
                page_of(client, address, page.continuation_token)
            page = page_of(client, address, raised.value.detail.skip_token)
            (event,) = page_of(client, address, page.continuation_token).events
        assert event.key.components["_id"] == 3

    def test_what_an_update_set_is_in_the_native_event(self, one, database):
        address = ResourceAddress(database.name, "orders")
        database["orders"].insert_one({"_id": 1})
        database["orders"].update_one({"_id": 1}, {"$set": {"status": "paid"}})
        with connect(one.uri()) as client:
            event = events_of(client, address, Beginning(), include_native=True)[-1]
        assert event.native["updateDescription"]["updatedFields"] == {"status": "paid"}
        assert event.by_expiry is None


class TestCommands:
    def test_the_table_has_every_option(self):
        both = [field.name for field in attrs.fields(RunCommandOptions)]
        every = [field.name for field in attrs.fields(RunCursorCommandOptions)]
        said = {name: what for names, what, _ in PAGE.rows_below("## Commands") for name in words_of(names)}
        assert sorted(said) == sorted(every)
        assert sorted(name for name, what in said.items() if what == "both methods") == sorted(both)

    def test_a_field_of_pymongos_own_is_replaced_and_the_command_kept(self, one):
        command = {"ping": 1, "lsid": {"id": 1}}
        with watched(one) as (client, monitor):
            client.run_command("admin", command)
        (sent,) = (each for each in monitor.sent if "ping" in each)
        assert sent["lsid"] != {"id": 1}
        assert command == {"ping": 1, "lsid": {"id": 1}}

    def test_a_time_limit_takes_the_place_of_the_commands_own(self, one):
        with watched(one) as (client, monitor):
            client.run_command("admin", {"ping": 1, "maxTimeMS": 12345})
            client.run_command("admin", {"ping": 1, "maxTimeMS": 12345}, timeout_ms=5000)
        plain, timed = (each["maxTimeMS"] for each in monitor.sent if "ping" in each)
        assert plain == 12345
        assert timed <= 5000

    def test_two_timeouts_are_refused(self, one):
        with connect(one.uri()) as client, refused(ErrorCategory.INVALID_REQUEST, "max_time_ms"):
            client.run_cursor_command("admin", {"find": "x"}, timeout_ms=100, max_time_ms=10)


class TestValues:
    def test_each_value_comes_as_the_table_says(self, one, database):
        rows = PAGE.rows_below("## Values")
        wanted = {name: decode_json(words_of(text)[0].encode()) for name, _, text in rows}
        wanted["decimal128"] = bson.Decimal128(wanted["decimal128"])
        wanted["64-bit integer"] = bson.Int64(wanted["64-bit integer"])
        database["orders"].insert_one({"_id": 1} | wanted)
        with connect(one.uri()) as client:
            ((event),) = events_of(client, ResourceAddress(database.name, "orders"), Beginning())
        for name, kind, text in rows:
            value = event.new_item_state[name]
            assert type(value).__name__ == words_of(kind)[0], name
            assert encode_json(value).decode() == words_of(text)[0], name
            assert decode_json(encode_json(value)) == value, name

    @pytest.mark.parametrize(
        ("value", "words"),
        [
            (2**64, "integers of more than 64 bits"),
            (Decimal("1." + "1" * 34), "decimals of more than 34 digits"),
            (datetime(2026, 1, 31, microsecond=1, tzinfo=UTC), "finer than a millisecond"),
        ],
    )
    def test_what_bson_does_not_have_is_refused(self, one, database, value, words):
        assert words in " ".join(PAGE.text.split())
        database.create_collection("orders")
        scope = LogicalPartition(MulticloudDbKey({"_id": value}))
        with connect(one.uri()) as client, refused(ErrorCategory.INVALID_REQUEST, "BSON"):
            page_of(client, ResourceAddress(database.name, "orders"), Now(), scope=scope)


class TestConnection:
    def test_the_file_of_the_page_is_one(self, tmp_path, monkeypatch):
        (text,) = PAGE.blocks("toml")
        path = tmp_path / "mongo.toml"
        path.write_text(text, encoding="utf-8")
        monkeypatch.setenv("MONGODB_PASSWORD", "hunter2")
        with connect(str(path)) as client:
            assert client.config.connection["password"] == "hunter2"
            assert "hunter2" not in repr(client)

    def test_an_option_that_nobody_knows_is_refused(self):
        with refused(ErrorCategory.INVALID_REQUEST, "retryRead"):
            connect("mongodb://localhost/?retryRead=true")

    def test_a_stream_reads_with_majority_whatever_the_client_does(self, one, database):
        database.create_collection("orders")
        monitor = Monitor()
        with (
            MongoClient(one.uri(readConcernLevel="local"), event_listeners=[monitor]) as native,
            connect(ClientConfig("mongo"), native_client=native) as client,
        ):
            page_of(client, ResourceAddress(database.name, "orders"), Now())
        assert {command["readConcern"]["level"] for _, command in monitor.streams()} == {"majority"}

    def test_a_password_beside_the_url_may_have_any_character(self, users):
        config = {"url": f"mongodb://{users.uri().rpartition('@')[2]}"}
        config |= {"username": mongod().USER, "password": mongod().PASSWORD}
        assert quote(mongod().PASSWORD, safe="") != mongod().PASSWORD
        with connect(ClientConfig("mongo", config)) as client:
            assert client.run_command("admin", {"ping": 1})["ok"] == 1


class TestSpeed:
    def test_pages_by_token_cost_one_cursor(self, one, database):
        address = ResourceAddress(database.name, "orders")
        database["orders"].insert_many([{"_id": number} for number in range(200)])
        with watched(one) as (client, monitor):
            page = page_of(client, address, Beginning(), max_page_size=10)
            before = len(monitor.streams())
            for _ in range(15):
                page = page_of(client, address, page.continuation_token, max_page_size=10)
                assert len(page.events) == 10
        assert len(monitor.streams()) == before


class TestFailures:
    def test_each_category_has_its_row(self):
        # Two are not listed: a reader cannot cause a conflict, and a permanent failure can only be reported.
        assert PAGE.categories() == set(ErrorCategory.known()) - {"CONFLICT", "PERMANENT_FAILURE"}

    def test_a_wrong_password(self, users):
        config = {"url": f"mongodb://{users.uri().rpartition('@')[2]}"}
        config |= {"username": "x", "password": "hunter2"}
        with connect(ClientConfig("mongo", config)) as client:
            with refused(ErrorCategory.AUTHENTICATION_FAILED, "authSource") as raised:
                page_of(client, ORDERS, Now())
            assert "hunter2" not in str(raised.value)

    def test_what_has_no_change_stream(self, one, database):
        database["orders"].insert_one({"_id": 1})
        database.create_collection("view", viewOn="orders", pipeline=[])
        database.create_collection("series", timeseries={"timeField": "t"})
        with connect(one.uri()) as client:
            for name in ("view", "series", "system.views"):
                with refused(ErrorCategory.INVALID_REQUEST, "change stream"):
                    page_of(client, ResourceAddress(database.name, name), Now())

    def test_no_server_that_answers(self):
        with closing(socket.socket()) as free:
            free.bind(("127.0.0.1", 0))
            url = f"mongodb://127.0.0.1:{free.getsockname()[1]}/?serverSelectionTimeoutMS=200"
            with connect(url) as client, refused(ErrorCategory.TRANSIENT_FAILURE, "replicaSet"):
                page_of(client, ORDERS, Now())
