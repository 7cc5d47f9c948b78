"""Tests how often ranges without new changes are polled."""

import pytest

from multiclouddb_api import Now

from .world import soon


def idle(reader, seconds):
    """Fetch several times without records, and return the pause after each fetch."""
    pauses = []
    for _ in range(6):
        batch = reader.fetch(10, 1 << 20, 0.0, soon(seconds))
        assert batch.caught_up
        assert not len(batch)
        pauses.append(batch.poll_after)
    return pauses


@pytest.mark.parametrize(
    ("readers", "left", "wanted"),
    [
        (1, 30, [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]),
        (64, 30, [0.64, 0.64, 0.64, 0.8, 1.0, 1.0]),
        (300, 30, [3.0] * 6),
        (300, 4, [1.0] * 6),  # otherwise no call could ask all ranges, and no page would be idle
    ],
)
def test_all_idle_ranges_together_are_asked_a_hundred_times_a_second(world, readers, left, wanted):
    _, feed = world.feed()
    seed, *_ = feed.start(Now(), None, soon())
    made = [feed.open(seed.partition_id, seed.cursor) for _ in range(readers)]
    assert idle(made[0], left) == pytest.approx(wanted, abs=0.02)
