"""Makes the server itself produce failures."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pymongo import MongoClient

from .mongod import ReplicaSet


@contextmanager
def fail_command(
    where: ReplicaSet | MongoClient[dict[str, Any]],
    *,
    commands: list[str],
    app_name: str,
    times: int | None = 1,
    skip: int = 0,
    **data: Any,
) -> Iterator[None]:
    """Make commands fail on every node within the block. After the block, the commands work again."""
    mode: Any = {"skip": skip} if skip else "alwaysOn" if times is None else {"times": times}
    data = {"failCommands": commands, "appName": app_name, **data}
    if isinstance(where, ReplicaSet):
        nodes = {member: where.direct(member) for member in where.alive()}
    else:
        nodes = {"": where}
    try:
        for node in nodes.values():
            node.admin.command({"configureFailPoint": "failCommand", "mode": mode, "data": data})
        yield
    finally:
        for member, node in nodes.items():
            # A node that was killed no longer has the fail point.
            if not isinstance(where, ReplicaSet) or member in where.alive():
                node.admin.command({"configureFailPoint": "failCommand", "mode": "off"})
