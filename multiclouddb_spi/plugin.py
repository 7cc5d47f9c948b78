"""Finds a provider, connects it to its database and passes it to an engine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from multiclouddb_api import CapabilitySet, ClientConfig, MulticloudDbError, Observer, invalid_request
from multiclouddb_api.config import without_frames
from multiclouddb_api.registry import load_plugin
from multiclouddb_spi.contract import Provider
from multiclouddb_spi.engine import Engine
from multiclouddb_spi.errors import to_error
from multiclouddb_spi.faults import ProviderFault
from multiclouddb_spi.retry import ATTEMPTS


class ProviderPlugin(ABC):
    """The object that a provider registers in the entry point group `multiclouddb.providers`.

    The module in the entry point contains, for example, `PLUGIN = MyPlugin()`.

    Attributes:
        provider_id: The name of the entry point.
        declared: The capabilities of a service that is set up as documented.
        config_type: A class whose `from_client(config)` checks a configuration without I/O, or None.
    """

    provider_id: ClassVar[str]
    declared: ClassVar[CapabilitySet]
    config_type: ClassVar[type[Any] | None] = None

    @abstractmethod
    def connect(self, config: ClientConfig, native_client: object | None) -> Provider:
        """Check the configuration and make the provider, with as little I/O as possible.

        Args:
            config: The configuration; the provider reads `config.connection` and refuses unknown option
                names.
            native_client: The application's own vendor client, or None if the provider makes its own.

        Raises:
            ProviderFault: Raised if the configuration cannot work.
        """

    def check(self, config: ClientConfig) -> None:
        """Check the configuration without I/O; by default, `config_type` checks it.

        Args:
            config: The client's configuration, which is later passed to `connect`.

        Raises:
            MulticloudDbError: `INVALID_REQUEST` with a message that names the setting and says what to do.
        """
        if self.config_type is not None:
            self.config_type.from_client(config)

    def capabilities(self) -> CapabilitySet:
        """Return the capabilities of a service that is set up as documented, like `Provider.capabilities`."""
        return self.declared

    def open(self, config: ClientConfig, native_client: object | None, observer: Observer | None) -> Engine:
        """Connect to the database, and make the engine that uses the provider.

        Args:
            config: The configuration, which names the provider and says how to reach the database.
            native_client: The application's own vendor client, or None if the provider makes its own.
            observer: Receives notifications of internal events.
        """
        attempts = ATTEMPTS if native_client is None else 1
        return Engine(_connect(self, config, native_client), config, observer, attempts=attempts)


def open_provider(config: ClientConfig, native_client: object | None = None) -> Provider:
    """Connect to the database without an engine, for Spark, the command line and the conformance kit.

    Args:
        config: The configuration, which names the provider and says how to reach the database.
        native_client: The application's own vendor client, or None if the provider makes its own.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` if the provider is unknown, not installed or does not follow this
            SPI, or if the configuration is wrong.
    """
    plugin = load_plugin(config.provider)
    if not isinstance(plugin, ProviderPlugin):
        raise invalid_request(
            "provider",
            f"{config.provider!r} names a {type(plugin).__name__}, which is not a ProviderPlugin",
            "install a version of the provider that is made for this library",
        )
    return _connect(plugin, config, native_client)


def _connect(plugin: ProviderPlugin, config: ClientConfig, native_client: object | None) -> Provider:
    try:
        return plugin.connect(config, native_client)
    except MulticloudDbError:
        raise
    except ProviderFault as error:
        # What the vendor's library has read, such as a file of credentials, is in its frames.
        raise to_error(plugin.provider_id, "connect", error.fault, error) from without_frames(error)
