"""Lives of a Delta table and the embedded store, judged by a model of their own."""

import pytest

from testing.model_lives import DECLARED, Life
from testing.planted import PLANTED, lives_until_noticed
from testing.seeds import seeds

from .delta_model import DeltaModelTable
from .embedded_model import EmbeddedSource
from .tables import VALUES

SEEDS = seeds(1, 150)
# In the life of seed 3, a column is damaged.
DECLARED_SEEDS = seeds(range(3, 4), 50)


def live(seed, folder, columns=None):
    folder = folder / str(seed)
    folder.mkdir(parents=True)
    source = EmbeddedSource(folder, VALUES)
    try:
        return Life(seed, folder, source, DeltaModelTable(folder / "table", columns)).live()
    finally:
        source.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_every_verdict_is_todays_and_no_right_row_is_damaged(seed, tmp_path):
    live(seed, tmp_path)


@pytest.mark.parametrize("seed", DECLARED_SEEDS)
def test_every_verdict_is_todays_with_declared_columns(seed, tmp_path):
    live(seed, tmp_path, DECLARED)


def test_a_seed_repeats_its_life(tmp_path):
    first, second = (live(1, tmp_path / name) for name in ("first", "second"))
    assert first.events == second.events


def test_a_failed_life_tells_its_history(tmp_path, monkeypatch):
    monkeypatch.setattr(Life, "wrong", lambda *_: {"not this key"})
    with pytest.raises(AssertionError) as caught:
        live(1, tmp_path)
    [history] = caught.value.__notes__
    assert "seed 1" in history
    assert "the sink merges" in history


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_defect_is_noticed(name, tmp_path):
    assert lives_until_noticed(name, lambda seed: live(seed, tmp_path))
