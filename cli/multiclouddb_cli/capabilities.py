"""`multiclouddb capabilities` shows what each provider can do, without connecting to a database."""

from __future__ import annotations

from typing import Any, Final, Protocol, runtime_checkable

import attrs
import orjson
import typer

from multiclouddb_api import (
    Capability,
    CapabilitySet,
    ClientConfig,
    MulticloudDbError,
    Support,
    installed_providers,
)
from multiclouddb_api.registry import load_plugin
from multiclouddb_cli.failure import scrub
from multiclouddb_cli.screen import Cell, print_table, print_text, printable
from multiclouddb_spi import open_provider

__all__ = ["TellsCapabilities", "capabilities"]

_STYLES: Final = {Support.NATIVE: "green", Support.EMULATED: "yellow", Support.UNSUPPORTED: "red"}
_NEEDS_URL: Final = "needs a URL: run multiclouddb capabilities URL"


@runtime_checkable
class TellsCapabilities(Protocol):
    """A plugin that can report, without a configuration, what its provider can do."""

    def capabilities(self) -> CapabilitySet:
        """Return, without any I/O, the capabilities that the service has if it is set up as documented."""
        ...


@attrs.frozen
class Column:
    """A column of the matrix; each column describes one provider.

    Attributes:
        provider: The provider's id.
        known: The capabilities of the provider, or None if they are unknown.
        problem: The reason why the capabilities are not known.
    """

    provider: str
    known: CapabilitySet | None
    problem: str = ""


def capabilities(config: ClientConfig | None, *, as_json: bool) -> None:
    """Print the matrix.

    Args:
        config: The URL of one database, or None for every installed provider.
        as_json: True to print one JSON object whose keys are the providers.

    Raises:
        MulticloudDbError: Raised if the configuration is wrong.
    """
    columns = [_connected(config)] if config else [_installed(name) for name in installed_providers()]
    if as_json:
        typer.echo(orjson.dumps({column.provider: _facts(column) for column in columns}))
    elif columns:
        _print(columns)
    else:
        typer.echo('no provider is installed; run: pip install "multiclouddb[embedded]"')


def _connected(config: ClientConfig) -> Column:
    provider = open_provider(config)
    try:
        return Column(config.provider, provider.capabilities())
    finally:
        provider.close()


def _installed(name: str) -> Column:
    try:
        plugin: object = load_plugin(name)
    except MulticloudDbError as error:
        return Column(name, None, error.message)
    if isinstance(plugin, TellsCapabilities):
        return Column(name, plugin.capabilities())
    return Column(name, None, _NEEDS_URL)


def _print(columns: list[Column]) -> None:
    known = [column for column in columns if column.known is not None]
    if known:
        print_table(
            ["capability", *(column.provider for column in known)],
            [[item.name, *(_cell(column, item) for column in known)] for item in Capability],
        )
        typer.echo()
    for column in columns:
        if column.known is None:
            print_text(f"{column.provider}: {printable(scrub(column.problem))}")
            continue
        for item in Capability:
            if note := column.known[item].note:
                print_text(f"{column.provider} {item.name}: {printable(note)}")


def _cell(column: Column, item: Capability) -> Cell:
    assert column.known is not None
    support = column.known[item].support
    return support.value, _STYLES[support]


def _facts(column: Column) -> dict[str, Any]:
    if column.known is None:
        return {"error": scrub(column.problem)}
    notes = {item: column.known[item] for item in Capability}
    return {item.name: {"support": note.support.value, "note": note.note} for item, note in notes.items()}
