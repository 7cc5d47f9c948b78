"""`multiclouddb providers` lists the installed providers and shows whether they can be imported."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

import attrs
import orjson
import typer

from multiclouddb_api import MulticloudDbError
from multiclouddb_api.registry import GROUP, load_plugin
from multiclouddb_cli.failure import scrub
from multiclouddb_cli.screen import Cell, print_table

__all__ = ["providers"]


@attrs.frozen
class Installed:
    """One installed provider.

    Attributes:
        provider: The provider's id.
        distribution: The name of the provider's package in pip.
        version: The version of the installed package.
        problem: The reason why the provider cannot be imported, or None.
    """

    provider: str
    distribution: str
    version: str
    problem: str | None


def providers(*, as_json: bool) -> None:
    """Print one line for each provider."""
    found = sorted((_look(point) for point in _points()), key=lambda item: item.provider)
    if as_json:
        typer.echo(orjson.dumps([attrs.asdict(item) for item in found]))
    elif found:
        print_table(["provider", "distribution", "version", "imports"], [_row(item) for item in found])
    else:
        typer.echo('no provider is installed; run: pip install "multiclouddb[embedded]"')


def _points() -> list[EntryPoint]:
    """Return each entry point only once; an editable distribution may be found twice."""
    return list({(point.name, point.value): point for point in entry_points(group=GROUP)}.values())


def _look(point: EntryPoint) -> Installed:
    distribution = point.dist
    return Installed(
        point.name,
        "-" if distribution is None else distribution.name,
        "-" if distribution is None else distribution.version,
        _problem(point.name),
    )


def _problem(name: str) -> str | None:
    try:
        load_plugin(name)
    except MulticloudDbError as error:
        return scrub(error.message)
    except Exception as error:  # noqa: BLE001 - a broken provider must not hide the others
        return scrub(f"{type(error).__name__}: {error}")
    return None


def _row(item: Installed) -> list[Cell]:
    answer = ("yes", "green") if item.problem is None else (f"no: {item.problem}", "red")
    return [item.provider, item.distribution, item.version, answer]
