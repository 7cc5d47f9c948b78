"""Tests that a copy of every row ends what was set aside before it, and nothing else."""

import pytest

from .kills import Death
from .test_set_aside import ALL, GOOD, World, changed


@pytest.fixture
def world(tmp_path, monkeypatch):
    made = World(tmp_path, monkeypatch)
    yield made
    made.client.close()
    made.store.close()


def test_what_a_resync_has_written_is_not_set_aside_any_more(world):
    changed(world)
    assert world.run().set_aside == 2
    world.accept()
    assert world.run(resync=True).set_aside == 0
    assert (world.rows(), world.keys()) == (ALL, set())


def test_what_the_copy_sets_aside_stays(world):
    changed(world)
    world.run()
    world.refuses = lambda text: '"total":900' in text
    assert world.run(resync=True).set_aside == 1
    assert (world.rows(), world.keys()) == ({**GOOD, "o-1": 100}, {"o-9"})
    world.accept()
    assert world.retry().left == 0
    assert world.rows() == ALL


def test_a_change_after_the_beginning_of_the_copy_stays(world):
    changed(world)
    world.run()
    world.refuses = lambda text: '"total":800' in text

    def on_progress(progress):
        if progress.events == 3:  # the copy has read this row
            world.put("o-0", total=800, bad=True)

    report = world.run(resync=True, on_progress=on_progress)
    assert report.set_aside == 1
    assert world.keys() == {"o-0"}
    world.accept()
    assert world.retry().written == 1
    assert world.rows() == {**ALL, "o-0": 800}


def test_a_row_of_another_table_stays(world):
    changed(world)
    world.run()
    world.accept()
    target, world.table = world.table, world.folder / "other.db"
    world.run()
    assert world.keys() == {"o-1", "o-9"}
    world.table = target
    assert world.run(resync=True).set_aside == 0


def test_killed_at_each_step_of_the_copy_only_what_the_table_has_is_removed(world):
    changed(world)
    world.run()
    world.accept()
    world.keep()
    world.run(resync=True)
    whole = world.steps
    assert whole > 10
    for moment in range(whole // 2, whole):  # before that the copy has not read every row
        world.restore()
        with pytest.raises(Death):
            world.run(dies_at=moment, resync=True)
        lacks = {key for key in ("o-1", "o-9") if world.rows().get(key) != ALL[key]}
        assert lacks <= world.keys(), moment
        world.run(resync=True)
        assert (world.rows(), world.keys()) == (ALL, set()), moment


def test_a_copy_that_another_process_ends_removes_what_is_older(world):
    changed(world)
    world.run()
    world.accept()

    def dies(progress):
        if progress.events:
            raise Death

    with pytest.raises(Death):
        world.run(resync=True, on_progress=dies)
    assert world.run().set_aside == 0
    assert (world.rows(), world.keys()) == (ALL, set())
