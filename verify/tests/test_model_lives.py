"""Lives of a Delta table and the embedded store, judged by a model of their own."""

import pytest

from multiclouddb_conformance.model_lives import Life

from .delta_model import DeltaModelTable
from .embedded_model import EmbeddedSource
from .tables import VALUES

SEEDS = [pytest.param(seed, marks=[pytest.mark.soak] * (seed >= 4)) for seed in range(1000)]


@pytest.mark.parametrize("seed", SEEDS)
def test_every_verdict_is_todays_and_no_right_row_is_damaged(seed, tmp_path):
    source = EmbeddedSource(tmp_path, VALUES)
    try:
        Life(seed, tmp_path, source, DeltaModelTable(tmp_path / "table")).live()
    finally:
        source.close()
