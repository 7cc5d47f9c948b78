"""Tests mistakes of users and failures of networks: every error says what to do and shows no secret."""

import functools
import traceback
from urllib.parse import quote

import pytest

from multiclouddb_api import (
    EntireCluster,
    EntireDatabase,
    ErrorCategory,
    FeedEnded,
    MulticloudDbError,
    NewItemStateMode,
    Now,
    OldItemStateMode,
    ResourceAddress,
    connect,
)
from multiclouddb_conformance.refusals import refusal
from multiclouddb_mongo import MongoOptions

from .harness import SMALL
from .monitor import ids, in_scope, read, told, walk
from .servers.mongod import PASSWORD, shared

READER, READER_PASSWORD = "reader", "an0ther/secret:x@y"
SECRETS = (
    PASSWORD,
    quote(PASSWORD, safe=""),
    READER_PASSWORD,
    quote(READER_PASSWORD, safe=""),
    "my-document-key",
)
INVALID = ErrorCategory.INVALID_REQUEST
MINE = ResourceAddress("mine", "c")


refused = functools.partial(refusal, hidden=SECRETS)


def reading(reader, address, place=None, **asked):
    return lambda: read(reader, address, place, **asked)


def make_reader(server):
    server.client()["mine"].command(
        "createUser", READER, pwd=READER_PASSWORD, roles=["read"], mechanisms=["SCRAM-SHA-256"]
    )


@pytest.fixture(scope="module")
def guarded():
    server = shared("us8 one", 1, **SMALL)
    admin = server.client()
    make_reader(server)
    admin["mine"]["c"].insert_one({"_id": "mine"})
    admin["theirs"]["c"].insert_one({"_id": "theirs"})
    yield server
    admin["mine"].command("dropUser", READER)
    for name in ("mine", "theirs"):
        admin.drop_database(name)


class TestTheIdentity:
    """Tests that credentials are not guessed and no secret is shown."""

    def url(self, server, user="", **options):
        return f"mongodb://{user}{server.uri(**options).rpartition('@')[2]}"

    def reader(self, server):
        return connect(self.url(server, f"{READER}:{quote(READER_PASSWORD, safe='')}@", authSource="mine"))

    @pytest.mark.parametrize(
        ("user", "word"), [("", "user"), ("reader:wrong@", "password"), ("nobody:an0ther@", "password")]
    )
    def test_somebody_else(self, guarded, user, word):
        with connect(self.url(guarded, user, **({"authSource": "mine"} if user else {}))) as reader:
            error = refused(ErrorCategory.AUTHENTICATION_FAILED, reading(reader, MINE), word)
            assert not error.retryable

    def test_who_may_read_a_database_reads_it_from_its_beginning(self, guarded):
        with self.reader(guarded) as reader:
            for scope in (None, EntireDatabase()):
                asked = in_scope(scope, MINE)
                assert read(reader, place=Now(), **asked).idle
                guarded.client()["mine"]["c"].update_one({}, {"$inc": {"n": 1}})
                assert ids(*walk(reader, **asked))[-1] == "mine"

    def test_a_user_that_was_dropped_cannot_read_until_it_connects_again(self, guarded):
        """The server closes no connection of a dropped user, but it forgets their logins."""
        with self.reader(guarded) as reader:
            token = read(reader, MINE, Now()).continuation_token
            guarded.client()["mine"].command("dropUser", READER)
            make_reader(guarded)
            for place in (token, Now()):
                error = refused(ErrorCategory.AUTHENTICATION_FAILED, reading(reader, MINE, place))
                assert "connect again" in error.message
        with self.reader(guarded) as reader:
            assert read(reader, MINE, token).events == ()

    @pytest.mark.parametrize(
        ("address", "asked"),
        [
            (ResourceAddress("theirs", "c"), {}),
            (ResourceAddress(database="theirs"), {"scope": EntireDatabase()}),
            (ResourceAddress(), {"scope": EntireCluster()}),
            (ResourceAddress("theirs", "c"), {"provider_options": MongoOptions(allow_missing=True)}),
        ],
        ids=str,
    )
    def test_and_nothing_else(self, guarded, address, asked):
        with self.reader(guarded) as reader:
            act = reading(reader, address, Now(), **asked)
            error = refused(ErrorCategory.AUTHORIZATION_FAILED, act, "role")
            assert error.detail.native_code.startswith("13")


CANNOT_BE = {
    "database": ["a.b", "a b", "$a", "a/b", "a\\b", 'a"b', "a\0b", "x" * 64],
    "collection": ["$a", "a..b", "a.", ".a", "a\0b"],
}


class TestNames:
    def test_a_name_that_cannot_be(self, reader, here):
        options = {"provider_options": MongoOptions(allow_missing=True)}
        for name in CANNOT_BE["database"]:
            address = ResourceAddress(database=name)
            refused(INVALID, reading(reader, address, Now(), scope=EntireDatabase()))
            refused(INVALID, reading(reader, ResourceAddress(name, "c"), Now(), **options))
        for name in CANNOT_BE["collection"]:
            refused(INVALID, reading(reader, ResourceAddress(here.database, name), Now(), **options))

    def test_where_there_is_no_stream(self, reader):
        for names in ("local/oplog.rs", "admin/system.version"):
            refused(INVALID, reading(reader, ResourceAddress.parse(names), Now()), "admin, local or config")
        for name in ("admin", "local", "config"):
            act = reading(reader, ResourceAddress(database=name), Now(), scope=EntireDatabase())
            refused(INVALID, act, "admin, local or config")

    def test_an_address_beside_a_cluster(self, reader, here):
        for address in (here, ResourceAddress(database=here.database)):
            act = reading(reader, address, Now(), scope=EntireCluster())
            refused(INVALID, act, "address", "ResourceAddress()")


WRONG = [
    {"comment": object()},
    {"max_await_time_ms": 2**40},
    {"pipeline": [{"$out": "x"}]},
    {"pipeline": [{"$match": {"$where": "1"}}]},
    {"pipeline": [{"$match": {}, "$project": {"a": 1}}]},
    {"pipeline": [{}]},
    {"pipeline": [{"$project": {"a": "$$nonsense"}}]},
    {"pipeline": [{"$match": {"a": object()}}]},
    {"resume_after": {}},
    {"resume_after": {"_data": "nonsense"}},
    {"resume_after": {"_data": "82"}},
    {"resume_after": {"_data": 5}},
    {"resume_after": {"nonsense": 1}},
    {"start_after": {"_data": "\0"}},
    {"start_after": {"_data": "8" * 100_000}},
]


class TestOptions:
    # The error shows the server's message without quoted values.

    @pytest.mark.parametrize(
        "options", WRONG, ids=[f"{name} {at}" for at, option in enumerate(WRONG) for name in option]
    )
    def test_what_the_server_does_not_take(self, reader, here, written, options):
        def act():
            asked = {"provider_options": MongoOptions(**options)}
            token = read(reader, here, Now(), **asked).continuation_token
            written.insert_one({"_id": 1})
            read(reader, here, token, **asked)

        assert not refused(INVALID, act).retryable

    def test_the_token_of_an_invalidate_goes_with_start_after(self, reader, here, written):
        with written.watch() as stream:
            written.drop()
            changes = [stream.next(), stream.next()]
        assert changes[-1]["operationType"] == "invalidate"
        written.insert_one({"_id": 1})
        token = changes[-1]["_id"]
        before = MongoOptions(resume_after=token)
        refused(INVALID, reading(reader, here, Now(), provider_options=before), "start_after")
        assert ids(read(reader, here, Now(), provider_options=MongoOptions(start_after=token))) == [1]


class TestPipelines:
    @pytest.mark.parametrize("name", ["operationType", "documentKey", "ns"])
    def test_what_is_needed_is_named(self, reader, here, written, name):
        asked = {"provider_options": MongoOptions(pipeline=[{"$unset": name}])}
        token = read(reader, here, Now(), **asked).continuation_token
        written.insert_one({"_id": "my-document-key"})
        refused(INVALID, reading(reader, here, token, **asked), name, "pipeline")

    @pytest.mark.parametrize(
        ("end", "stage"),
        [
            (lambda items: items.drop(), {"$match": {"operationType": "insert"}}),
            (lambda items: items.rename("d"), {"$redact": "$$PRUNE"}),
        ],
    )
    def test_none_hides_how_a_feed_ends(self, reader, here, written, stage, end):
        asked = {"provider_options": MongoOptions(pipeline=[stage])}
        token = read(reader, here, Now(), **asked).continuation_token
        written.insert_one({"_id": 1})
        end(written)
        found = []
        for _ in range(5):
            page = read(reader, here, token, **asked)
            found += told(page)
            token = page.continuation_token
        assert FeedEnded in found


def test_documents_may_come_or_not_from_page_to_page(reader, here, written):
    token = read(reader, here, Now()).continuation_token
    written.insert_one({"_id": 1})
    for mode in (NewItemStateMode.OMIT, NewItemStateMode.INCLUDE_IF_AVAILABLE):
        for old in (OldItemStateMode.OMIT, OldItemStateMode.INCLUDE_IF_AVAILABLE):
            asked = {"new_item_state_mode": mode, "old_item_state_mode": old, "include_native": True}
            assert ids(read(reader, here, token, **asked)) == [1]


@pytest.mark.parametrize("rule", ["index", "validator"])
def test_the_text_of_a_refused_write_shows_no_field_of_the_document(reader, one, here, rule):
    """The server adds the key of the index (`keyValue`), and what its validator refuses (`errInfo`)."""
    database = one.client()[here.database]
    if rule == "index":
        database["c"].create_index("name", unique=True)
        database["c"].insert_one({"_id": 1, "name": "SECRET"})
    else:
        database.command({"collMod": "c", "validator": {"name": {"$ne": "SECRET"}}})
    change = {"findAndModify": "c", "query": {"_id": 0}, "update": {"$set": {"name": "SECRET"}}}
    with pytest.raises(MulticloudDbError) as caught:
        reader.run_command(here.database, change)
    error = caught.value
    shown = str(error) + repr(error.detail) + "".join(traceback.format_exception(error))
    assert "SECRET" not in shown
    assert error.detail.native_code in ("11000", "121")
