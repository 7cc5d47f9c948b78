"""Runs the tests of the conformance kit for checkpoint stores on PostgreSQL."""

import psycopg
import pytest

from multiclouddb_api import ErrorCategory, MulticloudDbError, open_checkpoint_store
from multiclouddb_api.checkpoint import checkpoint_at
from multiclouddb_conformance.checkpoint_stores import (  # noqa: F401
    StoreKind,
    TestCompareAndSet,
    TestCrash,
    TestDamage,
    TestName,
    TestSaveAndLoad,
    refusal,
)
from multiclouddb_conformance.sink_harness import events, page
from multiclouddb_postgres import PostgresCheckpointStore, PostgresTarget, merge_into_postgres


def overwrite(dsn, content):
    """Put a row into the table that no store has written."""
    with psycopg.connect(dsn) as connection:
        connection.execute(
            "CREATE TABLE IF NOT EXISTS multiclouddb_checkpoints"
            ' (name text COLLATE "C" PRIMARY KEY, version text, token text, sha256 text)'
        )
        connection.execute(
            "INSERT INTO multiclouddb_checkpoints VALUES ('orders', '1-a', %s, 'x')"
            " ON CONFLICT (name) DO UPDATE SET token = excluded.token",
            (content.hex(),),
        )


def content_of(dsn):
    with psycopg.connect(dsn) as connection:
        [(token,)] = connection.execute("SELECT token FROM multiclouddb_checkpoints").fetchall()
    return bytes.fromhex(token)


@pytest.fixture
def kind(dsn):
    return StoreKind(
        PostgresCheckpointStore,
        location=lambda folder: dsn,
        place=lambda store: psycopg.conninfo.conninfo_to_dict(dsn)["dbname"],
        delete=lambda store: store.delete("orders"),
        overwrite=lambda store, content: overwrite(dsn, content),
        content=lambda store: content_of(dsn),
    )


class TestPlace:
    @pytest.mark.parametrize("dsn", ["postgresql://u:s3cret@/x?y", "host='a' s3cret", "\0", 5, None])
    def test_text_that_is_no_connection_string_is_refused_and_not_shown(self, dsn):
        error = refusal(PostgresCheckpointStore, dsn)
        assert error.category == ErrorCategory.INVALID_REQUEST
        assert "s3cret" not in f"{error!r} {error} {error.__cause__!r}"

    def test_url_opens_the_store_of_one_checkpoint(self, dsn):
        parts = psycopg.conninfo.conninfo_to_dict(dsn)
        url = f"postgresql:///{parts['dbname']}/orders?host={parts['host']}&user={parts['user']}"
        store, name = checkpoint_at(url)
        store.save(name, "token", None)
        assert PostgresCheckpointStore(dsn).load("orders").token == "token"

    def test_password_in_a_url_is_refused_and_not_shown(self):
        error = refusal(open_checkpoint_store, "postgresql://u:s3cret@host/shop")
        assert "password" in error.message
        assert "s3cret" not in error.message

    def test_no_repr_shows_the_password(self):
        store = PostgresCheckpointStore("postgresql://u:s3cret@host:5/shop")
        assert repr(store) == "PostgresCheckpointStore('postgres:host:5/shop#multiclouddb_checkpoints')"

    def test_checkpoint_that_was_changed_is_refused(self, dsn):
        store = PostgresCheckpointStore(dsn)
        saved = store.save("orders", "token", None)
        with psycopg.connect(dsn) as connection:
            connection.execute("UPDATE multiclouddb_checkpoints SET token = 'other'")
        for call in (lambda: store.load("orders"), lambda: store.save("orders", "t", saved.version)):
            assert "checksum" in refusal(call).message
        assert store.delete("orders")
        assert not store.delete("orders")

    def test_checkpoint_beyond_the_bound_is_refused_and_not_read(self, dsn, monkeypatch):
        store = PostgresCheckpointStore(dsn)
        store.save("orders", "x" * 2000, None)
        monkeypatch.setattr("multiclouddb_postgres.checkpoints.MOST_BYTES", 1000)
        error = refusal(store.load, "orders")
        assert "has more than" in error.message
        assert error.category == ErrorCategory.INVALID_REQUEST

    @pytest.mark.parametrize(
        ("change", "category"),
        [
            ("dbname=nowhere", ErrorCategory.NOT_FOUND),
            ("user=nobody", ErrorCategory.AUTHENTICATION_FAILED),
            ("host=/nowhere", ErrorCategory.TRANSIENT_FAILURE),
            ("host=localhost port=1", ErrorCategory.TRANSIENT_FAILURE),
            ("sslmode=full", ErrorCategory.INVALID_REQUEST),
            ("sslmode=require sslrootcert=system", ErrorCategory.INVALID_REQUEST),
            ("ssl_min_protocol_version=9", ErrorCategory.INVALID_REQUEST),
            ("target_session_attrs=first", ErrorCategory.INVALID_REQUEST),
            ("port=99999", ErrorCategory.INVALID_REQUEST),
            ("connect_timeout=soon", ErrorCategory.INVALID_REQUEST),
        ],
    )
    def test_server_that_refuses(self, dsn, change, category):
        with pytest.raises(MulticloudDbError) as caught:
            PostgresCheckpointStore(f"{dsn} {change} password=s3cret").load("orders")
        assert caught.value.category == category
        assert caught.value.retryable == (category == ErrorCategory.TRANSIENT_FAILURE)
        assert "s3cret" not in str(caught.value)

    def test_name_behind_the_options_of_a_url_is_refused(self):
        store, name = checkpoint_at("postgresql://worker@localhost/shop?sslmode=verify-full/orders")
        message = refusal(store.load, name).message
        assert 'sslmode value: "verify-full/orders"' in message
        assert "the name of a checkpoint before the ?" in message


class TestSearchPath:
    """Tests two workers of which the `search_path` leads to different tables of checkpoints."""

    @pytest.fixture
    def other(self, dsn):
        with psycopg.connect(dsn) as connection:
            connection.execute("CREATE SCHEMA other")
        return f"{dsn} options=-csearch_path=other"

    def merge(self, dsn, order, checkpoint):
        merge_into_postgres(
            page(events(("a", order, {}))), None, dsn, "public.orders", None,
            checkpoint_name="w", checkpoint=checkpoint,
        )  # fmt: skip

    def test_a_worker_that_does_not_find_the_checkpoint_is_refused(self, dsn, other):
        """It would begin where it began at first, and what came before it would be missing."""
        self.merge(dsn, 1, None)
        assert PostgresCheckpointStore(other).load("w") is None
        error = refusal(self.merge, other, 2, None)
        assert error.category == ErrorCategory.INVALID_REQUEST
        assert "in the schema public" in str(error)
        with psycopg.connect(dsn) as connection:
            assert connection.execute("SELECT to_regclass('other.multiclouddb_checkpoints')").fetchone() == (
                None,
            )
        token = PostgresCheckpointStore(dsn).load("w").token
        assert [PostgresTarget(each, "public.orders").position() for each in (dsn, other)] == [token, token]

    def test_a_checkpoint_that_was_deleted_may_be_made_anew_elsewhere(self, dsn, other):
        self.merge(dsn, 1, None)
        PostgresCheckpointStore(dsn).delete("w")
        self.merge(other, 2, None)
        self.merge(other, 3, PostgresCheckpointStore(other).load("w"))
        assert PostgresTarget(dsn, "public.orders").position() is not None

    def test_a_table_of_checkpoints_may_move_with_its_schema(self, dsn, other):
        self.merge(other, 1, None)
        with psycopg.connect(dsn) as connection:
            connection.execute("ALTER SCHEMA other RENAME TO moved")
        moved = other.replace("search_path=other", "search_path=moved")
        assert PostgresTarget(moved, "public.orders").position() is not None
        self.merge(moved, 2, PostgresCheckpointStore(moved).load("w"))
        assert PostgresTarget(dsn, "public.orders").position() is not None

    def test_a_user_who_may_not_look_there_is_refused(self, dsn, other):
        with psycopg.connect(dsn) as connection:
            connection.execute("DROP ROLE IF EXISTS app")
            connection.execute("CREATE ROLE app LOGIN")
        try:
            self.merge(other, 1, None)
            with psycopg.connect(dsn) as connection:
                connection.execute("GRANT TEMPORARY ON DATABASE tests TO app")
                connection.execute("GRANT ALL ON SCHEMA public TO app")
                connection.execute("GRANT ALL ON ALL TABLES IN SCHEMA public TO app")
            error = refusal(self.merge, dsn.replace("user=postgres", "user=app"), 2, None)
            assert error.category == ErrorCategory.INVALID_REQUEST
            assert "in the schema other" in str(error)
        finally:
            with psycopg.connect(dsn) as connection:
                connection.execute("DROP OWNED BY app")
                connection.execute("DROP ROLE app")
