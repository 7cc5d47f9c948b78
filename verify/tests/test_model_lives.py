"""Lives of a Delta table and the embedded store, judged by a model of their own."""

import attrs
import pytest

from multiclouddb_conformance.model_lives import Life, RefusingClient
from multiclouddb_verify.repair import _Plan
from multiclouddb_verify.sides import Sides
from multiclouddb_verify.state import State

from .delta_model import DeltaModelTable
from .embedded_model import EmbeddedSource
from .tables import VALUES

SEEDS = [pytest.param(seed, marks=[pytest.mark.soak] * (seed >= 4)) for seed in range(1000)]
MOST = 100
"""The number of lives within which a planted defect has to be noticed."""


def live(seed, folder):
    folder = folder / str(seed)
    folder.mkdir()
    source = EmbeddedSource(folder, VALUES)
    try:
        Life(seed, folder, source, DeltaModelTable(folder / "table")).live()
    finally:
        source.close()


def is_noticed(folder):
    for seed in range(MOST):
        try:
            live(seed, folder)
        except AssertionError:
            return True
    return False


@pytest.mark.parametrize("seed", SEEDS)
def test_every_verdict_is_todays_and_no_right_row_is_damaged(seed, tmp_path):
    live(seed, tmp_path)


def test_a_resume_that_reads_the_old_table_is_noticed(tmp_path, monkeypatch):
    take_up, read_table = State._take_up, Sides.read_table

    def take_up_all(state):
        state._sql("UPDATE run SET side = 'old' WHERE side = 'target'")
        take_up(state)

    def read_old(sides):
        if sides.state.count("old"):
            sides.state._sql("UPDATE run SET side = 'target' WHERE side = 'old'")
        else:
            read_table(sides)

    monkeypatch.setattr(State, "_take_up", take_up_all)
    monkeypatch.setattr(Sides, "read_table", read_old)
    assert is_noticed(tmp_path)


def test_a_mark_that_is_ignored_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr(Sides, "check_mark", lambda sides: None)
    assert is_noticed(tmp_path)


def test_an_absence_from_a_refusal_is_noticed(tmp_path, monkeypatch):
    row = _Plan._row

    def believes(plan, each, event):
        row(plan, attrs.evolve(each, expected=plan._digest(event)), event)

    monkeypatch.setattr(RefusingClient, "refuse", lambda client, keys: dict.fromkeys(keys))
    monkeypatch.setattr(_Plan, "_row", believes)
    assert is_noticed(tmp_path)


def test_a_foreign_text_that_is_overwritten_is_noticed(tmp_path, monkeypatch):
    def foreign(plan, each, text, event, beside):
        plan._row(attrs.evolve(each, expected=plan._digest(event)), event)

    monkeypatch.setattr(_Plan, "_foreign", foreign)
    assert is_noticed(tmp_path)
