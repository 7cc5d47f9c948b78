"""Tests names of collections and databases that are unusual."""

import socket
import struct

import bson
import pytest

from multiclouddb_api import EntireDatabase, ErrorCategory, Now, ResourceAddress, Snapshot, connect
from multiclouddb_conformance.refusals import refused
from multiclouddb_mongo.catalog import list_collections

from .monitor import ids, read, walk
from .test_mongos import HEADER, OP_MSG, _document, _message

# Names that are no patterns, although they have characters of patterns.
ODD = [
    "{x}",
    "{",
    "a{b}2",
    "x%(a)s",
    "a[b]",
    "a|b",
    "a^b",
    "a*",
    "a+",
    "(x)",
    "a\\b",
    "a/b",
    "a\nb",
    "\x01",
    "\u202e",
    " ",
    "\r",
    "\u2028",
]


@pytest.mark.parametrize("name", ODD)
def test_a_collection_of_an_odd_name_is_read(one, reader, database, name):
    collection = one.client()[database][name]
    collection.insert_one({"_id": 0})
    here = ResourceAddress(database, name)
    token = read(reader, here, Now()).continuation_token
    collection.insert_one({"_id": 1})
    collection.delete_one({"_id": 0})
    assert ids(*walk(reader, here, token)) == [1, 0]
    assert ids(*walk(reader, here, Snapshot())) == [1]
    assert list_collections(one.client(), database) == [here]


@pytest.mark.parametrize("name", ["a{2}", "a{1,2}", "{1,}"])
def test_a_name_that_the_server_takes_for_a_pattern_is_refused(one, reader, database, name):
    here = ResourceAddress(database, name)
    one.client()[database][name].insert_one({"_id": 0})
    for start in (Now(), Snapshot()):
        with refused(ErrorCategory.UNSUPPORTED_CAPABILITY, "EntireDatabase()"):
            read(reader, here, start)
    # The feed of its database has its changes.
    wide = {"scope": EntireDatabase()}
    token = read(reader, ResourceAddress(database=database), Now(), **wide).continuation_token
    one.client()[database][name].insert_one({"_id": 1})
    pages = walk(reader, ResourceAddress(database=database), token, **wide)
    assert [event.address for page in pages for event in page.events] == [here]


@pytest.mark.parametrize("collection", [None, "c"])
def test_so_is_such_a_name_of_a_database(one, reader, collection):
    """A database `db{2}` would have the changes of `dbb`."""
    asked = {} if collection else {"scope": EntireDatabase()}
    one.client()["db{2}"]["c"].insert_one({"_id": 0})
    try:
        with refused(ErrorCategory.UNSUPPORTED_CAPABILITY, "EntireCluster()"):
            read(reader, ResourceAddress("db{2}", collection), Now(), **asked)
    finally:
        one.client().drop_database("db{2}")


def test_a_collection_whose_name_differs_by_a_line_break_at_its_end_is_refused(one, reader, database):
    """The server's pattern ends with `$`, which also matches before a line break at the end."""
    here, other = ResourceAddress(database, "c"), ResourceAddress(database, "c\n")
    native = one.client()[database]
    native["c"].insert_one({"_id": 0})
    token = read(reader, here, Now()).continuation_token
    native["c\n"].insert_one({"_id": 1})
    with connect(one.uri()) as new:
        for start in (Now(), token, Snapshot()):
            with refused(ErrorCategory.UNSUPPORTED_CAPABILITY, "EntireDatabase()"):
                read(new, here, start)
        # Its own feed is right.
        own = read(new, other, Now()).continuation_token
        native["c"].insert_one({"_id": 2})
        native["c\n"].insert_one({"_id": 3})
        assert ids(*walk(new, other, own)) == [3]


@pytest.mark.parametrize("change", ["insert", "drop", "rename", "renamed to"])
def test_its_changes_are_none_of_a_feed_that_is_open(one, reader, database, change):
    here = ResourceAddress(database, "c")
    native = one.client()[database]
    native["c"].insert_one({"_id": 0})
    token = read(reader, here, Now()).continuation_token
    native["c"].insert_one({"_id": 1})
    other = native["c\n"]
    match change:
        case "insert":
            other.insert_one({"_id": 2})
        case "drop":
            native.create_collection("c\n")
            other.drop()
        case "rename":
            native.create_collection("c\n")
            other.rename("other")
        case "renamed to":
            native["other"].insert_one({})
            native["other"].rename("c\n")
    native["c"].insert_one({"_id": 3})
    page = read(reader, here, token)
    assert (ids(page), page.notices) == ([1], ())
    with refused(ErrorCategory.PROVIDER_ERROR, "EntireDatabase()"):
        read(reader, here, page.continuation_token)


def insert_into(server, database, name):
    """Insert a document with bytes as the collection's name, which PyMongo would refuse."""
    text = "x" * len(name)
    command = bson.encode({"insert": text, "documents": [{}], "$db": database})
    body = struct.pack("<IB", 0, 0) + command.replace(text.encode(), name)
    host, _, port = server.primary().rpartition(":")
    with socket.create_connection((host, int(port))) as there, there.makefile("rb") as answer:
        there.sendall(HEADER.pack(HEADER.size + len(body), 1, 0, OP_MSG) + body)
        assert _document(_message(answer))["n"] == 1


def test_a_database_with_a_name_that_is_not_utf8_is_refused(one, database):
    """The server leaves out the changes of such a collection (SERVER-134808 is about databases)."""
    native = one.client()[database]
    native["\ufffd"].insert_one({"_id": 0})  # which is UTF-8, although decoders use it for what is not
    wide, here = {"scope": EntireDatabase()}, ResourceAddress(database=database)
    with connect(one.uri()) as client:
        token = read(client, here, Now(), **wide).continuation_token
        assert ids(*walk(client, here, Snapshot(), **wide)) == [0]
    insert_into(one, database, b"\xff")
    native["\ufffd"].insert_one({"_id": 1})
    with connect(one.uri()) as client:
        for start in (Now(), token, Snapshot()):
            with refused(ErrorCategory.UNSUPPORTED_CAPABILITY, "not UTF-8", "EntireCollection()"):
                read(client, here, start, **wide)
        assert ids(*walk(client, ResourceAddress(database, "\ufffd"), Snapshot())) == [0, 1]
