"""Lives of a Delta table that is restored and dropped, and whose checkpoint is restored and copied."""

import random

import pytest

from multiclouddb_spi.sink_rules import SinkTable
from pyspark_multiclouddb.delta import DeltaStorage

from . import sink_lives
from .sink_lives import Life

SEEDS = [pytest.param(seed, marks=[pytest.mark.soak] * (seed >= 4)) for seed in range(1000)]
MOST = 100


def lived(seed, folder, kills):
    folder.mkdir()
    return Life(random.Random(seed), folder, kills).live()


@pytest.mark.parametrize("seed", SEEDS)
def test_table_equals_its_collection_or_the_sink_refuses(seed, tmp_path, kills):
    lived(seed, tmp_path / "life", kills)


def test_every_action_and_both_ends_occur(tmp_path, kills):
    lives = [lived(seed, tmp_path / str(seed), kills) for seed in range(3)]
    assert all(life.compared for life in lives)
    assert any(life.refused for life in lives)


class TestDefects:
    """Each defect is found by one of the first lives."""

    def find(self, folder, kills):
        for seed in range(MOST):
            try:
                lived(seed, folder / str(seed), kills)
            except AssertionError:
                return
        pytest.fail(f"{MOST} lives have not found it")

    def test_mark_is_ignored(self, tmp_path, kills, monkeypatch):
        monkeypatch.setattr(SinkTable, "check_place", lambda *_: None)
        self.find(tmp_path, kills)

    def test_restore_is_not_seen(self, tmp_path, kills, monkeypatch):
        monkeypatch.setattr(DeltaStorage, "gone_back", lambda *_: False)
        self.find(tmp_path, kills)

    def test_batch_is_left_out_because_of_its_number(self, tmp_path, kills, monkeypatch):
        original, seen = sink_lives.merge_into_delta, {}

        def skipping(batch, number, path, app_id, *, checkpoint):
            query = (checkpoint / "metadata").read_text()
            if number <= seen.get(query, -1):
                return False
            merged = original(batch, number, path, app_id, checkpoint=checkpoint)
            seen[query] = number
            return merged

        monkeypatch.setattr(sink_lives, "merge_into_delta", skipping)
        self.find(tmp_path, kills)
