"""A client over a plugin that no entry point names: one under construction, wrapped or simulated."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from unittest import mock

from multiclouddb_api import ClientConfig, MulticloudDbClient, Observer
from multiclouddb_spi import ProviderPlugin

__all__ = ["open_client"]

_lock: Final = threading.Lock()


@contextmanager
def _offered(plugin: ProviderPlugin) -> Iterator[None]:
    with _lock, mock.patch("multiclouddb_api.client.load_plugin", return_value=plugin):
        yield


class _Client(MulticloudDbClient):
    """The real client, but for where its plugin comes from."""

    def __init__(self, plugin: ProviderPlugin, config: ClientConfig, observer: Observer | None) -> None:
        self._plugin = plugin
        with _offered(plugin):
            super().__init__(config, observer=observer)

    def _reopen(self, operation: str) -> None:
        with _offered(self._plugin):
            super()._reopen(operation)


def open_client(
    plugin: ProviderPlugin, config: ClientConfig, observer: Observer | None = None
) -> MulticloudDbClient:
    """A client on a plugin, whether it is installed or not.

    Args:
        plugin: Of the provider.
        config: What the plugin connects with.
        observer: Told what happens inside.
    """
    return _Client(plugin, config, observer)
