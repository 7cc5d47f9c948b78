"""Tests which objects are accepted from a provider's entry point."""

import pytest

from multiclouddb_api import ClientConfig, ErrorCategory, MulticloudDbError
from multiclouddb_spi import open_provider, plugin


def test_an_entry_point_that_names_something_else_is_refused(monkeypatch):
    monkeypatch.setattr(plugin, "load_plugin", lambda name: object())
    with pytest.raises(
        MulticloudDbError, match="'foreign' names a object, which is not a ProviderPlugin"
    ) as raised:
        open_provider(ClientConfig("foreign"))
    assert raised.value.category == ErrorCategory.INVALID_REQUEST
