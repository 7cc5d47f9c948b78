"""Tests what is counted during a call: function calls, changes of module, and stack frames."""

from statistics import median

import attrs
import pytest

from benchmarks.hops import measure
from multiclouddb_embedded.feed import EmbeddedFeed
from multiclouddb_spi.continuation.state import WrittenTokens


def test_a_call_is_seen_through_all_rooms(tmp_path):
    found = measure(tmp_path)
    assert found.functions > found.frames > 1
    assert found.modules > 1


@pytest.mark.parametrize(("at_once", "most"), [(False, (96, 62, 11)), (True, (102, 64, 12))])
def test_a_call_takes_few_steps(tmp_path, monkeypatch, at_once, most):
    """The counts vary, depending on which partition answers first; so the median counts.

    What is read in the thread of the caller counts too, and with the pool only the request for it.
    """
    monkeypatch.setattr(EmbeddedFeed, "reads_at_once", at_once)
    monkeypatch.setattr(WrittenTokens, "checks", False)  # this check runs only in tests, not for users
    found = []
    for number in range(9):
        folder = tmp_path / str(number)
        folder.mkdir()
        found.append(attrs.astuple(measure(folder)))
    medians = tuple(median(counts) for counts in zip(*found, strict=True))
    assert all(count <= bound for count, bound in zip(medians, most, strict=True)), medians
