"""The commands that list what is there: providers, capabilities and collections."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

import attrs
import orjson
import typer

from multiclouddb_api import (
    Capability,
    CapabilitySet,
    ClientConfig,
    MulticloudDbError,
    OperationOptions,
    ResourceAddress,
    Support,
    connect,
    installed_providers,
)
from multiclouddb_api.entry_points import entry_points
from multiclouddb_api.registry import GROUP, declared_capabilities, load_plugin
from multiclouddb_cli.arguments import to_config
from multiclouddb_cli.failure import scrub
from multiclouddb_cli.screen import Cell, print_table, print_text, printable, safe_json


@attrs.frozen
class Installed:
    """One installed provider."""

    provider: str
    distribution: str
    version: str
    problem: str | None = None  # why it cannot be imported


def providers(*, check: bool, as_json: bool) -> None:
    """Print one line for each provider; with `check`, import each of them."""
    # An editable distribution may be found twice.
    points = {(point.name, point.value): point for point in entry_points(group=GROUP)}.values()
    found = [
        Installed(point.name, point.distribution, point.version, _problem(point.name) if check else None)
        for point in sorted(points, key=lambda point: point.name)
    ]
    shown = attrs.filters.exclude(*(() if check else ("problem",)))
    if as_json:
        typer.echo(safe_json(orjson.dumps([attrs.asdict(item, filter=shown) for item in found])))
    else:
        rows = [_row(item, check=check) for item in found]
        print_table(["provider", "distribution", "version", "imports" if check else "state"], rows)


def _problem(name: str) -> str | None:
    try:
        load_plugin(name)
    except MulticloudDbError as error:
        return scrub(error.message)
    except Exception as error:  # noqa: BLE001 - a broken provider must not hide the others
        return scrub(f"{type(error).__name__}: {error}")
    return None


def _row(item: Installed, *, check: bool) -> list[Cell]:
    if not check:
        return [item.provider, item.distribution, item.version, "installed"]
    answer = ("yes", "green") if item.problem is None else (f"no: {item.problem}", "red")
    return [item.provider, item.distribution, item.version, answer]


_STYLES: Final = {Support.NATIVE: "green", Support.EMULATED: "yellow", Support.UNSUPPORTED: "red"}
_NEEDS_URL: Final = "needs a URL: run multiclouddb capabilities URL"


@attrs.frozen
class Column:
    """A column of the matrix; each column describes one provider."""

    provider: str
    known: CapabilitySet | None
    problem: str = ""


def capabilities(config: ClientConfig | None, *, as_json: bool) -> None:
    """Print the matrix."""
    columns = [_connected(config)] if config else [_installed(name) for name in installed_providers()]
    if as_json:
        typer.echo(safe_json(orjson.dumps({column.provider: _facts(column) for column in columns})))
    else:
        _print(columns)


def _connected(config: ClientConfig) -> Column:
    from multiclouddb_spi import open_provider

    provider = open_provider(config)
    try:
        return Column(config.provider, provider.capabilities())
    finally:
        provider.close()


def _installed(name: str) -> Column:
    if (known := declared_capabilities(name)) is not None:
        return Column(name, known)
    try:
        # A plugin may report what its provider can do without a configuration.
        tell = getattr(load_plugin(name), "capabilities", None)
    except MulticloudDbError as error:
        return Column(name, None, error.message)
    return Column(name, None, _NEEDS_URL) if tell is None else Column(name, tell())


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


_COMPLETION_SECONDS = 2.0


def collections(config: ClientConfig, database: str | None, *, as_json: bool) -> None:
    """Print the address of each collection."""
    from multiclouddb_cli.session import CALL_SECONDS

    found = _listed(config, database, CALL_SECONDS)
    if as_json:
        facts = [{"database": each.database, "collection": each.collection} for each in found]
        typer.echo(safe_json(orjson.dumps(facts)))
    elif found:
        typer.echo("\n".join(printable(str(address)) for address in found))
    else:
        typer.echo("there is no collection here, or none that this user may see", err=True)


def known_collections(url: str) -> tuple[str, ...]:
    """Return the collections for completion; an empty result if they cannot be listed quickly."""
    with suppress(Exception):
        return tuple(str(address) for address in _listed(to_config(url), None, _COMPLETION_SECONDS))
    return ()


def _listed(config: ClientConfig, database: str | None, seconds: float) -> tuple[ResourceAddress, ...]:
    with connect(config) as client:
        return client.collections(database, OperationOptions(seconds))
