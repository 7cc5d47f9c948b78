"""Random lives: what `verify` finds is what was planted, and nothing else."""

import attrs
import pytest

from multiclouddb_api import ErrorCategory, MulticloudDbError
from multiclouddb_conformance.simulation import ServiceBehaviour, SimulationFeed
from multiclouddb_verify import DifferenceKind
from multiclouddb_verify.source import Source
from multiclouddb_verify.verification import Verification
from testing.seeds import seeds

from .worlds import World, found

SEEDS = seeds(12, 300)


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


def test_changes_of_other_keys_are_read_again_if_the_rounds_were_killed(tmp_path):
    """The rounds keep only the changes of the keys that they judge."""
    world = World(29, behaviour=rough(29), kills=2)
    assert found(world.verify(tmp_path / "state")) == world.faults
    world.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_repair_makes_the_table_equal_beside_the_sink(seed, tmp_path):
    world = World(seed, behaviour=[smooth, rough][seed % 2](seed), kills=seed % 3)
    report = world.verify(tmp_path / "state", repair=True)
    assert found(report) == {}
    assert report.equal
    # What a killed comparison has repaired, the next one finds equal.
    assert {each.key for each in report.repaired} <= set(world.faults)
    assert report.counts.repaired == len(report.repaired)
    assert world.target.written >= len(world.faults)
    assert seed % 3 or len(report.repaired) == len(world.faults)
    written = world.target.written
    again = world.verify(tmp_path / "state", repair=True)
    assert (again.equal, again.counts.repaired, world.target.written) == (True, 0, written)
    world.settle()
    assert world.target.documents() == world.truth()
    world.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_what_cannot_be_looked_up_is_not_known_and_not_touched(seed, tmp_path):
    world = World(seed, behaviour=[smooth, rough][seed % 2](seed), kills=seed % 3)
    world.refuse(1 + seed % 3)
    report = world.verify(tmp_path / "state", repair=True)
    assert not report.equal
    assert set(report.unsettled) == {key for key in world.faults if world.is_refused(key)}
    assert report.reasons == dict.fromkeys(report.unsettled, "check the credentials")
    world.settle()
    assert not world.is_damaged()
    assert found(report) == {}
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


@pytest.fixture
def no_time(monkeypatch):
    """Let the service tell no time, as DynamoDB Local does; its records have times."""
    monkeypatch.setattr(SimulationFeed, "clock", lambda feed, deadline: None)
    monkeypatch.setattr("multiclouddb_verify.source._IDLE_SECONDS", 0.0)


@pytest.mark.usefixtures("no_time")
@pytest.mark.parametrize("seed", [*range(6), *SEEDS[12:]])
def test_without_the_time_of_the_service_found_is_what_was_planted(seed, tmp_path):
    world = World(seed, behaviour=[smooth, rough][seed % 2](seed), lag=0.8 * (seed % 3))
    world.settle_seconds = 2.0
    report = world.verify(tmp_path / "state")
    assert found(report) == world.faults
    assert report.counts.unsettled == 0
    world.close()


@pytest.mark.usefixtures("no_time")
def test_without_the_time_of_the_service_a_stream_that_is_never_quiet_ends_with_the_way_out(
    tmp_path, monkeypatch
):
    original = Source.changes
    monkeypatch.setattr(
        Source, "changes", lambda self, *asked: attrs.evolve(original(self, *asked), idle=False)
    )
    monkeypatch.setattr("multiclouddb_verify.source._LEAST_PATIENCE", 0.0)
    world = World(1, behaviour=smooth(1))
    run = Verification(
        world.source(), world.target, world.stored, pause=world.pause, clock=world.clock,
        state=tmp_path / "state", patience_seconds=5.0,
    )  # fmt: skip
    with pytest.raises(MulticloudDbError, match="stop the writers") as caught:
        run.run()
    assert caught.value.category == ErrorCategory.TRANSIENT_FAILURE
    assert caught.value.retryable
    world.close()


@pytest.mark.parametrize("latest", [True, False])
def test_ghosts_are_expected_only_if_the_feed_has_no_deletes(latest, tmp_path):
    world = World(
        1,
        behaviour=smooth(1),
        kinds=[DifferenceKind.GHOST, DifferenceKind.STALE, DifferenceKind.GHOST],
        latest=latest,
    )
    world.left = 0
    report = world.verify(tmp_path / "state")
    assert report.counts.differences == {DifferenceKind.GHOST: 2, DifferenceKind.STALE: 1}
    assert report.counts.expected_ghosts == (2 if latest else 0)
    assert report.to_dict()["counts"]["expected_ghosts"] == report.counts.expected_ghosts
    assert (report.expected is not None) is latest
    repaired = world.verify(tmp_path / "state", repair=True)
    assert (repaired.equal, repaired.counts.repaired, repaired.counts.expected_ghosts) == (True, 3, 0)
    assert repaired.expected is None
    world.close()
