"""Tests what is counted during a call: function calls, changes of module, and stack frames."""

from benchmarks.hops import measure
from multiclouddb_spi.continuation.written import WrittenTokens


def test_a_call_is_seen_through_all_rooms(tmp_path):
    found = measure(tmp_path)
    assert found.functions > found.frames > 1
    assert found.modules > 1


def test_a_call_takes_few_steps(tmp_path, monkeypatch):
    """The counts vary by about ten, depending on which partition answers first."""
    monkeypatch.setattr(WrittenTokens, "checks", False)  # this check runs only in tests, not for users
    found = measure(tmp_path)
    assert found.functions <= 160
    assert found.modules <= 180
    assert found.frames <= 16
