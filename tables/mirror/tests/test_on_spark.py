"""Tests a mirror whose changes Spark reads, and the hand-over between it and one without Spark."""

import pytest

from multiclouddb_api import ErrorCategory, MulticloudDbError, Snapshot
from multiclouddb_mirror import Mirror, destination_of, mirror
from pyspark_multiclouddb import mirroring
from pyspark_multiclouddb.mirroring import SparkReading

from .worlds import CHANGED, FIRST, KINDS, World


class Killed(Exception):  # noqa: N818 - as `Death`
    """The process is killed; Spark passes it on, as any other exception of a batch."""


@pytest.fixture(params=["delta", *(pytest.param(each, marks=pytest.mark.soak) for each in KINDS[1:])])
def world(request, tmp_path, monkeypatch):
    server = request.getfixturevalue("server") if request.param == "postgres" else None
    made = World(tmp_path, request.param, server, monkeypatch)
    made.begin()
    small(monkeypatch)
    yield made
    made.client.close()
    made.store.close()


def small(monkeypatch):
    """Let a micro-batch read one segment of a snapshot, and few changes."""
    options = mirroring._options

    def few(config, request):
        found = {**options(config, request), "maxRecordsPerTrigger": "2", "pollInterval": "50 ms"}
        return found | ({"snapshotSegments": "4"} if "startingPosition" in found else {})

    monkeypatch.setattr(mirroring, "_options", few)


def dies(progress):
    """Kill the process after the first page with rows."""
    if progress.events:
        raise Killed


def test_each_side_goes_on_in_the_middle_of_the_snapshot_of_the_other(world, spark):
    with pytest.raises(Killed):
        world.run(spark=spark, on_progress=dies)
    assert 0 < len(world.rows()) < 7
    with pytest.raises(Killed):
        world.run(on_progress=dies)
    assert len(world.rows()) < 7
    world.change()
    report = world.run(spark=spark, prove=True)
    assert report.began == "position"  # a second copy would be told as "expired"
    assert report.proof.equal
    assert world.rows() == CHANGED


def test_changes_are_merged_by_both_in_turn(world, spark):
    world.run()
    world.change()
    report = world.run(spark=spark)
    assert (report.began, report.events, report.deletes) == ("position", 5, 1)
    assert report.watermark is not None
    assert world.rows() == CHANGED
    world.put("o-3", 33)
    assert world.run(prove=True).proof.equal
    world.put("o-3", 34)
    position = destination_of(world.target).stored()
    report = world.run(spark=spark)
    assert report.events == 1
    assert destination_of(world.target).stored() != position
    assert world.rows() == {**CHANGED, "o-3": 34}


@pytest.mark.soak
def test_killed_at_each_step_either_side_goes_on(world, spark):
    def lives(first, second):
        world.begin()
        world.run(**first)
        steps, moment = world.steps, 0
        while moment < steps:
            world.begin()
            with pytest.raises(Killed):
                world.run(dies_at=moment, failure=Killed(), **first)
            world.change()
            assert world.run(prove=True, **second).proof.equal
            assert world.rows() == CHANGED
            moment += 1

    lives({"spark": spark}, {})
    lives({}, {"spark": spark})
    lives({"spark": spark}, {"spark": spark})


def test_killed_around_the_position_it_is_read_again(world, spark, monkeypatch):
    if world.kind == "postgres":  # it stores the position with the rows
        return
    world.run(spark=spark)
    world.change()
    table = type(destination_of(world.target).target)
    stored, calls = table.store_position, []

    def dying(self, *arguments):
        calls.append(arguments)
        if len(calls) == 2:
            stored(self, *arguments)
        raise Killed

    for _ in range(2):
        monkeypatch.setattr(table, "store_position", dying)
        with pytest.raises(Killed):
            world.run(spark=spark)
        monkeypatch.setattr(table, "store_position", stored)
    assert world.run(prove=True).proof.equal
    assert world.rows() == CHANGED


def test_it_follows_until_it_is_stopped(world, spark):
    world.run()
    world.change()

    def on_progress(progress):
        if world.rows() == CHANGED:
            job.stop()

    job = Mirror(world.client, "main/orders", world.target, spark=spark, follow=True, on_progress=on_progress)
    report = job.run()
    assert (report.began, report.caught_up) == ("position", False)
    assert world.rows() == CHANGED


def test_an_expired_position_is_copied_again(world, spark):
    world.run()
    world.change()
    world.store.trim("orders", max_count=0)
    with pytest.raises(MulticloudDbError, match="on-expired") as refused:
        world.run(spark=spark, on_expired="fail")
    assert refused.value.category == ErrorCategory.CHECKPOINT_EXPIRED
    assert world.rows() == FIRST
    report = world.run(spark=spark, prove=True)
    assert report.began == "expired"
    assert report.proof.equal
    assert world.rows() == CHANGED


def test_a_collection_that_was_dropped_is_refused(world, spark):
    world.run()
    world.put("o-9", 9)
    world.store.drop_collection("orders")
    with pytest.raises(MulticloudDbError, match="--resync"):
        world.run(spark=spark)
    assert world.rows() == FIRST
    world.is_made = False


def test_a_feed_without_documents_is_refused_before_anything_is_copied(world, spark):
    world.store.create_collection("keys", images="keys")
    world.store.put("keys", "k-1", {"total": 1})
    with pytest.raises(MulticloudDbError) as caught:
        mirror(world.client, "main/keys", world.target, spark=spark)
    assert caught.value.message.startswith("collection: a mirror needs the document of each change: 'keys'")
    assert destination_of(world.target).found() is None


@pytest.mark.parametrize("name", ["set_aside", "max_scan_rate"])
def test_what_spark_does_not_do_is_refused(tmp_path, name):
    with pytest.raises(MulticloudDbError, match=f"{name}: is given together with spark"):
        mirror(object(), "orders", f"delta:{tmp_path}/t", spark=True, **{name: 1})


def test_the_session_of_another_process_is_refused():
    with pytest.raises(MulticloudDbError, match="spark: is object"):
        SparkReading(object(), None, None, follows=False)


def test_a_position_that_spark_cannot_keep_is_refused(world, spark):
    rated = Snapshot(max_scan_rate=1e6)
    with pytest.raises(MulticloudDbError, match="is given, but Spark's tasks do not keep it"):
        world.run(spark=spark, start=rated)
    with pytest.raises(Killed):
        world.run(start=rated, on_progress=dies)
    with pytest.raises(MulticloudDbError, match="in the middle of a snapshot with a max_scan_rate"):
        world.run(spark=spark)
    world.run(prove=True)
    assert world.rows() == FIRST
