"""Tests `ClientConfig`: read from a URL or TOML, validated, pickled, and shown without secrets."""

import pickle

import pytest

from multiclouddb_api import ClientConfig

from .refusals import refused


class TestFields:
    @pytest.mark.parametrize(
        ("field", "value", "problem"),
        [
            ("provider", "", "is empty; name one of the installed providers"),
            ("max_buffered_bytes", 1000, "must be 65536 or more, got 1000; give at least 64 KiB"),
            ("max_concurrency", 0, "must be 1 or more, got 0; give at least 1"),
            ("headroom_warning_seconds", -1, "must be 0 or more, got -1"),
        ],
    )
    def test_a_wrong_one_is_refused_by_name(self, field, value, problem):
        fields = {"provider": "embedded", field: value}
        assert f"ClientConfig.{field}: {problem}" in refused(ClientConfig, **fields)

    def test_the_connection_is_a_copy_and_pickles(self):
        connection = {"url": "embedded:///x"}
        config = ClientConfig("embedded", connection, max_concurrency=3)
        connection["url"] = "embedded:///y"
        assert config.connection == {"url": "embedded:///x"}
        assert pickle.loads(pickle.dumps(config)) == config

    @pytest.mark.parametrize("kind", [str, str.encode])
    def test_shows_no_secret(self, kind):
        url = kind("mongodb://user:hunter2@host/db")
        connection = {"url": url, "password": "hunter2", "nested": {"key": "hunter2"}}
        config = ClientConfig("mongo", connection)
        assert "hunter2" not in repr(config)
        assert "password" in repr(config)

    def test_no_text_of_the_connection_is_shown_where_a_reporter_shows_variables(self):
        connection = {
            "password": "hunter2",
            "auth_mechanism_properties": {"AWS_SESSION_TOKEN": "hunter2"},
            "list": ["hunter2", ["hunter2"]],
            "pair": ("hunter2", {"a": "hunter2"}),
            "number": 1,
        }
        config = ClientConfig("mongo", connection)
        assert config.connection == connection
        assert "hunter2" not in repr(config.connection)
        assert type(config.connection["pair"]) is tuple
        assert pickle.loads(pickle.dumps(config)).connection == connection


class TestFromUrl:
    @pytest.mark.parametrize(
        ("url", "provider"),
        [
            ("embedded:///data/store.db", "embedded"),
            ("dynamo://eu-west-1?endpoint_url=http://localhost:8000", "dynamo"),
            ("spanner://project/instance", "spanner"),
            ("mongodb://host/db", "mongo"),
            ("mongodb+srv://host/db", "mongo"),
            ("cosmos://host:8081?tls=false", "cosmos"),
        ],
    )
    def test_the_scheme_names_the_provider(self, url, provider):
        assert ClientConfig.from_url(url) == ClientConfig(provider, {"url": url})

    @pytest.mark.parametrize(
        "url", ["", "store.db", "/data/store.db", "embedded:", "://x", "a b://x", "1://x", "é://x"]
    )
    def test_anything_else_is_refused_with_an_example(self, url):
        message = refused(ClientConfig.from_url, url)
        assert "write PROVIDER://…, for example embedded:///data/store.db" in message


@pytest.fixture
def toml(tmp_path):
    def write(text):
        path = tmp_path / "client.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


class TestFromToml:
    def test_reads_every_field(self, toml, monkeypatch):
        monkeypatch.setenv("SHOP_PASSWORD", "hunter2")
        path = toml(
            """
            provider = "mongo"
            max_buffered_bytes = 100_000
            max_concurrency = 4
            headroom_warning_seconds = 60

            [connection]
            url = "mongodb://host/db"
            password = { env = "SHOP_PASSWORD" }
            tls = { ca = "ca.pem" }
            """
        )
        connection = {"url": "mongodb://host/db", "password": "hunter2", "tls": {"ca": "ca.pem"}}
        assert ClientConfig.from_toml(path) == ClientConfig("mongo", connection, 100_000, 4, 60)
        assert ClientConfig.from_toml(str(path)) == ClientConfig.from_toml(path)

    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            (
                'provider = "x"\nmax_concurency = 3',
                "'max_concurency' is not known; did you mean 'max_concurrency'",
            ),
            (
                'provider = "x"\nzzz = 3',
                "'zzz' is not known; known are: child_watch_seconds, connection, coverage_audit_seconds",
            ),
            ("provider = ", "cannot be read as TOML"),
            ("max_concurrency = 3", 'has no provider; add the line provider = "embedded"'),
            ('provider = "x"\nconnection = "embedded:///x"', "begin it with the line [connection]"),
            (
                'provider = "x"\n[connection]\nkey = { env = "NOT_SET_ANYWHERE" }',
                "connection.key: needs the environment variable NOT_SET_ANYWHERE; set NOT_SET_ANYWHERE",
            ),
        ],
    )
    def test_a_mistake_names_the_file_and_the_key(self, toml, text, problem):
        message = refused(ClientConfig.from_toml, toml(text))
        assert message.startswith("file client.toml")
        assert problem in message

    def test_the_tables_of_a_mirror_may_be_in_the_file(self, toml):
        head = 'provider = "x"\n'
        assert ClientConfig.from_toml(toml(f"{head}[[table]]\ncollection = 'a'")) == ClientConfig("x")
        assert "'table' is not known" in refused(ClientConfig.from_toml, toml(f"{head}table = 1"))

    def test_a_file_that_cannot_be_read_is_named(self, tmp_path):
        path = tmp_path / "client.toml"
        unreadable = "file client.toml: cannot be read"
        assert unreadable in refused(ClientConfig.from_toml, path)
        path.write_bytes(b"\xff\xfe")
        assert unreadable in refused(ClientConfig.from_toml, path)
        path.unlink()
        path.mkdir()
        assert unreadable in refused(ClientConfig.from_toml, path)
