"""The suite's tests of reading on a scripted server that answers in the most awkward way there is."""

from . import suite
from .scripted import MovesKeysHarness, NastyHarness
from .suite import (  # noqa: F401
    TestCheckpoint,
    TestMerge,
    TestPageSize,
    TestRetirement,
    TestSplit,
    TestTransactions,
)


class TestLossFromTheBeginning(suite.TestLoss):
    """One plan of kills; the plain server has them all."""

    test_nothing_is_lost_by_a_consumer_of_pages = None
    test_nothing_is_lost_by_an_iterator = None


HARNESSES = [NastyHarness, MovesKeysHarness]
