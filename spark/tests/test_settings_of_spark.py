"""Tests a mirror on Spark on machines and in sessions that are set up differently."""

import errno
import os
import tempfile
from pathlib import Path
from threading import Event, Thread

import pytest
from pyspark.sql.streaming import StreamingQuery

from multiclouddb_api import connect
from multiclouddb_embedded.feed import EmbeddedFeed
from multiclouddb_mirror import Mirror, mirror
from pyspark_multiclouddb.mirroring import SparkReading

from .conftest import COLLECTION
from .micro_batches import documents

NAMED = "spark.sql.streaming.queryEvolution.enableSourceEvolution"


@pytest.fixture
def run(spark, source, path, monkeypatch):
    monkeypatch.setattr(EmbeddedFeed, "visible_after", lambda feed: 0.02)

    def call():
        with connect(source.options()["url"]) as client:
            mirror(client, COLLECTION, f"delta:{path}", spark=spark)
        assert documents(path) == source.documents

    return call


def test_temporary_files_are_in_a_folder_whose_name_has_spaces_and_signs(run, source, tmp_path, monkeypatch):
    folder = tmp_path / "Jörg Müller's 100% #1"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    source.fill(7)
    run()
    assert [*folder.iterdir()] == []


def test_a_mirror_ends_after_its_last_batch_even_if_spark_gives_up_waiting_for_it(
    source, spark, path, tmp_path, monkeypatch
):
    """With stopTimeout, `stop` raises while the batch goes on."""
    page, stop, remove = SparkReading._page, StreamingQuery.stop, os.rmdir
    begun, given_up, returned, late, left = Event(), Event(), Event(), [], []

    def slow(reading, number):
        begun.set()
        assert given_up.wait(100)
        late.append(returned.wait(0.5))
        return page(reading, number)

    def stopped(query):
        try:
            stop(query)
        finally:
            given_up.set()

    def written_meanwhile(path, **found):
        """Remove a folder, but not that of the checkpoint, into which Spark has just written."""
        if Path(path).name.startswith("multiclouddb-mirror-"):
            left.append(path)
            raise OSError(errno.ENOTEMPTY, "Directory not empty", path)
        remove(path, **found)

    monkeypatch.setattr(SparkReading, "_page", slow)
    monkeypatch.setattr(StreamingQuery, "stop", stopped)
    monkeypatch.setattr(os, "rmdir", written_meanwhile)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    spark.conf.set("spark.sql.streaming.stopTimeout", "1ms")
    source.fill(7)
    try:
        with connect(source.options()["url"]) as client:
            following = Mirror(client, COLLECTION, f"delta:{path}", spark=spark, follow=True)
            stopping = Thread(target=lambda: begun.wait(100) and following.stop())
            stopping.start()
            following.run()
            returned.set()
            stopping.join()
        assert late == [False]
        assert len(left) == 1
    finally:
        spark.conf.unset("spark.sql.streaming.stopTimeout")


@pytest.mark.parametrize("spelled", ["true", " TRUE"])
def test_a_session_in_which_every_source_of_a_stream_has_a_name(run, source, spark, spelled):
    """Spark takes any spelling of a setting that is true or false."""
    spark.conf.set(NAMED, spelled)
    try:
        source.fill(7)
        run()
        source.write(5)
        run()
    finally:
        spark.conf.unset(NAMED)
