"""Tests the configuration of a store, and the errors for wrong names."""

import pickle
import sqlite3

import pytest

from multiclouddb_api import (
    Beginning,
    Capability,
    ChangeFeedRequest,
    ClientConfig,
    ErrorCategory,
    OperationOptions,
    ResourceAddress,
    Support,
    connect,
)
from multiclouddb_conformance import refusals
from multiclouddb_embedded import EmbeddedOptions, EmbeddedStore
from multiclouddb_embedded.provider import PLUGIN
from multiclouddb_spi import ProviderFault, open_provider


def refused(*words, category=ErrorCategory.INVALID_REQUEST):
    return refusals.refused(category, *words)


def config(**connection):
    return ClientConfig("embedded", connection)


def request(collection="items"):
    return ChangeFeedRequest(ResourceAddress("main", collection), Beginning())


class TestNaming:
    def test_by_url(self, store):
        store.create_collection("items")
        with connect(f"embedded://{store.path}") as client:
            assert client.read_changes(request()).idle

    def test_by_path(self, store, tmp_path, monkeypatch):
        store.create_collection("items")
        monkeypatch.chdir(tmp_path)
        for path in (store.path, tmp_path / "store.db", "store.db"):
            with connect(config(path=path)) as client:
                assert client.read_changes(request()).idle

    def test_by_toml(self, store, tmp_path):
        store.create_collection("items")
        place = tmp_path / "client.toml"
        place.write_text(f'provider = "embedded"\n[connection]\npath = "{store.path}"\n')
        with connect(place) as client:
            assert client.read_changes(request()).idle

    def test_a_url_is_unquoted(self, tmp_path):
        with EmbeddedStore(tmp_path / "a b?c.db") as odd:
            odd.create_collection("items")
        with connect(f"embedded://{tmp_path}/a%20b%3Fc.db") as client:
            assert client.read_changes(request()).idle

    def test_an_absolute_path_may_start_with_two_slashes(self, store):
        """SQLAlchemy's users write the URL of an absolute path with four slashes."""
        with EmbeddedStore(f"/{store.path}") as same:
            same.create_collection("items")
        with connect(f"embedded:///{store.path}") as client:
            assert client.read_changes(request()).idle

    def test_a_configuration_pickles(self, store):
        store.create_collection("items")
        with connect(pickle.loads(pickle.dumps(config(path=store.path)))) as client:
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
            connect(config(**connection))

    def test_a_store_that_does_not_exist_is_not_found_and_not_made(self, tmp_path):
        with refused("there is no store", "EmbeddedStore(path)", category=ErrorCategory.NOT_FOUND):
            connect(config(path=tmp_path / "x.db"))
        assert list(tmp_path.iterdir()) == []

    def test_an_empty_file_is_no_store_yet_and_stays_empty(self, tmp_path):
        (tmp_path / "x.db").touch()
        told = refused("empty", "EmbeddedStore(path)", category=ErrorCategory.NOT_FOUND)
        with connect(config(path=tmp_path / "x.db")) as client, told:
            client.read_changes(request())
        assert (tmp_path / "x.db").stat().st_size == 0

    def test_another_file_is_told_at_the_first_read(self, tmp_path):
        (tmp_path / "notes.txt").write_text("notes " * 1000)
        with connect(config(path=tmp_path / "notes.txt")) as client, refused("not a store"):
            client.read_changes(request())

    def test_a_later_schema_is_told_at_the_first_read(self, store):
        store.create_collection("items")
        store.close()
        connection = sqlite3.connect(store.path, isolation_level=None)
        connection.execute("UPDATE store SET version = 2")
        connection.close()
        with connect(config(path=store.path)) as client, refused("version 2", "pip install --upgrade"):
            client.read_changes(request())

    @pytest.mark.parametrize("seconds", [0, -1, 1.5, float("nan"), "1", True])
    def test_options_have_their_range(self, seconds):
        with refused("EmbeddedOptions.poll_seconds"):
            EmbeddedOptions(poll_seconds=seconds)


class TestNativeClient:
    def test_a_store_is_used_and_never_closed(self, store):
        store.create_collection("items")
        with connect(config(), native_client=store) as client:
            assert client.read_changes(request()).idle
        store.put("items", "a", {})

    def test_its_clock_is_the_provider_s(self, world):
        world.store.create_collection("items")
        assert world.feed().clock(world.deadline()) == world.clock()

    def test_it_has_to_be_an_open_store_of_that_path(self, store, tmp_path):
        with refused("native_client", "str"):
            connect(config(), native_client="store.db")
        with refused("native_client", "another"):
            connect(config(path=tmp_path / "other.db"), native_client=store)
        with connect(config(path=store.path), native_client=store):
            pass
        store.close()
        with refused("native_client", "closed"):
            connect(config(), native_client=store)


class TestClient:
    def test_capabilities(self, store):
        with connect(config(path=store.path)) as client:
            capabilities = client.capabilities()
            missing = {can for can in capabilities if not capabilities.is_supported(can)}
            assert missing == {
                Capability.CHANGE_FEED_DATABASE_SCOPE,
                Capability.CHANGE_FEED_CLUSTER_SCOPE,
                Capability.RUN_COMMAND,
            }
            assert all(capabilities[can].support is Support.NATIVE for can in set(capabilities) - missing)
            with refused("EmbeddedStore", category=ErrorCategory.UNSUPPORTED_CAPABILITY):
                client.run_command("main", {})

    def test_options_reach_the_reader(self, store):
        store.create_collection("items")
        with connect(config(path=store.path)) as client:
            asked = ChangeFeedRequest(
                ResourceAddress("main", "items"),
                Beginning(),
                provider_options=EmbeddedOptions(poll_seconds=0.5),
            )
            assert client.read_changes(asked, OperationOptions(wait_seconds=0.01)).idle

    def test_the_plugin_opens_a_bare_provider(self, store):
        provider = open_provider(config(path=store.path))
        assert provider.provider_id == PLUGIN.provider_id == "embedded"
        provider.close()

    def test_connect_leaves_faults_to_the_engine(self, tmp_path):
        with pytest.raises(ProviderFault):
            PLUGIN.connect(config(path=tmp_path / "x.db"), None)
