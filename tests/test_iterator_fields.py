"""Tests the arguments of an iterator."""

import inspect
from types import SimpleNamespace

import pytest

from multiclouddb_api import (
    Beginning,
    ChangeFeedIterator,
    ChangeFeedRequest,
    MulticloudDbError,
    ResourceAddress,
)
from multiclouddb_api.iterator import IteratorSettings

CLIENT = SimpleNamespace(read_changes=print)
REQUEST = ChangeFeedRequest(ResourceAddress("shop", "orders"), Beginning())


class TestFields:
    def test_every_setting_is_given_by_name(self):
        assert ChangeFeedIterator(CLIENT, REQUEST).request == REQUEST
        parameters = list(inspect.signature(ChangeFeedIterator).parameters.values())
        assert [each.name for each in parameters[:2]] == ["client", "request"]
        assert {each.kind for each in parameters[2:]} == {inspect.Parameter.KEYWORD_ONLY}
        assert {each.name for each in parameters[2:]} == set(IteratorSettings.__annotations__)

    def test_what_it_keeps_for_itself_cannot_be_given(self):
        ChangeFeedIterator(CLIENT, REQUEST)
        for field in ChangeFeedIterator.__attrs_attrs__:
            if field.name.startswith("_"):
                with pytest.raises(TypeError, match="unexpected keyword"):
                    ChangeFeedIterator(CLIENT, REQUEST, **{field.name.lstrip("_"): None})

    @pytest.mark.parametrize("seconds", [0.001, 0.5, 1])
    def test_a_wait_and_a_time_limit_may_be_short(self, seconds):
        made = ChangeFeedIterator(
            CLIENT, REQUEST, idle_backoff_seconds=seconds, max_idle_backoff_seconds=1, timeout_seconds=seconds
        )
        assert (made.idle_backoff_seconds, made.timeout_seconds) == (seconds, seconds)

    @pytest.mark.parametrize("name", ["idle_backoff_seconds", "timeout_seconds"])
    def test_a_wait_and_a_time_limit_may_not_be_shorter_than_a_millisecond(self, name):
        ChangeFeedIterator(CLIENT, REQUEST, **{name: 0.001})
        with pytest.raises(MulticloudDbError, match=rf"{name}: must be 0\.001 or more"):
            ChangeFeedIterator(CLIENT, REQUEST, **{name: 0.0009})
