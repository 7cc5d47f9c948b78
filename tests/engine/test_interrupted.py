"""Tests that an interrupt (Ctrl-C) at any line of a call reaches the caller, and that nothing leaks."""

import pytest

from multiclouddb_api import Beginning
from tests.engine.interrupt import interrupted_at

BEGINNING = Beginning()


@pytest.mark.parametrize("from_token", [True, False], ids=["token", "start"])
def test_at_any_line_of_a_call_it_leaks_no_reader_and_no_byte(make_bench, ids, from_token):
    """The interrupted call discards what it has used, and the next one with the same token is right."""
    bench = make_bench(2)
    bench.fill(60)
    line = 1
    while True:
        bench.connect(page_records=5)
        place = BEGINNING
        if from_token:
            place = bench.page(bench.page(size=3).continuation_token, 3).continuation_token
        if not interrupted_at(line, lambda place=place: bench.page(place, 3)):
            break
        again = ids(bench.page(place, 3))
        first = bench.engine
        assert again == ids(bench.page(place, 3, engine=bench.connect(page_records=5))), f"after line {line}"
        for each in (first, bench.engine):
            each.close()
            assert each.buffered_bytes == 0, f"after line {line}"
        assert bench.calls.open_readers == 0, f"after line {line}"
        line += 1
    assert line > 150
