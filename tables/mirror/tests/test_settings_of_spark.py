"""Tests a mirror on Spark on machines and in sessions that are set up differently."""

import tempfile

import pytest

from .worlds import CHANGED, FIRST, World

NAMED = "spark.sql.streaming.queryEvolution.enableSourceEvolution"


@pytest.fixture
def world(tmp_path, monkeypatch):
    made = World(tmp_path, "delta", None, monkeypatch)
    made.begin()
    yield made
    made.client.close()
    made.store.close()


def test_temporary_files_are_in_a_folder_whose_name_has_spaces_and_signs(world, spark, tmp_path, monkeypatch):
    folder = tmp_path / "Jörg Müller's 100% #1"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    world.run(spark=spark)
    assert world.rows() == FIRST
    assert [*folder.iterdir()] == []


def test_a_session_in_which_every_source_of_a_stream_has_a_name(world, spark):
    spark.conf.set(NAMED, "true")
    try:
        world.run(spark=spark)
        world.change()
        world.run(spark=spark)
    finally:
        spark.conf.unset(NAMED)
    assert world.rows() == CHANGED
