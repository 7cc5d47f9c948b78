"""Lives of a Delta table that is restored and dropped, and whose checkpoint is restored and copied."""

import shutil

import pytest
from deltalake import DeltaTable

from multiclouddb_tables.delta import DeltaTarget
from multiclouddb_tables.merging import MergeRules
from pyspark_multiclouddb import merge_into_delta
from testing.model_lives import ModelRow
from testing.seeds import seeds
from testing.sink_lives import SinkLife

SEEDS = seeds(1, 100)
MOST = 100


class DeltaLifeTable:
    def __init__(self, path, kills):
        self.path, self._kills = path, kills

    @property
    def exists(self):
        return self.path.exists()

    def merge(self, batch, number, checkpoint, **options):
        merge_into_delta(batch, number, self.path, "app", checkpoint=checkpoint, **options)

    def _read(self):
        return DeltaTable(self.path).to_pyarrow_dataset().scanner(use_threads=False).to_table().to_pylist()

    def rows(self):
        return [
            ModelRow(row["key"], row["order_key"], row.get("new_item_state"), row["_deleted_at"] is not None)
            for row in self._read()
        ]

    def values(self, names):
        return {row["key"]: [row[name] for name in names] for row in self._read()}

    def restore(self, dice):
        table = DeltaTable(self.path)
        version = table.version()
        if version:
            table.restore(dice.randint(max(0, version - 8), version - 1))
        return version > 0

    def copy(self, place):
        shutil.copytree(self.path, place)
        return True

    def put_back(self, place):
        shutil.rmtree(self.path, ignore_errors=True)
        shutil.copytree(place, self.path)

    def drop(self):
        shutil.rmtree(self.path)

    def dies(self, dice, chance=0.0):
        self._kills(dice=dice, chance=chance)


def lived(seed, folder, kills, **more):
    folder.mkdir()
    return SinkLife(seed, folder, DeltaLifeTable(folder / "table", kills), **more).live()


@pytest.mark.parametrize("seed", SEEDS)
def test_table_equals_its_collection_or_the_sink_refuses(seed, tmp_path, kills):
    lived(seed, tmp_path / "life", kills)


@pytest.mark.parametrize("seed", SEEDS)
def test_declared_columns_equal_their_documents_or_the_sink_refuses(seed, tmp_path, kills):
    assert lived(seed, tmp_path / "life", kills, declares=True).compared


def test_every_action_and_both_ends_occur(tmp_path, kills):
    lives = [lived(seed, tmp_path / str(seed), kills) for seed in range(3)]
    assert all(life.compared for life in lives)
    assert any(life.refused for life in lives)


def test_a_seed_repeats_its_life(tmp_path, kills):
    first, second = (lived(1, tmp_path / name, kills) for name in ("first", "second"))
    assert first.told.events == second.told.events


class TestDefects:
    """Each defect is found by one of the first lives."""

    def find(self, folder, kills):
        for seed in range(MOST):
            try:
                lived(seed, folder / str(seed), kills)
            except AssertionError as error:
                [history] = error.__notes__
                assert f"seed {seed}" in history
                return
        pytest.fail(f"{MOST} lives have not found it")

    def test_mark_is_ignored(self, tmp_path, kills, monkeypatch):
        monkeypatch.setattr(MergeRules, "check_place", lambda *_: None)
        self.find(tmp_path, kills)

    def test_restore_is_not_seen(self, tmp_path, kills, monkeypatch):
        monkeypatch.setattr(DeltaTarget, "gone_back", lambda *_: False)
        self.find(tmp_path, kills)

    def test_batch_is_left_out_because_of_its_number(self, tmp_path, kills, monkeypatch):
        merge, seen = DeltaLifeTable.merge, {}

        def skipping(table, batch, number, checkpoint):
            query = (checkpoint / "metadata").read_text()
            if number > seen.get(query, -1):
                merge(table, batch, number, checkpoint)
                seen[query] = number

        monkeypatch.setattr(DeltaLifeTable, "merge", skipping)
        self.find(tmp_path, kills)
