"""Tests the ways in which a configuration can name an instance, and the errors for invalid configurations."""

import traceback

import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud import spanner

from multiclouddb_api import (
    ChangeFeedRequest,
    ClientConfig,
    ErrorCategory,
    MulticloudDbError,
    Now,
    OperationOptions,
    ResourceAddress,
    connect,
)
from multiclouddb_spanner.config import SpannerConfig
from multiclouddb_spanner.provider import PLUGIN
from testing.frames import shown_by


def checked(**connection):
    return SpannerConfig.from_client(ClientConfig("spanner", connection))


class TestTaken:
    @pytest.mark.parametrize(
        ("url", "expected"),
        [
            ("spanner://my-project/main", SpannerConfig("my-project", "main")),
            ("spanner://my-project/main/", SpannerConfig("my-project", "main")),
            ("spanner://example.com:old-project/main", SpannerConfig("example.com:old-project", "main")),
            ("spanner://p/i?change_stream=Orders_1", SpannerConfig("p", "i", "Orders_1")),
            ("spanner://p/i?emulator_host=localhost:9010", SpannerConfig("p", "i", None, "localhost:9010")),
        ],
    )
    def test_urls(self, url, expected):
        assert checked(url=url) == expected

    def test_a_database_role(self):
        expected = SpannerConfig("p", "i", database_role="orders_reader")
        assert checked(url="spanner://p/i?database_role=orders_reader") == expected
        assert checked(project="p", instance="i", database_role="orders_reader") == expected

    def test_options(self):
        assert checked(project="p", instance="i", change_stream="s") == SpannerConfig("p", "i", "s")
        assert checked(url="spanner://p/i", change_stream="s") == SpannerConfig("p", "i", "s")


class TestRefused:
    @pytest.mark.parametrize(
        ("connection", "words"),
        [
            ({"url": 5}, "must be text"),
            ({"project": "p", "instance": "i", "url": "p/i"}, "has the scheme "),
            ({"url": "dynamo://p/i"}, "scheme 'dynamo'"),
            ({"url": "spanner://p"}, "connection.instance: is missing"),
            ({"url": "spanner:///i"}, "connection.project: is missing"),
            ({"url": "spanner://p/i/d"}, "more than a project and an instance"),
            ({"url": "spanner://P!/i"}, "connection.project: is 'P!'"),
            ({"url": "spanner://p/i?stream=s"}, "unknown option 'stream'"),
            ({"url": "spanner://p/i?change_stream=a&change_stream=b"}, "a second time"),
            ({"url": "spanner://p/i?change_stream=a;b"}, "connection.change_stream: is 'a;b'"),
            ({"url": "spanner://p/i?database_role=a%20b"}, "connection.database_role: is 'a b'"),
            ({"url": "spanner://p/i", "project": "q"}, "the url names it too"),
            ({"url": "spanner://p/i", "emulator_host": "localhost"}, "connection.emulator_host"),
            ({"url": "spanner://p/i", "credentials": "x"}, "Google's own chain"),
            ({"project": "p", "instance": 5}, "connection.instance: is 5"),
            ({"url": "spanner://me:hidden@p/i"}, "may be a password"),
            ({"url": "spanner://p/me:hidden@i"}, "more than a project and an instance"),
        ],
    )
    def test_with_the_way_out(self, connection, words):
        with pytest.raises(MulticloudDbError, match=words) as caught:
            checked(**connection)
        assert caught.value.category == ErrorCategory.INVALID_REQUEST
        assert "; " in caught.value.message
        assert "hidden" not in str(caught.value)


SECRET = "correct-horse-battery"
KEY_FILES = {
    "no JSON": SECRET,
    "cut off": f'{{"type": "authorized_user", "refresh_token": "{SECRET}"',
    "half a user": f'{{"type": "authorized_user", "refresh_token": "{SECRET}"}}',
    "half a service account": f'{{"type": "service_account", "private_key": "{SECRET}"}}',
    "no key": f'''{{"type": "service_account", "client_email": "a@b", "token_uri": "https://localhost/",
        "private_key": "{SECRET}"}}''',
}


@pytest.mark.parametrize("content", KEY_FILES.values(), ids=[*KEY_FILES])
def test_a_broken_key_file_is_shown_nowhere(monkeypatch, tmp_path, content):
    """Google's library has the key in its frames when it refuses the file."""
    file = tmp_path / "key.json"
    file.write_text(content)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
    with pytest.raises(MulticloudDbError) as caught:
        connect("spanner://my-project/main")
    assert caught.value.category == ErrorCategory.AUTHENTICATION_FAILED
    assert caught.value.detail.native_class == "google.auth.exceptions.DefaultCredentialsError"
    assert [text for text in shown_by(caught.value, without=__file__) if SECRET in text] == []


@pytest.mark.parametrize("name", ["https_proxy", "grpc_proxy"])
def test_the_password_of_a_proxy_is_shown_nowhere(monkeypatch, name):
    """gRPC quotes what it takes for a host and its port."""
    monkeypatch.setenv(name, f"http://me:{SECRET}/x@localhost:1")
    monkeypatch.delenv("no_grpc_proxy", raising=False)
    request = ChangeFeedRequest(ResourceAddress("shop", "orders"), Now())
    client = connect("spanner://my-project/main?emulator_host=spanner.invalid:443&allow_plaintext=true")
    with client, pytest.raises(MulticloudDbError) as caught:
        client.read_changes(request, OperationOptions(timeout_seconds=10))
    assert caught.value.category == ErrorCategory.INVALID_REQUEST
    assert SECRET not in "".join(traceback.format_exception(caught.value)) + repr(caught.value.detail)


class TestClients:
    def test_the_emulator_is_found_by_the_vendor_s_variable(self, monkeypatch):
        monkeypatch.setenv("SPANNER_EMULATOR_HOST", "localhost:9")
        assert SpannerConfig("p", "i").client()._emulator_host == "localhost:9"

    def test_the_application_s_own_is_used_as_it_is(self):
        config = ClientConfig("spanner", {"url": "spanner://p/i"})
        own = spanner.Client(
            project="p", credentials=AnonymousCredentials(), client_options={"api_endpoint": "localhost:9"}
        )
        provider = PLUGIN.connect(config, own)
        provider.close()
        with pytest.raises(MulticloudDbError, match=r"google.cloud.spanner.Client"):
            PLUGIN.connect(config, object())
        with pytest.raises(MulticloudDbError, match="project 'p'"):
            PLUGIN.connect(ClientConfig("spanner", {"url": "spanner://q/i"}), own)
