"""Tests that a partition gets smaller answers after a connection has broken within an answer."""

import pytest

from multiclouddb_conformance.simulation import Simulation, SimulationProvider
from multiclouddb_spi import FeedSpec
from multiclouddb_spi.time_limits import AnswerSizes, Arrival, Deadline

LARGE = 100_000


@pytest.fixture
def feed():
    sim = Simulation(1)
    return SimulationProvider(sim).open_feed(FeedSpec(sim.address), Deadline.after(10))


def broken(nbytes):
    arrival = Arrival()
    arrival.heard(nbytes)
    return arrival


def test_each_break_quarters_it_and_four_answers_double_it(feed):
    sizes, seen = AnswerSizes(), []
    for _ in range(3):
        seen.append(sizes.of(feed, "p0").of(1000))
        sizes.failed(feed, "p0", broken(LARGE))
    assert seen == [1000, 250, 62]
    grown = []
    for _ in range(24):
        grown.append(sizes.of(feed, "p0").of(1000))
        sizes.arrived(feed, "p0")
    assert grown == [size for size in (15, 31, 62, 125, 250, 500) for _ in range(4)]
    assert sizes.of(feed, "p0").is_full


def test_it_is_never_less_than_one(feed):
    sizes = AnswerSizes()
    for _ in range(100):
        sizes.failed(feed, "p0", broken(LARGE))
    assert sizes.of(feed, "p0").of(1000) == 1


def test_other_partitions_and_feeds_keep_theirs(feed):
    sizes = AnswerSizes()
    sizes.failed(feed, "p0", broken(LARGE))
    assert sizes.of(feed, "p1").is_full


@pytest.mark.parametrize("nbytes", [0, 500], ids=["no answer", "a refusal"])
def test_a_failure_without_an_answer_changes_nothing(feed, nbytes):
    sizes = AnswerSizes()
    sizes.failed(feed, "p0", broken(nbytes))
    assert sizes.of(feed, "p0").is_full


def test_a_read_that_was_cancelled_changes_nothing(feed):
    sizes, arrival = AnswerSizes(), broken(LARGE)
    arrival.cancel()
    sizes.failed(feed, "p0", arrival)
    assert sizes.of(feed, "p0").is_full


def test_a_long_answer_counts_although_a_short_one_followed(feed):
    """After a failure, a vendor's client may still tell the server that it needs the cursor no more."""
    sizes, arrival = AnswerSizes(), broken(LARGE)
    arrival.begin()
    arrival.heard(40)
    sizes.failed(feed, "p0", arrival)
    assert not sizes.of(feed, "p0").is_full
