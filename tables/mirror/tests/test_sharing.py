"""Tests how long a shared reading waits for its tables."""

from time import monotonic
from unittest.mock import MagicMock

import pytest

from multiclouddb_api import ResourceAddress
from multiclouddb_mirror.sharing import Seat, SharedReading
from multiclouddb_spi.parts import Divided

NAMES = ("a", "b", "c")


@pytest.fixture
def reading():
    made = SharedReading(
        MagicMock(), "shop", len(NAMES), follows=False, timeout_seconds=30.0, page_events=10,
        wait_seconds=0.0, provider_options=None,
    )  # fmt: skip
    for name in NAMES:
        part = MagicMock(address=ResourceAddress("shop", name))
        made._seats.append(Seat(name, 0.0, part))
    return made


@pytest.mark.parametrize("done", range(4))
def test_a_table_that_waits_until_others_have_written_is_not_slow(reading, done):
    """Each has the time from when another one got done."""
    seats, waits = list(reading._seats), []

    def wait_for(until, seconds):
        waits.append(seconds)
        if len(waits) > done:
            return False
        seat = seats[len(waits) - 1]
        seat.page, seat.asks = None, True
        return until()

    reading._changed = MagicMock(wait_for=wait_for)
    divided = MagicMock(spec=Divided, events=dict.fromkeys(NAMES, ("event",)))
    reading._give(divided, MagicMock(notices=()))
    assert len(waits) == min(done + 1, 3)
    assert [seat.has_left for seat in seats] == [False] * done + [True] * (3 - done)


def test_a_table_is_woken_for_its_own_page_only(reading):
    """Else each of hundreds of tables would wake for the pages of all others."""
    seats = list(reading._seats)
    for seat in seats:
        seat.asks, seat.told_at = True, monotonic()

    def merged(*_):
        assert [seat.told.is_set() for seat in seats] == [False, True, False]
        seats[1].page = None
        return True

    reading._changed = MagicMock(wait_for=merged)
    reading._give(MagicMock(spec=Divided, events={"b": ("event",)}), MagicMock(notices=()))
    assert [seat.told.is_set() for seat in seats] == [False, True, False]
