"""Random lives: what `verify` finds is what was planted, and nothing else."""

import attrs
import pytest

from multiclouddb_conformance.simulation import ServiceBehaviour
from multiclouddb_verify import Kind
from multiclouddb_verify.source import Source

from .worlds import World, found

SEEDS = [pytest.param(seed, marks=[pytest.mark.soak] * (seed >= 12)) for seed in range(1000)]


def smooth(seed):
    return ServiceBehaviour(seed=seed)


def rough(seed):
    """Every fault of a service, except answers from which nobody could tell how far the stream was read."""
    return ServiceBehaviour.rough(seed, watermarks=True, proves_children=True, faults_in_row=1)


@pytest.mark.parametrize("seed", SEEDS)
def test_found_is_what_was_planted(seed, tmp_path):
    world = World(seed, behaviour=[smooth, rough][seed % 2](seed), kills=seed % 3)
    report = world.verify(tmp_path / "state")
    assert found(report) == world.faults
    assert report.counts.unsettled == 0
    assert not report.equal
    assert not (tmp_path / "state").exists()
    world.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_repair_makes_the_table_equal_beside_the_sink(seed, tmp_path):
    world = World(seed, behaviour=[smooth, rough][seed % 2](seed), kills=seed % 3)
    report = world.verify(tmp_path / "state", repair=True)
    assert found(report) == {}
    assert report.equal
    assert {each.key for each in report.repaired} == set(world.faults)
    assert report.counts.repaired == len(world.faults)
    written = world.target.written
    again = world.verify(tmp_path / "state", repair=True)
    assert (again.equal, again.counts.repaired, world.target.written) == (True, 0, written)
    world.settle()
    assert world.target.documents() == world.truth()
    world.close()


@pytest.mark.parametrize("seed", [94, 121, 188, 225, 232, 242])
def test_a_slow_call_does_not_shorten_the_window(seed, tmp_path, monkeypatch):
    """The client's clock and the service's may run at different speeds."""
    original = Source.changes

    def changes(self, token, wait=0.0):
        page = original(self, token, wait)
        return attrs.evolve(page, diagnostics=attrs.evolve(page.diagnostics, elapsed_seconds=5.0))

    monkeypatch.setattr(Source, "changes", changes)
    world = World(seed, behaviour=rough(seed))
    assert found(world.verify(tmp_path / "state")) == world.faults
    world.close()


@pytest.mark.parametrize("latest", [True, False])
def test_ghosts_are_expected_only_if_the_feed_has_no_deletes(latest, tmp_path):
    world = World(1, behaviour=smooth(1), kinds=[Kind.GHOST, Kind.STALE, Kind.GHOST], latest=latest)
    world.left = 0
    report = world.verify(tmp_path / "state")
    assert report.counts.differences == {Kind.GHOST: 2, Kind.STALE: 1}
    assert report.counts.expected_ghosts == (2 if latest else 0)
    assert report.to_dict()["counts"]["expected_ghosts"] == report.counts.expected_ghosts
    assert (report.expected is not None) is latest
    repaired = world.verify(tmp_path / "state", repair=True)
    assert (repaired.equal, repaired.counts.repaired, repaired.counts.expected_ghosts) == (True, 3, 0)
    assert repaired.expected is None
    world.close()
