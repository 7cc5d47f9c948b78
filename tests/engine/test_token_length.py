"""The longest token that is read, and the first that is not."""

import pytest

from multiclouddb_api import MulticloudDbError, Now
from multiclouddb_spi.continuation import token


def test_a_token_of_exactly_the_bound_is_read(bench, monkeypatch):
    text = bench.page(Now()).continuation_token
    monkeypatch.setattr(token, "_MOST_CHARACTERS", len(text))
    assert bench.page(text).idle
    monkeypatch.setattr(token, "_MOST_CHARACTERS", len(text) - 1)
    with pytest.raises(MulticloudDbError, match="too large"):
        bench.page(text)
