"""Opens a client with a plugin that has no entry point, such as a wrapper or an unfinished plugin."""

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


def open_client(
    plugin: ProviderPlugin, config: ClientConfig, observer: Observer | None = None
) -> MulticloudDbClient:
    """Open a client with a plugin. The plugin need not be installed.

    Args:
        plugin: The provider's plugin.
        config: The configuration for the plugin.
        observer: Receives reports about internal events.
    """
    with _offered(plugin):
        return MulticloudDbClient(config, observer=observer)
