"""Implements patches: partial updates of documents, which consist of operations."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, Final

from multiclouddb_cosmos_emulator.errors import bad_request

__all__ = ["patched"]

_MOST: Final = 10
_SYSTEM: Final = ("_rid", "_self", "_etag", "_ts", "_attachments", "id")


def patched(document: dict[str, Any], operations: Any) -> dict[str, Any]:
    """Return a copy of a document, to which the operations have been applied.

    `operations` is the value that the client sent.
    """
    if not isinstance(operations, list) or not operations:
        raise bad_request("A patch needs at least one operation.")
    if len(operations) > _MOST:
        raise bad_request("The number of patch operations can't exceed '10'.")
    result = deepcopy(document)
    for operation in operations:
        if not isinstance(operation, dict):
            raise bad_request("A patch operation has to be an object.")
        _apply(result, operation)
    return result


def _apply(document: dict[str, Any], operation: dict[str, Any]) -> None:
    kind = operation.get("op")
    parts = _parts(operation.get("path"))
    match kind:
        case "add":
            _add(document, parts, operation)
        case "set":
            _put(document, parts, _value(operation), insert=False, must_be_there=False)
        case "replace":
            _put(document, parts, _value(operation), insert=False, must_be_there=True)
        case "remove":
            _remove(document, parts)
        case "incr" | "increment":
            _increment(document, parts, _value(operation))
        case "move":
            value = _remove(document, _parts(operation.get("from")))
            _put(document, parts, value, insert=True, must_be_there=False)
        case _:
            raise bad_request(f"The patch operation {kind!r} is not known.")


def _add(document: dict[str, Any], parts: list[str], operation: dict[str, Any]) -> None:
    _put(document, parts, _value(operation), insert=True, must_be_there=False)


def _parts(path: Any) -> list[str]:
    if not isinstance(path, str) or not path.startswith("/") or len(path) < 2:
        raise bad_request(f"The path of a patch operation has to begin with a slash, and {path!r} does not.")
    parts = [part.replace("~1", "/").replace("~0", "~") for part in path[1:].split("/")]
    if len(parts) == 1 and parts[0] in _SYSTEM:
        raise bad_request(f"The property {parts[0]!r} cannot be patched.")
    return parts


def _value(operation: dict[str, Any]) -> Any:
    if "value" not in operation:
        raise bad_request(f"The patch operation {operation.get('op')!r} needs a value.")
    return operation["value"]


def _parent(document: Any, parts: list[str]) -> Any:
    node = document
    for part in parts[:-1]:
        node = _child(node, part)
    return node


def _child(node: Any, part: str) -> Any:
    if isinstance(node, dict) and part in node:
        return node[part]
    if isinstance(node, list) and part.isdigit() and int(part) < len(node):
        return node[int(part)]
    raise bad_request(f"For the patch operation, the path has no {part!r}: add the parent first.")


def _put(document: Any, parts: list[str], value: Any, insert: bool, must_be_there: bool) -> None:
    node, last = _parent(document, parts), parts[-1]
    if must_be_there:
        _child(node, last)
    if isinstance(node, dict):
        node[last] = value
        return
    if not isinstance(node, list) or not (last == "-" or last.isdigit()):
        raise bad_request(f"For the patch operation, {last!r} is not a place in an array or an object.")
    place = len(node) if last == "-" else int(last)
    if place > len(node):
        raise bad_request(f"For the patch operation, the index {place} is after the end of the array.")
    if insert or place == len(node):
        node.insert(place, value)
    else:
        node[place] = value


def _remove(document: Any, parts: list[str]) -> Any:
    node, last = _parent(document, parts), parts[-1]
    value = _child(node, last)
    if isinstance(node, dict):
        del node[last]
    else:
        del node[int(last)]
    return value


def _increment(document: Any, parts: list[str], step: Any) -> None:
    node, last = _parent(document, parts), parts[-1]
    if isinstance(step, bool) or not isinstance(step, int | float):
        raise bad_request("The value of an increment has to be a number.")
    if isinstance(node, dict) and last not in node:
        node[last] = step
        return
    old = _child(node, last)
    if isinstance(old, bool) or not isinstance(old, int | float):
        raise bad_request("The property of an increment has to be a number.")
    _put(document, parts, old + step, insert=False, must_be_there=True)
