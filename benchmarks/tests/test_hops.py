"""Tests the counts of a call: functions, module changes and frames."""

from benchmarks.hops import measure


def test_a_call_is_seen_through_all_rooms(tmp_path):
    found = measure(tmp_path)
    assert found.functions > found.frames > 1
    assert found.modules > 1
