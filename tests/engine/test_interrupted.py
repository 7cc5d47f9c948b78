"""Tests that an interrupt (Ctrl-C) at any line of a call reaches the caller, and that nothing leaks."""

import pytest

from multiclouddb_api import Beginning, ErrorCategory
from multiclouddb_spi import ProviderFault
from tests.engine.interrupt import interrupted_at

BEGINNING = Beginning()


def break_off(bench, place):
    """A call fails after it has read, so that the next one takes over what it has left."""

    def fails(*_):
        raise ProviderFault.of(ErrorCategory.TRANSIENT_FAILURE, "no page", retryable=True)

    pages = bench.engine._pages
    pages.reading = fails
    bench.refused(ErrorCategory.TRANSIENT_FAILURE, place, size=3)
    del pages.reading


@pytest.mark.parametrize("failed", [True, False], ids=["after a failure", "at once"])
@pytest.mark.parametrize("from_token", [True, False], ids=["token", "start"])
def test_at_any_line_of_a_call_it_leaks_no_reader_and_no_byte(make_bench, ids, from_token, failed):
    """The interrupted call discards what it has used, and the next one with the same token is right."""
    bench = make_bench(2)
    bench.fill(60)
    line = 1
    while True:
        bench.connect(page_records=5)
        place = BEGINNING
        if from_token:
            place = bench.page(bench.page(size=3).continuation_token, 3).continuation_token
        if failed:
            break_off(bench, place)
        if not interrupted_at(line, lambda place=place: bench.page(place, 3)):
            break
        again = ids(bench.page(place, 3))
        first = bench.engine
        assert again == ids(bench.page(place, 3, engine=bench.connect(page_records=5))), f"after line {line}"
        for each in (first, bench.engine):
            each.close()
            left = each.buffered_bytes, each.provider.calls.open_readers
            assert left == (0, 0), f"after line {line}"
        line += 1
    assert line > 150
