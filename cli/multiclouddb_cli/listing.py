"""The commands that list what is there: providers, capabilities, collections and partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final

import attrs
import orjson
import typer

from multiclouddb_api import (
    Capability,
    CapabilitySet,
    ChangeFeedRequest,
    ClientConfig,
    MulticloudDbError,
    Now,
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
from multiclouddb_cli.screen import (
    Cell,
    counted,
    is_terminal,
    print_table,
    print_text,
    printable,
    with_colour,
)
from multiclouddb_cli.session import CALL_SECONDS, Session
from multiclouddb_spi import Partition, PartitionState, open_provider


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
        typer.echo(orjson.dumps([attrs.asdict(item, filter=shown) for item in found]))
    elif found:
        rows = [_row(item, check=check) for item in found]
        print_table(["provider", "distribution", "version", "imports" if check else "state"], rows)
    else:
        typer.echo(_NO_PROVIDER)


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
_NO_PROVIDER: Final = 'no provider is installed; run: pip install "multiclouddb[embedded]"'
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
        typer.echo(orjson.dumps({column.provider: _facts(column) for column in columns}))
    elif columns:
        _print(columns)
    else:
        typer.echo(_NO_PROVIDER)


def _connected(config: ClientConfig) -> Column:
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


_LINES: Final = (("├─ ", "└─ "), ("│  ", "   "))
_SPACES: Final = (("  ", "  "), ("  ", "  "))
_COLOURS: Final = {PartitionState.OPEN: "green", PartitionState.CLOSED: "bright_black"}


class Family:
    """The partitions of a feed and their lineage; if partitions merge, the lineage is not a tree."""

    def __init__(self, listed: list[Partition]) -> None:
        # A shorter name usually belongs to an older partition: `p2` comes before `p10`.
        in_order = sorted(listed, key=lambda item: (len(item.partition_id), item.partition_id))
        self.members = {item.partition_id: item for item in in_order}
        self.children: dict[str, list[Partition]] = {name: [] for name in self.members}
        for item in self.members.values():
            for parent in item.parents:
                if parent in self.children:
                    self.children[parent].append(item)

    def tree(self, *, lines: bool) -> Iterator[tuple[Partition, str, bool]]:
        """Return each partition below each of its parents, what leads to it, and whether it came before."""
        elbow, bar = _LINES if lines else _SPACES
        seen: set[str] = set()
        roots = [item for item in self.members.values() if not set(item.parents) & self.members.keys()]
        # A stack is used, because a lineage with thousands of splits is deeper than Python's recursion limit.
        stack = [(item, "", "") for item in reversed(roots)]
        while stack:
            item, lead, indent = stack.pop()
            again = item.partition_id in seen
            yield item, lead, again
            if again:
                continue
            seen.add(item.partition_id)
            children = self.children[item.partition_id]
            for place, child in reversed(list(enumerate(children))):
                last = place == len(children) - 1
                stack.append((child, indent + elbow[last], indent + bar[last]))

    def gone(self, item: Partition) -> list[str]:
        """Return the parents that are no longer listed."""
        return [parent for parent in item.parents if parent not in self.members]


def partitions(config: ClientConfig, address: ResourceAddress, *, mermaid: bool, as_json: bool) -> None:
    """Print the partitions that the service lists."""
    with Session(config, ChangeFeedRequest(address, Now())) as session:
        asked = session.feed.for_one_call()
        listed = session.opened.call("survey", lambda deadline: asked.survey({}, deadline)).present
        public_id = session.feed.public_id
    family = Family(list(listed))
    if as_json:
        typer.echo(_json(family, public_id))
    elif mermaid:
        typer.echo("\n".join(_mermaid(family)))
    else:
        typer.echo("\n".join(_lines(family, public_id)))


def _lines(family: Family, public_id: Callable[[str], str]) -> Iterator[str]:
    states = [item.state for item in family.members.values()]
    opened = states.count(PartitionState.OPEN)
    yield f"{counted(len(states), 'partition')}: {opened} open, {len(states) - opened} closed"
    for item, lead, again in family.tree(lines=is_terminal()):
        state = item.state.value
        if with_colour():
            state = typer.style(state, fg=_COLOURS[item.state])
        words = [printable(item.partition_id), state]
        if again:
            words.append("(see above)")
        elif item.state is PartitionState.OPEN:
            words.append(printable(public_id(item.partition_id)))
        gone = family.gone(item)
        if gone and not again:
            words.append(printable(f"(from {', '.join(gone)}, no longer listed)"))
        yield lead + "  ".join(words)


def _mermaid(family: Family) -> Iterator[str]:
    names = {name: f"n{number}" for number, name in enumerate(family.members)}
    yield "flowchart LR"
    for name, item in family.members.items():
        label = printable(name).replace("#", "#35;").replace('"', "#quot;")
        yield f'    {names[name]}["{label}"]:::{item.state.value}'
    for name, children in family.children.items():
        for child in children:
            yield f"    {names[name]} --> {names[child.partition_id]}"
    yield "    classDef open fill:#d3f9d8,stroke:#2b8a3e"
    yield "    classDef closed fill:#f1f3f5,stroke:#868e96,stroke-dasharray:4"


def _json(family: Family, public_id: Callable[[str], str]) -> bytes:
    return orjson.dumps(
        [
            {
                "partition_id": public_id(name),
                "native_id": name,
                "state": item.state.value,
                "parents": [public_id(parent) for parent in item.parents],
                "children": [public_id(child.partition_id) for child in family.children[name]],
            }
            for name, item in family.members.items()
        ]
    )


_COMPLETION_SECONDS = 2.0


def collections(config: ClientConfig, database: str | None, *, as_json: bool) -> None:
    """Print the address of each collection."""
    found = _listed(config, database, CALL_SECONDS)
    if as_json:
        facts = [{"database": each.database, "collection": each.collection} for each in found]
        typer.echo(orjson.dumps(facts))
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
