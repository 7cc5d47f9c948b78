"""Tests what is counted during a call: function calls, changes of module, and stack frames."""

from statistics import median

from benchmarks.hops import measure
from multiclouddb_spi.continuation.state import WrittenTokens


def test_a_call_is_seen_through_all_rooms(tmp_path):
    found = measure(tmp_path)
    assert found.functions > found.frames > 1
    assert found.modules > 1


def test_a_call_takes_few_steps(tmp_path, monkeypatch):
    """The counts vary, depending on which partition answers first; so the median counts."""
    monkeypatch.setattr(WrittenTokens, "checks", False)  # this check runs only in tests, not for users
    found = []
    for number in range(9):
        folder = tmp_path / str(number)
        folder.mkdir()
        found.append(measure(folder))
    assert median(each.functions for each in found) <= 96
    assert median(each.modules for each in found) <= 62
    assert median(each.frames for each in found) <= 11
