"""The suite's tests of reading on a scripted server that answers in the most awkward way there is."""

from .scripted import MovesKeysHarness, NastyHarness
from .suite import (  # noqa: F401
    TestCheckpoint,
    TestLoss,
    TestMerge,
    TestPageSize,
    TestRetirement,
    TestSplit,
    TestTransactions,
)

HARNESSES = [NastyHarness, MovesKeysHarness]
