"""What stands in a query's checkpoint.

Two forms, both canonical JSON (sorted keys), since Spark takes another text for new data:

    {"from": "beginning", "src": "3b1f…", "v": 1}
    {"c": {"p": [["p0", 17], …], …}, "e": {"p3": 9}, "empty": true, "inc": "…", "src": "3b1f…", "v": 1}

The first is where a new query starts. Spark asks for it several times and does not keep it, so it is
not resolved in it: the first micro-batch has no rows and pins the start in the second form. There `c`
is the lineage as it stands in a continuation token, and `e` says where partitions ended that the step
to this offset has used up, so that the step can be read again with the same result. `empty` is there
when only the positions of an idle feed have moved: such a step needs no reading, also when the log behind
it is gone by the time of a replay.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import attrs

from multiclouddb_api import MulticloudDbError, invalid_request
from multiclouddb_spi import Cursor, FeedStart, InvalidCursor, Lineage, Range, ranges_between
from multiclouddb_spi.open_feed import OpenFeed
from pyspark_multiclouddb.options import Settings, position_from_text, position_text

__all__ = ["Offset", "Pinned", "Symbolic", "offset_from_json", "offset_to_json", "ranges_of"]

_VERSION: Final = 1
_NEW_CHECKPOINT: Final = "use a checkpointLocation of its own"


@attrs.frozen
class Symbolic:
    """The start of a new query, not resolved.

    Attributes:
        position: Where.
    """

    position: FeedStart


@attrs.frozen
class Pinned:
    """Where every partition stands.

    Attributes:
        incarnation: Which incarnation of the resource.
        cursors: The lineage as JSON.
        ends: Where partitions ended in the step to this offset.
        empty: True when no record lies in that step.
    """

    incarnation: str | None
    cursors: Cursor
    ends: Mapping[str, Cursor] = attrs.field(factory=dict)
    empty: bool = False

    def check_incarnation(self, opened: OpenFeed) -> None:
        """Refuse an offset of a resource that was recreated.

        Args:
            opened: The feed that it is to go on in.

        Raises:
            MulticloudDbError: `INVALID_REQUEST` when the resource is another one by now.
        """
        way_out = f"what the old one held is gone; {_NEW_CHECKPOINT}"
        opened.check_resumes(self.incarnation, "checkpoint", way_out)


Offset: TypeAlias = Symbolic | Pinned


def offset_to_json(settings: Settings, offset: Offset) -> dict[str, Any]:
    """An offset as Spark keeps it."""
    value: dict[str, Any] = {"v": _VERSION, "src": settings.source}
    match offset:
        case Symbolic(position):
            value["from"] = position_text(position)
        case Pinned(incarnation, cursors, ends, empty):
            value |= {"inc": incarnation, "c": cursors}
            if ends:
                value["e"] = dict(ends)
            if empty:
                value["empty"] = True
    canonical: dict[str, Any] = json.loads(json.dumps(value, sort_keys=True))
    return canonical


def offset_from_json(settings: Settings, value: Any) -> Offset:
    """The inverse of `offset_to_json`.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` for an offset of another source, of a later version,
            or that is none.
    """
    match value:
        case {"v": int(version)} if version > _VERSION:
            raise invalid_request(
                "checkpoint",
                f"was written by a later version of this source (form {version})",
                "update multiclouddb-spark, or " + _NEW_CHECKPOINT,
            )
        case {"v": 1, "src": str(source)} if source != settings.source:
            raise invalid_request(
                "checkpoint",
                f"is of another source than {settings.config.provider} {settings.address}",
                f"set provider, database and collection as they were, or {_NEW_CHECKPOINT}",
            )
        case {"v": 1, "src": str(), "from": str(text)}:
            return Symbolic(position_from_text(text))
        case {"v": 1, "src": str(), "inc": str() | None as incarnation, "c": dict(cursors)} if isinstance(
            value.get("e", {}), dict
        ):
            return Pinned(incarnation, cursors, value.get("e", {}), value.get("empty") is True)
        case _:
            raise _damaged("holds an offset that is not of this source")


def ranges_of(start: Offset, end: Offset) -> list[Range]:
    """What lies between two offsets of one query; pure, and the same whenever it is asked.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` when the end cannot have been planned from the start.
    """
    match start, end:
        case Symbolic(), _:
            return []
        case Pinned(), Pinned():
            if start.incarnation != end.incarnation:
                raise _damaged("mixes two incarnations of the resource")
            return [] if end.empty else ranges_between(_lineage(start), _lineage(end), end.ends)
        case _:
            raise _damaged("goes back behind its own start")


def _lineage(offset: Pinned) -> Lineage:
    try:
        return Lineage.from_json(offset.cursors, _no_join)
    except InvalidCursor as error:
        raise _damaged(f"holds a damaged offset ({error})") from None


def _no_join(child_id: str, cursors: object) -> Cursor:
    raise AssertionError(f"{child_id} starts while ranges are only compared")


def _damaged(problem: str) -> MulticloudDbError:
    return invalid_request("checkpoint", problem, _NEW_CHECKPOINT)
