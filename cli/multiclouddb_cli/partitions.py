"""Prints the partitions of a feed as a tree, as a diagram or as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import orjson
import typer

from multiclouddb_api import ChangeFeedRequest, ClientConfig, Now, ResourceAddress
from multiclouddb_cli.screen import counted, is_terminal, printable, safe_json, with_colour
from multiclouddb_cli.session import ConnectedFeed
from multiclouddb_spi import Partition, PartitionState

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
    with ConnectedFeed(config, ChangeFeedRequest(address, Now())) as session:
        asked = session.feed.for_one_call()
        listed = session.opened.call("survey", lambda deadline: asked.survey({}, deadline)).present
        public_id = session.feed.public_id
    family = Family(list(listed))
    if as_json:
        typer.echo(safe_json(_json(family, public_id)))
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
