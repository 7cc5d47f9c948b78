"""`multiclouddb verify` on a table of PostgreSQL."""

import json
import stat
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial

import psycopg
import psycopg.sql
import pytest
from typer.testing import CliRunner

from multiclouddb_api import (
    Beginning,
    ChangeFeedRequest,
    ErrorCategory,
    FromContinuationToken,
    MulticloudDbError,
    connect,
)
from multiclouddb_cli.main import app
from multiclouddb_conformance.sink_harness import rows
from multiclouddb_embedded import EmbeddedStore
from multiclouddb_embedded.feed import EmbeddedFeed
from multiclouddb_postgres import PostgresCheckpointStore, PostgresTarget, merge_into_postgres
from multiclouddb_tables import layout
from multiclouddb_tables.mark import Expected
from multiclouddb_verify import DifferenceKind, verify

DAMAGE = {
    DifferenceKind.MISSING: "DELETE FROM orders WHERE key = %s",
    DifferenceKind.STALE: """UPDATE orders SET new_item_state = '{"n":"other"}' WHERE key = %s""",
    DifferenceKind.TOMBSTONE: "UPDATE orders SET new_item_state = NULL, _deleted_at = now() WHERE key = %s",
    DifferenceKind.BLOCKED: "UPDATE orders SET order_key = '~' WHERE key = %s",
    DifferenceKind.GHOST: "INSERT INTO orders (key, order_key, new_item_state) VALUES (%s, '0', '{}')",
    DifferenceKind.FOREIGN: "INSERT INTO orders (key, order_key, new_item_state) VALUES (%s, '~', '{}')",
}


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(EmbeddedFeed, "visible_after", lambda feed: 0.02)
    monkeypatch.setattr("multiclouddb_verify.source._CLOCK_ERROR", 0.0)


class Shop:
    def __init__(self, folder, dsn):
        self.dsn, self.store = dsn, EmbeddedStore(folder / "shop.db", durable=False)
        self.address = self.store.create_collection("orders", partitions=2)
        for number in range(50):
            self.store.put("orders", f"o-{number}", {"n": number, "t": "\0"})
        for number in range(3):
            self.store.delete("orders", f"o-{40 + number}")
        self.url = f"embedded://{self.store.path}"

    def follow(self):
        checkpoints = PostgresCheckpointStore(self.dsn)
        with connect(self.url) as client:
            while True:
                saved = checkpoints.load("sink")
                start = Beginning() if saved is None else FromContinuationToken(saved.token)
                page = client.read_changes(ChangeFeedRequest(self.address, start))
                merge_into_postgres(
                    page, None, self.dsn, "orders", None, checkpoint=saved, checkpoint_name="sink"
                )
                if page.idle:
                    return

    def plant(self):
        faults = {}
        with psycopg.connect(self.dsn) as connection:
            for number, (kind, statement) in enumerate(DAMAGE.items()):
                separators = (", ", ": ") if kind is DifferenceKind.FOREIGN else (",", ":")
                name = "ghost" if kind is DifferenceKind.GHOST else f"o-{number}"
                key = json.dumps({"id": name}, separators=separators)
                assert connection.execute(statement, (key,)).rowcount == 1
                faults[key] = kind
        return faults


@pytest.fixture
def shop(tmp_path, dsn):
    made = Shop(tmp_path, dsn)
    made.follow()
    yield made
    made.store.close()


def test_each_kind_is_found_and_repaired_and_the_position_is_in_the_database(shop, tmp_path):
    faults = shop.plant()
    with connect(shop.url) as client:
        check = partial(
            verify, client, shop.address, PostgresTarget(shop.dsn, "orders"), state=tmp_path / "state",
            patience_seconds=30.0,
        )  # fmt: skip
        assert {each.key: each.kind for each in check().differences} == faults
        report = check(repair=True)
        assert (report.equal, {each.key: each.kind for each in report.repaired}) == (True, faults)
        shop.store.put("orders", "o-3", {"n": -1})
        shop.follow()
        report = check(record=True)
        assert (report.equal, report.counts.repaired) == (True, 0)
    with psycopg.connect(shop.dsn) as connection:
        found = connection.execute("SELECT note FROM multiclouddb_marks WHERE name LIKE '%verified_through'")
        assert found.fetchall() == [(report.verified_through,)]


def test_large_documents_are_read_in_small_batches(dsn, monkeypatch):
    monkeypatch.setattr(layout, "GROUP_BYTES", 4000)
    made = rows(*((f"k{number:03}", 1, {"text": "x" * 1000}) for number in range(100)))
    merge_into_postgres(made, None, dsn, "orders", None)
    sizes = [batch.num_rows for batch in PostgresTarget(dsn, "orders").rows()]
    # Only the first rows show how large one is.
    assert (sum(sizes), sizes[0]) == (100, 64)
    assert max(sizes[1:]) < 5


def test_a_row_that_a_constraint_refuses_does_not_stop_the_others(shop, tmp_path):
    faults = {
        key: kind
        for key, kind in shop.plant().items()
        if kind in (DifferenceKind.STALE, DifferenceKind.BLOCKED)
    }
    with psycopg.connect(shop.dsn) as connection:
        [stale] = [key for key, kind in faults.items() if kind is DifferenceKind.STALE]
        connection.execute(
            psycopg.sql.SQL(
                "ALTER TABLE orders ADD CHECK (key <> {} OR new_item_state::text LIKE '%other%')"
            ).format(stale)
        )
    with connect(shop.url) as client:
        report = verify(
            client, shop.address, PostgresTarget(shop.dsn, "orders"), state=tmp_path / "state", repair=True,
            patience_seconds=5.0,
        )  # fmt: skip
    assert {each.key: each.kind for each in report.differences} == {stale: DifferenceKind.STALE}
    assert report.counts.repaired == len(DAMAGE) - 1
    [left] = report.differences
    assert "violates check constraint" in left.note
    assert "other" not in left.note


def test_a_locked_row_is_waited_for_no_longer_than_the_time_limit(shop, tmp_path):
    shop.plant()
    target = PostgresTarget(shop.dsn, "orders", patience_seconds=0.3)
    with connect(shop.url) as client, psycopg.connect(shop.dsn) as other:
        other.execute("SELECT 1 FROM orders FOR UPDATE")
        with pytest.raises(MulticloudDbError, match="locked") as caught:
            verify(client, shop.address, target, state=tmp_path / "state", repair=True, patience_seconds=5.0)
        assert (caught.value.category, caught.value.retryable) == (ErrorCategory.CONFLICT, True)
        other.rollback()
        report = verify(
            client, shop.address, target, state=tmp_path / "state", repair=True, patience_seconds=5.0
        )
        assert report.equal


def test_own_columns_are_compared_and_repaired_with_transform(shop, tmp_path, dsn):
    shop.store.delete("orders", "o-2")
    shop.follow()
    with psycopg.connect(dsn) as connection:
        connection.execute(
            "ALTER TABLE orders ADD COLUMN n int, ADD COLUMN others text DEFAULT 'x'; UPDATE orders "
            "SET n = substring(new_item_state::text from '\"n\":(\\d+)')::int; "
            "ALTER TABLE orders DROP COLUMN new_item_state; UPDATE orders SET n = -7 WHERE key LIKE '%o-1\"%'"
        )
    with connect(shop.url) as client:
        check = partial(
            verify, client, shop.address, PostgresTarget(dsn, "orders"), state=tmp_path / "state",
            transform=lambda document: {"n": document["n"]}, patience_seconds=30.0,
        )  # fmt: skip
        assert check().counts.differences == {DifferenceKind.STALE: 1}
        assert check(repair=True).equal
        with psycopg.connect(dsn) as connection:
            connection.execute("UPDATE orders SET n = 5, _deleted_at = NULL WHERE key LIKE '%o-2\"%'")
        assert check(repair=True).equal
    with psycopg.connect(dsn) as connection:
        query = "SELECT n, others, _deleted_at IS NULL FROM orders WHERE key LIKE '%o-2\"%'"
        assert connection.execute(query).fetchall() == [(None, "x", False)]


def test_the_state_folder_holds_keys_and_digests_and_nothing_else(shop, tmp_path):
    """A killed run leaves it, so only its user may read it, and it holds no document and no password."""
    shop.store.put("orders", "o-marked", {"t": "a-field-that-no-file-holds"})
    shop.follow()
    shop.plant()
    folder, seen = tmp_path / "state", {}

    def look(progress):
        for each in (folder, *folder.iterdir()):
            with suppress(FileNotFoundError):
                mode = stat.S_IMODE(each.stat().st_mode)
                seen[each.name] = (mode, b"" if each.is_dir() else each.read_bytes())

    with connect(shop.url) as client:
        target = PostgresTarget(f"{shop.dsn} password=a-password-that-no-file-holds", "orders")
        assert verify(client, shop.address, target, state=folder, on_progress=look).counts.differences
    assert {"state", "state.db", "lock"} <= set(seen)
    assert {mode for name, (mode, _) in seen.items() if name != "state"} == {0o600}
    assert seen["state"][0] == 0o700
    whole = b"".join(content for _, content in seen.values())
    assert b"o-1" in whole
    assert b"that-no-file-holds" not in whole


def test_settings_of_the_role_change_no_value(shop, tmp_path, dsn):
    """Fewer digits of a float would make a difference, or hide one; another form of times cannot be read."""
    third = 1 / 3
    with psycopg.connect(dsn) as connection:
        connection.execute(
            "ALTER TABLE orders ADD COLUMN f double precision, ADD COLUMN r real, ADD COLUMN at timestamptz, "
            "ADD COLUMN d date; ALTER TABLE orders DROP COLUMN new_item_state; "
            f"UPDATE orders SET f = {third!r}, r = {third!r}, at = '2026-02-01T03:04:05.000006Z', "
            "d = '2026-02-01' WHERE _deleted_at IS NULL"
        )
    at = datetime(2026, 2, 1, 3, 4, 5, 6, UTC)
    lazy = f"{dsn} options='-c extra_float_digits=-10 -c DateStyle=SQL,DMY -c TimeZone=Asia/Kolkata'"
    with connect(shop.url) as client:
        for f, is_equal in ((third, True), (0.33333, False)):
            report = verify(
                client, shop.address, PostgresTarget(lazy, "orders"), state=tmp_path / "state",
                transform=lambda _, f=f: {"f": f, "r": third, "at": at, "d": at.date()}, patience_seconds=5.0,
            )  # fmt: skip
            assert report.equal is is_equal


def test_command_line_never_shows_the_password(shop, tmp_path):
    target = f"postgres:{shop.dsn} password=s3cret#orders"

    def run(target, *words):
        words = [
            "verify",
            shop.url,
            "main/orders",
            "--target",
            target,
            "--state",
            str(tmp_path / "s"),
            *words,
        ]
        ran = CliRunner().invoke(app, words)
        assert "s3cret" not in ran.output
        return ran

    assert run(target).exit_code == 0
    shop.plant()
    assert run(target).exit_code == 11
    assert "EQUAL" in run(target, "--repair").stdout
    for wrong in ("postgres:s3cret", "postgres:=s3cret#x", "postgres:#s3cret", "s3cret:x", f"{target}.a.b"):
        assert run(wrong).exit_code not in (0, 11)


def test_nobody_can_replace_the_table_between_the_look_at_it_and_the_write(tmp_path, dsn, monkeypatch):
    shop = Shop(tmp_path, dsn)
    shop.follow()
    with psycopg.connect(dsn) as connection:
        connection.execute(DAMAGE[DifferenceKind.STALE], ('{"id":"o-3"}',))
    check, tried = Expected.check, []

    def check_and_replace(expected, now, where):
        check(expected, now, where)
        with psycopg.connect(dsn, options="-c lock_timeout=50") as connection:
            try:
                connection.execute("ALTER TABLE orders RENAME TO replaced")
                connection.rollback()
                tried.append(True)
            except psycopg.errors.LockNotAvailable:
                tried.append(False)

    monkeypatch.setattr(Expected, "check", check_and_replace)
    with connect(shop.url) as client:
        position = PostgresCheckpointStore(dsn).load("sink").token
        report = verify(
            client, shop.address, PostgresTarget(dsn, "orders"), position=position, repair=True,
            state=tmp_path / "state",
        )  # fmt: skip
    assert (report.equal, report.counts.repaired) == (True, 1)
    assert False in tried


def test_a_time_without_a_zone_removes_no_tombstone(dsn):
    """Nobody says whether it is a time of UTC or of the session."""
    late = datetime(9999, 1, 1, tzinfo=UTC)
    merge_into_postgres(rows(("a", 1, None)), None, dsn, "orders", None)
    target = PostgresTarget(dsn, "orders")
    with pytest.raises(MulticloudDbError, match="before: is a naive datetime"):
        target.drop_tombstones(late.replace(tzinfo=None))
    assert target.drop_tombstones(late) == 1
