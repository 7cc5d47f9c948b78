"""Tests the bounds of a token: its maximum length, and the times that it may contain."""

import math

import pytest

from multiclouddb_api import MulticloudDbError, Now
from multiclouddb_spi.continuation import token
from multiclouddb_spi.continuation.entry import Audited, audited_from_json
from multiclouddb_spi.continuation.token import MAX_BYTES
from multiclouddb_spi.cursor import InvalidCursor


def test_a_token_of_exactly_the_bound_is_read(bench, monkeypatch):
    text = bench.page(Now()).continuation_token
    monkeypatch.setattr(token, "_MOST_CHARACTERS", len(text))
    assert bench.page(text).idle
    monkeypatch.setattr(token, "_MOST_CHARACTERS", len(text) - 1)
    with pytest.raises(MulticloudDbError, match="too large"):
        bench.page(text)


def test_no_token_is_too_long_whose_json_is_within_the_bound():
    raw = len(b"j") + 4 + MAX_BYTES
    with pytest.raises(MulticloudDbError, match="not base64url text"):
        token.decode_token("é".ljust(math.ceil(raw * 4 / 3), "A"))


FIRST, LAST = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The first and the last microsecond of the years 1 to 9999."""


@pytest.mark.parametrize("since", [FIRST, 0, LAST, None])
def test_an_audit_counts_from_any_time_that_a_user_can_name(since):
    assert audited_from_json([since, 1, 0]) == Audited(since, 1, retired=False)


@pytest.mark.parametrize("since", [FIRST - 1, LAST + 1, 2**59, True, "0", 1.5])
def test_an_audit_counts_from_no_other_time(since):
    """If a forged token made every audit fail, missed partitions would stay hidden."""
    with pytest.raises(InvalidCursor):
        audited_from_json([since, 1, 0])
