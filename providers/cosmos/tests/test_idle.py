"""Tests how often ranges without new changes are polled."""

import pytest

from multiclouddb_api import Now

from .world import soon


def idle(reader, seconds=30.0):
    """Fetch several times without records, and return the pause after each fetch."""
    pauses = []
    for _ in range(6):
        batch = reader.fetch(10, 1 << 20, 0.0, soon(seconds))
        assert batch.caught_up
        assert not len(batch)
        pauses.append(batch.poll_after)
    return pauses


@pytest.mark.parametrize(
    ("readers", "wanted"),
    [(1, [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]), (64, [0.64, 0.64, 0.64, 0.8, 1.0, 1.0]), (300, [3.0] * 6)],
)
def test_all_idle_ranges_together_are_asked_a_hundred_times_a_second(world, readers, wanted):
    _, feed = world.feed()
    seed, *_ = feed.start(Now(), None, soon())
    made = [feed.open(seed.partition_id, seed.cursor) for _ in range(readers)]
    assert idle(made[0]) == pytest.approx(wanted)


def test_a_pause_leaves_time_to_ask_all_ranges_in_one_call(world):
    """The pause of an idle range is so short that one call can poll every range.

    With a longer pause, a feed with very many ranges would never return an idle page.
    """
    _, feed = world.feed()
    seed, *_ = feed.start(Now(), None, soon())
    made = [feed.open(seed.partition_id, seed.cursor) for _ in range(300)]
    assert max(idle(made[0], seconds=4.0)) <= 1.0
