"""Tests what further public reports describe; `docs/reports.toml` lists them all."""

import threading
from contextlib import closing
from typing import ClassVar

import pytest
from bson import Binary, Decimal128
from bson.binary import UUID_SUBTYPE
from pymongo import WriteConcern
from pymongo.errors import OperationFailure

from multiclouddb_api import (
    ErrorCategory,
    Now,
    OldItemStateMode,
    ResourceAddress,
    Snapshot,
    connect,
    encode_json,
)
from multiclouddb_conformance.refusals import refused
from multiclouddb_mongo import MongoOptions
from multiclouddb_mongo.catalog import list_collections
from multiclouddb_mongo.errors import classify

from .monitor import IMAGES, ids, keys, read, walk
from .test_heads import World, soon
from .test_mongos import _document, _rewritten
from .test_reports import Altered, by

MANY = range(1, 21)
OP_MSG = 2013
EXHAUST_ALLOWED = 1 << 16


def is_stream(command):
    return "$changeStream" in (command.get("pipeline") or [{}])[0]


class Interrupted(Altered):
    """SERVER-102900: a server that answers before it has searched its whole log.

    The command that opens a stream finds no changes, and `left` more answers have none.
    """

    left = 0

    def __init__(self, member, seed):
        super().__init__(member, seed)
        # The servers tell a client at once which of them is the primary.
        self.uri = f"mongodb://127.0.0.1:{self.server_address[1]}/?heartbeatFrequencyMS=500"
        self.cursors = {}

    def answer(self, asked, ask):
        asked = _with_one_answer(asked)
        command = _document(asked)
        if is_stream(command):
            answer = ask(_rewritten(asked, command | {"cursor": {"batchSize": 0}}))
            cursor = _document(answer).get("cursor", {})
            self.cursors[cursor.get("id")] = cursor
            return answer
        cursor = self.cursors.get(command.get("getMore"))
        if cursor is None or not self.left:
            return ask(self.limited(asked, command))
        self.left -= 1
        answer = ask(_rewritten(asked, {"ping": 1, "$db": "admin"}))  # it tells the end of the log
        names = ("postBatchResumeToken", "id", "ns")
        empty = {"nextBatch": [], **{name: cursor[name] for name in names}}
        return _rewritten(answer, {"cursor": empty} | _document(answer))

    def limited(self, asked, command):
        return asked


class Short(Interrupted):
    """A server that sends one change at a time, although there are more."""

    def limited(self, asked, command):
        return _rewritten(asked, command | {"batchSize": 1}) if "getMore" in command else asked


def _with_one_answer(asked):
    """Return a request without the flag that allows more than one answer."""
    if int.from_bytes(asked[12:16], "little") != OP_MSG:
        return asked
    flags = int.from_bytes(asked[16:20], "little") & ~EXHAUST_ALLOWED
    return asked[:16] + flags.to_bytes(4, "little") + asked[20:]


@pytest.fixture
def server(one, request):
    with request.param(one.members[0], 0) as made:
        threading.Thread(target=made.serve_forever, args=(0.05,)).start()
        yield made
        made.shutdown()


class TestServerThatAnswersBeforeTheEndOfItsLog:
    @pytest.fixture
    def token(self, server, written, here):
        with by(server) as client:
            token = read(client, here, Now()).continuation_token
        written.insert_many([{"_id": key} for key in MANY])
        return token

    @pytest.mark.parametrize("server", [Interrupted, Short], indirect=True)
    @pytest.mark.parametrize("left", [1, 3])
    def test_an_idle_page_comes_after_every_change(self, server, token, here, left):
        server.left = left
        with by(server) as client:
            assert ids(*walk(client, here, token)) == list(MANY)
        assert server.left == 0

    @pytest.mark.parametrize("server", [Short], indirect=True)
    def test_a_short_answer_is_not_all_that_there_is(self, server, one, written, here):
        """A step of Spark's `availableNow` that takes it for all would end the run."""
        world = World(one, here.database, uri=server.uri + "&directConnection=true")
        cursor = world.start()
        written.insert_many([{"_id": key} for key in MANY])
        with closing(world.provider), closing(world.feed.open("0", cursor)) as stream:
            batch = stream.fetch(100, 1 << 24, 5.0, soon())
            assert len(batch) == 1
            assert batch.caught_up is not True

    @pytest.mark.parametrize("server", [Interrupted], indirect=True)
    def test_a_page_that_found_nothing_says_that_more_may_come(self, server, token, here):
        server.left = 10**9
        with by(server) as client:
            page = read(client, here, token, timeout=1.5)
            assert not page.events
            assert not page.idle


class Hasty(Altered):
    """A server whose defaultMaxTimeMS (MongoDB 8.0) is shorter than a search of its log.

    As SERVER-44110 says, the time for the first changes is that of the command that opens a stream.
    """

    def answer(self, asked, ask):
        command = _document(asked)
        if is_stream(command) and "maxTimeMS" not in command and command["cursor"].get("batchSize"):
            command |= {"maxTimeMS": 1}
        return ask(_rewritten(asked, command))


@pytest.mark.parametrize("server", [Hasty], indirect=True)
def test_a_stream_opens_although_its_search_takes_longer_than_a_command_may(server, written, here, one):
    with by(server) as client:
        token = read(client, here, Now()).continuation_token
    other = one.client()[here.database]["other"]
    for _ in range(4):
        other.insert_many([{"n": number} for number in range(5000)])
    written.insert_one({"_id": 1})
    with by(server) as client:
        assert ids(*walk(client, here, token)) == [1]


class Spent(Altered):
    """A server that opens a stream in all the time of its defaultMaxTimeMS, so the next answer has none.

    MongoDB 6.0.5 does so, for `maxTimeMS` 1 in about one of four openings.
    """

    spent: ClassVar[list[int]] = []

    def refusal(self, command):
        if "getMore" in command and command["getMore"] in self.spent:
            return {"code": 50, "codeName": "MaxTimeMSExpired", "errmsg": "operation exceeded time limit"}
        return None

    def changed(self, command, answer):
        if is_stream(command) and command["cursor"].get("batchSize"):
            self.spent.append(answer["cursor"]["id"])
        return answer


@pytest.mark.parametrize("server", [Spent], indirect=True)
def test_a_stream_whose_opening_has_used_up_the_time_is_opened_without_its_first_changes(
    server, written, here
):
    with by(server) as client:
        token = read(client, here, Now()).continuation_token
    written.insert_many([{"_id": key} for key in MANY])
    with by(server) as client:
        assert ids(*walk(client, here, token)) == list(MANY)
    assert server.spent


def test_a_secondary_is_read_while_there_is_no_primary(three, database):
    """A set that has lost its majority can still be read, if the read preference allows it."""
    collection = three.client()[database]["c"].with_options(write_concern=WriteConcern("majority"))
    collection.insert_one({"_id": 0})
    here = ResourceAddress(database, "c")
    uri = three.uri(readPreference="secondaryPreferred")
    with connect(uri) as client:
        token = read(client, here, Now()).continuation_token
    collection.insert_many([{"_id": key} for key in MANY])
    three.wait_healthy()
    primary = three.primary()
    down = [primary, next(member for member in three.members if member != primary)]
    for member in down:
        three.kill(member)
    try:
        with connect(uri) as client:
            page = read(client, here, token)
            found = keys(page.events)
            while len(found) < len(MANY):
                page = read(client, here, page.continuation_token)
                found += keys(page.events)
            assert found == list(MANY)
            assert not read(client, here, page.continuation_token).idle
    finally:
        for member in down:
            three.restart(member)
        three.wait_healthy()


REFERENCES = [
    {"_id": 1, "$ref": "c", "$id": 5, "z": Decimal128("1.0")},
    {"_id": 2, "$db": "d", "x": {"$db": "d", "$ref": "c", "$id": 5}, "$ref": "c", "$id": 5},
    {"_id": 3, "$id": 1, "$ref": "c"},
]


def test_a_document_that_looks_like_a_reference_keeps_the_order_of_its_fields(reader, here, one):
    """MongoDB 5.0 allows fields whose names begin with a dollar."""
    collection = one.client()[here.database].create_collection("refs", **IMAGES)
    refs = ResourceAddress(here.database, "refs")
    token = read(reader, refs, Now()).continuation_token
    collection.insert_many(REFERENCES)
    collection.delete_many({})
    collection.insert_many(REFERENCES)
    asked = {"old_item_state_mode": OldItemStateMode.REQUIRE}
    events = [event for page in walk(reader, refs, token, **asked) for event in page.events]
    found = [event.old_item_state or event.new_item_state for event in events]
    rows = [event.new_item_state for page in walk(reader, refs, Snapshot()) for event in page.events]
    assert list(map(encode_json, found)) == 3 * list(map(encode_json, rows))
    assert [list(row) for row in rows] == [list(document) for document in REFERENCES]


def test_the_data_of_queryable_encryption_are_no_collections_of_the_user(one, database):
    """SERVER-130498 names them; a job for each collection of a database would copy them."""
    for name in ("people", "enxcol_.people.esc", "enxcol_.people.ecoc"):
        one.client()[database].create_collection(name)
    assert list_collections(one.client(), database) == [ResourceAddress(database, "people")]


class Moved(Altered):
    """A collection that `moveCollection` (MongoDB 8.0) has given another UUID; its changes go on."""

    moved = False

    def changed(self, command, answer):
        if self.moved and "listCollections" in command:
            for each in answer["cursor"]["firstBatch"]:
                each["info"]["uuid"] = Binary(bytes(16), UUID_SUBTYPE)
        return answer


@pytest.mark.parametrize("server", [Moved], indirect=True)
def test_a_collection_that_was_moved_to_another_shard_can_be_continued(server, written, here):
    with by(server) as client:
        token = read(client, here, Now()).continuation_token
        server.moved = True
        written.insert_one({"_id": 1})
        assert ids(*walk(client, here, token)) == [1]
    with by(server) as client:
        with refused(ErrorCategory.INVALID_REQUEST, "recreated"):
            read(client, here, token)
        moved = MongoOptions(allow_missing=True)
        assert ids(*walk(client, here, token, provider_options=moved)) == [1]


def test_a_token_of_a_change_that_other_modes_do_not_split_says_so():
    """debezium/dbz#2619: the token of a split change is only valid where the change is split again."""
    error = OperationFailure("the event was not split", 280, {"code": 280})
    assert "item states" in classify(error).message
