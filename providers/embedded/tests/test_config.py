"""Tests the configuration of a store, and the errors for wrong names."""

import functools

import pytest

import multiclouddb_api as api
from multiclouddb_conformance import refusals
from multiclouddb_embedded import EmbeddedOptions, EmbeddedStore

refused = functools.partial(refusals.refused, api.ErrorCategory.INVALID_REQUEST)


def config(**connection):
    return api.ClientConfig("embedded", connection)


def request(collection="items"):
    return api.ChangeFeedRequest(api.ResourceAddress("main", collection), api.Beginning())


def test_a_store_is_named_by_a_url_or_a_path(store, tmp_path, monkeypatch):
    """SQLAlchemy's users write the URL of an absolute path with four slashes."""
    store.create_collection("items")
    with EmbeddedStore(tmp_path / "a b%41?c#d.db") as odd, EmbeddedStore(f"/{store.path}"):
        odd.create_collection("items")
    monkeypatch.chdir(tmp_path)
    for settings in (
        config(url=f"embedded://{store.path}"), config(url=f"embedded:///{store.path}"),
        config(url=f"embedded://{tmp_path}/a%20b%2541%3Fc%23d.db"),
        config(path=store.path), config(path=tmp_path / "store.db"), config(path="store.db"),
    ):  # fmt: skip
        with api.connect(settings) as client:
            assert client.read_changes(request()).idle


class TestWrongNames:
    @pytest.mark.parametrize(
        ("connection", "words"),
        [
            ({}, ["connection.path", "missing", "embedded:///"]),
            ({"pth": "x"}, ["'pth'", "did you mean 'path'?"]),
            ({"url": "embedded:///x.db", "path": "x.db"}, ["both"]),
            ({"url": "sqlite:///x.db"}, ["connection.url", "'sqlite'"]),
            ({"url": "embedded://relative/x.db"}, ["'relative'", "three slashes"]),
            ({"url": "embedded://"}, ["connection.path", "missing"]),
            ({"url": "embedded:///"}, ["connection.path", "missing"]),
            ({"url": "embedded:///x.db?timeout=3"}, ["'timeout'"]),
            ({"url": "embedded:///x.db?profile="}, ["'profile'"]),
            ({"path": 7}, ["connection.path", "int"]),
            ({"path": b"x.db"}, ["connection.path", "bytes"]),
            ({"path": ""}, ["connection.path"]),
            ({"path": ":memory:"}, ["connection.path", "memory"]),
            ({"path": "/no-such-folder/x.db"}, ["/no-such-folder", "does not exist"]),
            ({"url": "embedded:///no-such-folder/x.db"}, ["/no-such-folder", "does not exist"]),
            ({"path": "/"}, ["folder"]),
        ],
        ids=str,
    )
    def test_they_name_the_option_and_the_way_out(self, connection, words):
        with refused(*words):
            api.connect(config(**connection))

    def test_options_have_their_range(self):
        for seconds in (0, -1, 1.5, float("nan"), "1", True):
            with refused("EmbeddedOptions.poll_seconds"):
                EmbeddedOptions(poll_seconds=seconds)


def test_a_native_client_is_an_open_store(store, tmp_path):
    """The client uses the store, and does not close it."""
    store.create_collection("items")
    with refused("native_client", "str"):
        api.connect(config(), native_client="store.db")
    with refused("native_client", "another"):
        api.connect(config(path=tmp_path / "other.db"), native_client=store)
    for settings in (config(), config(path=store.path)):
        with api.connect(settings, native_client=store) as client:
            assert client.read_changes(request()).idle
    store.put("items", "a", {})
    store.close()
    with refused("native_client", "closed"):
        api.connect(config(), native_client=store)
