"""Tests that a mirror takes no table of another one, and stores no position for rows that are not there."""

import shutil
from datetime import UTC, datetime

import pytest
from deltalake import DeltaTable, write_deltalake

from multiclouddb_api import (
    AtTime,
    ChangeFeedRequest,
    ErrorCategory,
    FromContinuationToken,
    MulticloudDbError,
    Now,
    Snapshot,
    connect,
)
from multiclouddb_embedded import EmbeddedStore
from multiclouddb_mirror import Mirror, destination_of, mirror


@pytest.fixture
def store(tmp_path):
    with EmbeddedStore(tmp_path / "shop.db") as made:
        for name in ("orders", "people"):
            made.create_collection(name)
            made.put(name, f"{name}-1", {"total": 1})
        yield made


@pytest.fixture
def client(store, tmp_path):
    with connect(f"embedded://{tmp_path}/shop.db") as made:
        yield made


@pytest.mark.parametrize("again", [{}, {"resync": True}])
def test_the_table_of_another_collection_is_not_taken(client, tmp_path, again):
    target = f"delta:{tmp_path}/table"
    mirror(client, "main/orders", target, position=f"file://{tmp_path}/positions/orders")
    with pytest.raises(MulticloudDbError, match="is the table of embedded main/orders") as caught:
        mirror(client, "main/people", target, **again)
    assert caught.value.category is ErrorCategory.INVALID_REQUEST
    [row] = DeltaTable(tmp_path / "table").to_pyarrow_table().to_pylist()
    assert row["_deleted_at"] is None


def test_a_stored_position_without_its_table_is_no_success(client, tmp_path):
    target, position = f"sqlite:{tmp_path}/table.db#orders", f"file://{tmp_path}/positions/orders"
    mirror(client, "main/orders", target, position=position)
    (tmp_path / "table.db").unlink()
    with pytest.raises(MulticloudDbError, match="--resync") as caught:
        mirror(client, "main/orders", target, position=position)
    assert caught.value.category is ErrorCategory.NOT_FOUND
    assert mirror(client, "main/orders", target, position=position, resync=True, prove=True).proof.equal


def test_restored_before_its_position_was_stored_the_rows_come_again(client, store, tmp_path):
    target = f"delta:{tmp_path}/table"
    mirror(client, "main/orders", target)
    destination = destination_of(target)
    destination.begin()
    stored = destination.load()
    version = DeltaTable(tmp_path / "table").version()
    store.put("orders", "orders-2", {"total": 2})
    page = client.read_changes(ChangeFeedRequest("main/orders", FromContinuationToken(stored)))
    destination.merge(page)
    DeltaTable(tmp_path / "table").restore(version)
    with pytest.raises(MulticloudDbError, match="was restored") as caught:
        destination.save(page.continuation_token, now=True)
    assert caught.value.category is ErrorCategory.CONFLICT
    assert mirror(client, "main/orders", target, prove=True).proof.equal


@pytest.mark.parametrize("start", [Now(), AtTime(datetime(2026, 1, 1, tzinfo=UTC))])
def test_a_start_after_which_rows_would_be_missing_is_refused(client, tmp_path, start):
    with pytest.raises(MulticloudDbError, match="start") as caught:
        mirror(client, "main/orders", f"delta:{tmp_path}/table", start=start)
    assert caught.value.category is ErrorCategory.INVALID_REQUEST
    assert not (tmp_path / "table").exists()


@pytest.mark.parametrize("changes", [0, 1])
def test_a_table_that_something_else_has_filled_follows_from_a_token(client, store, tmp_path, changes):
    """Also if nothing has changed in the first run."""
    target = f"delta:{tmp_path}/table"
    mirror(client, "main/orders", target)
    token = destination_of(target).load()
    with pytest.raises(MulticloudDbError, match="is a token, but there is no"):
        mirror(client, "main/orders", f"delta:{tmp_path}/other", start=FromContinuationToken(token))
    write_deltalake(tmp_path / "other", DeltaTable(tmp_path / "table").to_pyarrow_table())
    target = f"delta:{tmp_path}/other"
    with pytest.raises(MulticloudDbError, match="--adopt"):
        mirror(client, "main/orders", target, start=FromContinuationToken(token))
    for number in range(changes):
        store.put("orders", f"early-{number}", {})
    mirror(client, "main/orders", target, start=FromContinuationToken(token), adopt=True)
    store.put("orders", "late", {})
    assert mirror(client, "main/orders", target, prove=True).proof.equal
    assert DeltaTable(tmp_path / "other").to_pyarrow_table().num_rows == 2 + changes


def test_the_position_of_another_collection_is_told(client, tmp_path):
    target = f"sqlite:{tmp_path}/table.db#rows"
    mirror(client, "main/orders", target)
    with pytest.raises(MulticloudDbError, match="follows main/orders, and not main/people"):
        mirror(client, "main/people", target)


@pytest.mark.parametrize("kind", ["delta:{}/table", "sqlite:{}/table.db#orders"])
def test_of_two_first_runs_one_goes_on(client, tmp_path, kind):
    """The other one stores a position after this one has loaded it, and before this one claims the table."""
    target = kind.format(tmp_path)
    other = destination_of(target)
    other.begin()
    other.load()
    page = client.read_changes(ChangeFeedRequest("main/orders", Snapshot()))
    other.merge(page)
    later = client.read_changes(
        ChangeFeedRequest("main/orders", FromContinuationToken(page.continuation_token))
    )
    job = Mirror(client, "main/orders", target, prove=True)
    load, loaded = job._to.load, []

    def loading():
        loaded.append(load())
        if len(loaded) == 1:
            other.save(page.continuation_token, now=True)
        return loaded[-1]

    job._to.load = loading
    assert job.run().proof.equal
    assert loaded[:2] == [None, page.continuation_token]
    with pytest.raises(MulticloudDbError, match="another process has begun to write") as caught:
        other.merge(later)
    assert caught.value.category is ErrorCategory.CONFLICT


def test_a_position_elsewhere_goes_by_itself(client, store, tmp_path):
    """Also if the table has one of its own, from runs that have stored it there."""
    target = f"sqlite:{tmp_path}/table.db#orders"
    mirror(client, "main/orders", target)
    place = f"file://{tmp_path}/positions/orders"
    assert mirror(client, "main/orders", target, position=place).began == "snapshot"
    store.put("orders", "orders-2", {"total": 2})
    report = mirror(client, "main/orders", target, position=place, prove=True)
    assert (report.began, report.proof.equal) == ("position", True)


def test_a_table_that_is_dropped_during_the_run_is_no_success(client, store, tmp_path):
    target = f"delta:{tmp_path}/table"
    with pytest.raises(MulticloudDbError, match="dropped"):
        mirror(client, "main/orders", target, on_progress=lambda told: shutil.rmtree(tmp_path / "table"))
