"""Tests that messages and the local variables of all frames contain no password: error reporters send
both.
"""

import copy
import pickle
import string
import traceback

import attrs
import pytest

from multiclouddb_api import (
    ClientConfig,
    FileCheckpointStore,
    MulticloudDbError,
    connect,
    open_checkpoint_store,
)
from multiclouddb_api.checkpoint import CheckpointFile
from multiclouddb_api.config import SecretText
from multiclouddb_embedded.checkpoints import SqliteCheckpointStore
from multiclouddb_verify.position import spark_token
from testing.frames import shown_by

SECRET = "correct-horse-battery"
MONGO = f"mongodb://me:{SECRET}@localhost/shop"


def check(call, *arguments, **options):
    """Return the error of a call, and check that nothing in the error shows the secret."""
    with pytest.raises(MulticloudDbError) as caught:
        call(*arguments, **options)
    error = caught.value
    assert [text for text in shown_by(error, without=__file__) if SECRET in text] == []
    assert "test_secrets.py" in "".join(traceback.format_tb(error.__traceback__))
    return error


URLS = [
    f"me:{SECRET}://localhost",
    f"nosuch://me:{SECRET}@localhost",
    f"mongo://me:{SECRET}@localhost",
    f"embedded://me:{SECRET}@/store.db",
    f"embedded://me:{SECRET}@host/store.db",
    f"embedded://me:{SECRET}@[/store.db",
    f"embedded:///nowhere/store.db?password={SECRET}",
    f"embedded:///nowhere/store.db#{SECRET}",
    f"dynamo://me:{SECRET}@eu-west-1",
    f"dynamo://eu-west-1?secret={SECRET}",
    f"dynamo://eu-west-1?endpoint_url=http://me:{SECRET}@localhost:8000",
    f"mongodb://me:{SECRET}@more@localhost",
    f"mongodb://me:{SECRET}/more@localhost",
    f"{MONGO}?nosuch=1",
    f"{MONGO}?retryReads=maybe",
    f"{MONGO}?tls=true&tls=true",
    f"{MONGO}?authMechanism=MONGODB-X509&authSource=shop",
    f"{MONGO}?loadBalanced=true&replicaSet=rs",
    f"mongodb+srv://me:{SECRET}@localhost:27017/shop",
]
CONNECTIONS = [
    ("embedded", {"password": SECRET}),
    ("embedded", {"url": f"embedded://me:{SECRET}@/x.db"}),
    ("dynamo", {"aws_secret_access_key": SECRET}),
    ("dynamo", {"region": 5, "endpoint_url": f"http://me:{SECRET}@localhost"}),
    ("mongo", {"url": "mongodb://localhost", "password": SECRET}),
    ("mongo", {"url": MONGO, "password": SECRET}),
    ("mongo", {"url": "mongodb://localhost", "username": "me", "password": SECRET, "nosuch": 1}),
    ("mongo", {"url": "mongodb://localhost?authMechanism=MONGODB-X509", "password": SECRET}),
    ("nosuch", {"password": SECRET}),
]
WRONG_CONFIGS = [
    ("", {"url": MONGO}, {}),
    ("mongo", {"url": MONGO, "password": SECRET}, {"max_concurrency": 0}),
    ("mongo", MONGO, {}),
]
FILES = [
    f'provider = "mongo"\n[connection]\npassword = "{SECRET}" x',
    f'provider = "mongo"\nnosuch = 1\n[connection]\npassword = "{SECRET}"',
    f'[connection]\npassword = "{SECRET}"',
    f'provider = "mongo"\nconnection = "{MONGO}"',
    f'provider = ""\n[connection]\nurl = "{MONGO}"',
    f'provider = "mongo"\nmax_concurrency = 0\n[connection]\nurl = "{MONGO}"',
    f'provider = "mongo"\n[connection]\nurl = "{MONGO}"\nusername = {{ env = "NOT_SET_ANYWHERE" }}',
    f'provider = "mongo"\n[connection]\nurl = "{MONGO}"\npassword = "{SECRET}"',
    f'provider = "dynamo"\n[connection]\nsecret = "{SECRET}"',
]


def test_a_url_a_configuration_or_a_file_that_is_refused(tmp_path):
    for url in URLS:
        check(connect, url)
    for provider, connection in CONNECTIONS:
        check(connect, ClientConfig(provider, connection))
    for provider, connection, bounds in WRONG_CONFIGS:
        check(ClientConfig, provider, connection, **bounds)
    for text in FILES:
        (tmp_path / "client.toml").write_text(text)
        check(connect, tmp_path / "client.toml")


def test_a_file_in_another_encoding(tmp_path):
    """Python's error about the encoding contains the whole file."""
    path = tmp_path / "client.toml"
    path.write_bytes(f'provider = "mongo"\n[connection]\npassword = "{SECRET}é"'.encode("latin-1"))
    assert "can't decode" in check(connect, path).message


def test_a_source_or_a_native_client_that_is_refused():
    for source in (5, SECRET, f"{SECRET}.txt"):
        check(connect, source)
    for url in (MONGO, "dynamo://eu-west-1", "embedded:///tmp/x.db"):
        check(connect, url, native_client=SecretText(SECRET))


class TestSecretText:
    def test_the_text_is_there_for_whom_it_is_meant(self):
        config = ClientConfig("mongo", {"url": MONGO, "password": SECRET})
        assert config.connection == {"url": MONGO, "password": SECRET}
        assert SECRET not in repr(config.connection) + repr(config)
        assert str(config.connection["password"]) == SECRET
        assert "localhost" in repr(config.connection["url"])

    def test_it_stays_one_in_copies(self):
        config = ClientConfig("mongo", {"url": MONGO})
        for made in (
            pickle.loads(pickle.dumps(config)),
            copy.deepcopy(config),
            attrs.evolve(config, max_concurrency=2),
        ):
            assert made.connection == config.connection
            assert SECRET not in repr(made.connection)


@pytest.mark.parametrize(
    "made", [FileCheckpointStore, CheckpointFile, SqliteCheckpointStore, ClientConfig.from_toml, spark_token]
)
def test_a_url_is_no_path(made):
    """As a path it would have one slash, so that nothing takes it for a URL, and it would name a folder."""
    with pytest.raises(MulticloudDbError) as caught:
        made(f"postgresql://me:{SECRET}@localhost/shop")
    assert caught.value.message.endswith("is a URL; give a path on this machine")


FORMS = (
    "cosmos://me:{}@localhost:1/shop",
    "dynamo://me:{}@localhost:1/shop",
    "dynamo://eu-west-1?endpoint_url=http://me:{}@localhost:1/",
    "embedded://me:{}@localhost/store.db",
    "mongodb://me:{}@localhost:1/shop",
    "mongodb+srv://me:{}@localhost/shop",
    "spanner://me:{}@localhost:1/shop",
    "spanner://p/i?emulator_host=me:{}@localhost:1",
    "nosuch://me:{}@localhost:1/shop",
)
STORES = (
    "azblob://me:{}@localhost:1/shop",
    "dynamodb://me:{}@localhost:1/shop",
    "dynamodb://table?region=eu-west-1&endpoint_url=http://me:{}@localhost:1",
    "file://me:{}@localhost/shop",
    "gs://me:{}@localhost/shop",
    "s3://me:{}@localhost/shop",
    "sqlite://me:{}@localhost/shop",
)


@pytest.mark.parametrize(
    ("opened", "form"),
    [*((connect, form) for form in FORMS), *((open_checkpoint_store, form) for form in STORES)],
    ids=[*FORMS, *STORES],
)
def test_no_character_of_a_password_makes_it_another_part_of_the_url(opened, form):
    for character in (*string.punctuation, " ", "\t", "\n", "é"):
        for password in (f"hush{character}mumble", f"1{character}hush{character}mumble"):
            shown = []
            try:
                made = opened(form.format(password))
            except MulticloudDbError as error:
                shown += shown_by(error, without=__file__)
            else:
                shown.append(repr(made))
                getattr(made, "close", str)()
            assert [text for text in shown if "hush" in text or "mumble" in text] == [], repr(character)
