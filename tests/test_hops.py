"""Tests what is counted during a call: function calls, changes of module, and stack frames."""

import attrs
import pytest

from benchmarks.hops import measure
from multiclouddb_embedded.feed import EmbeddedFeed
from multiclouddb_spi.continuation.state import WrittenTokens


def test_a_call_is_seen_through_all_rooms(tmp_path):
    found = measure(tmp_path)
    assert found.functions > found.frames > 1
    assert found.modules > 1


@pytest.mark.parametrize(("at_once", "most"), [(False, (92, 62, 10)), (True, (95, 62, 12))])
def test_a_call_takes_few_steps(tmp_path, monkeypatch, at_once, most):
    """What is read in the thread of the caller counts too, and with the pool only the request for it.

    A pool that answers late, because the machine is busy, takes the call through one more round. So the
    shortest of a few calls counts; a step that was added is in each of them.
    """
    monkeypatch.setattr(EmbeddedFeed, "reads_at_once", at_once)
    monkeypatch.setattr(WrittenTokens, "checks", False)  # this check runs only in tests, not for users
    found = []
    for number in range(40):
        folder = tmp_path / str(number)
        folder.mkdir()
        found.append(attrs.astuple(measure(folder)))
        if all(count <= bound for count, bound in zip(found[-1], most, strict=True)):
            return
    raise AssertionError(f"{min(found)} at least, and {max(found)} at most")
