"""Failures that the server itself plays."""

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
    """Let commands fail on every node, and again work on every node at the end.

    Args:
        where: The set; each of its running members counts for itself. A client means its primary alone.
        commands: Names of commands.
        app_name: Only those of clients with this `appName`: tests at the same time do not meet them.
        times: How often; None means always.
        skip: Let so many pass first; then every one fails, whatever `times` is.
        data: What the failure is: `errorCode`, `errorLabels`, `closeConnection`, `blockConnection` with
            `blockTimeMS`, and so on, as the server's `failCommand` calls them.
    """
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
            # A node that was killed has forgotten it.
            if not isinstance(where, ReplicaSet) or member in where.alive():
                node.admin.command({"configureFailPoint": "failCommand", "mode": "off"})
