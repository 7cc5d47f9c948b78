"""Defines the options of a change stream, which only MongoDB has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, Final, Literal

import attrs
from attrs import frozen
from attrs.validators import optional
from bson.timestamp import Timestamp

from multiclouddb_api import ProviderOptions, invalid_request
from multiclouddb_api.validators import at_least, is_a, one_of

_STARTS: Final = ("resume_after", "start_after", "start_at_operation_time")
_POSITIVE: Final = [is_a(int, type(None)), optional(at_least(1, "give 1 or more, or None"))]


def _mapping(value: object) -> Any:
    return deepcopy(dict(value)) if isinstance(value, Mapping) else value


def _stages(value: object) -> Any:
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return tuple(map(_mapping, value))
    problem = f"must be a list of stages, not {type(value).__name__}"
    raise invalid_request("MongoOptions.pipeline", problem, 'pass [{"$match": …}]')


def _no_collation(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if value is not None:
        raise invalid_request(
            "MongoOptions.collation",
            f"must be None, not {type(value).__name__}; PyMongo sends no collation of a change stream",
            "compare in the pipeline, for example with $toLower",
        )


def _exact(value: object) -> object:
    """Return a tuple to compare: unlike Python, it tells 1 from True, and sees the order of a mapping."""
    if isinstance(value, Mapping):
        return dict, tuple((name, _exact(item)) for name, item in value.items())
    if isinstance(value, list | tuple):
        return list, tuple(map(_exact, value))
    return type(value), value


@frozen
class MongoOptions(ProviderOptions):
    """Options of a change stream, named as MongoDB's drivers name them.

    An option is sent only if it is given, and the server checks its value. At most one of the start options
    `resume_after`, `start_after` and `start_at_operation_time` may be given; it replaces `Now()`, and cannot
    be combined with another start position.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` if a field has the wrong type, or more than one start is given.
            At the first read, `INVALID_REQUEST` with the server's code if the server refuses a value.
    """

    full_document: str | None = attrs.field(default=None, validator=is_a(str, type(None)))
    """`fullDocument`: how the server finds the new document of an update (`"updateLookup"`,
    `"whenAvailable"`, `"required"`, `"default"` for none). None, the default, lets
    `ChangeFeedRequest.new_item_state_mode` decide."""
    full_document_before_change: str | None = attrs.field(default=None, validator=is_a(str, type(None)))
    """`fullDocumentBeforeChange`: whether the server sends the old document (`"off"`, `"whenAvailable"`,
    `"required"`); None lets `old_item_state_mode` decide."""
    resume_after: Mapping[str, Any] | None = attrs.field(
        default=None, converter=_mapping, validator=is_a(dict, type(None)), hash=False, repr=False
    )
    """A resume token of MongoDB, after which the feed continues."""
    start_after: Mapping[str, Any] | None = attrs.field(
        default=None, converter=_mapping, validator=is_a(dict, type(None)), hash=False, repr=False
    )
    """A resume token of MongoDB, after which the feed continues, even if the token is that of an invalidate
    event."""
    start_at_operation_time: Timestamp | None = attrs.field(
        default=None, validator=is_a(Timestamp, type(None))
    )
    """A `bson.Timestamp`, the cluster time of the first changes in the feed."""
    max_await_time_ms: int | None = attrs.field(default=None, validator=_POSITIVE)
    """How long the server may delay an empty answer, in milliseconds; at least 1.

    With None, the library chooses: 10 if no call waits; in a long poll the rest of the wait, but at most 500.
    If PyMongo does not let the library change it while a stream is open, it is always 200. A process that
    shuts down may have to wait until this time is over.
    """
    batch_size: int | None = attrs.field(default=None, validator=_POSITIVE)
    """The maximum number of changes in one answer of the server. With None, the maximum is the size of a
    page, but at least 100 and at most 500."""
    collation: None = attrs.field(default=None, validator=_no_collation)
    """Not supported: PyMongo accepts the collation of a change stream, but does not send it. Compare in
    `pipeline`, for example with `$toLower`."""
    comment: Any = attrs.field(default=None, hash=False)
    """A text that `currentOp` and the profiler show; the default is `"multiclouddb"`."""
    show_expanded_events: bool | None = attrs.field(
        default=None, validator=is_a(bool, type(None)), metadata={"positions": True}
    )
    """True to send `showExpandedEvents`. The server's additional events are no changes of documents, so the
    feed does not return them; but a `pipeline` sees them. A token that was made with this option is refused
    without it, and the other way round.
    """
    pipeline: tuple[Mapping[str, Any], ...] = attrs.field(
        default=(), converter=_stages, eq=_exact, hash=False, metadata={"positions": True}
    )
    """Further stages after `$changeStream`, as a sequence of mappings, which are sent unchanged.

    They must leave `_id`, `operationType`, `ns` and `documentKey` in each event, besides what you need. A
    token is valid only with the same pipeline.
    """
    after_invalidate: Literal["end", "follow"] = attrs.field(default="end", validator=one_of("end", "follow"))
    """What happens if the collection is dropped or renamed, or the database is dropped: the feed returns
    notices and then ends (`"end"`, the default), or goes on with the next resource of the same name
    (`"follow"`). With `"follow"`, the read raises `CHECKPOINT_EXPIRED` if another collection was renamed over
    this one, for example by `$out`, because there are no changes for the documents of the other collection;
    see `on_expired`."""
    allow_missing: bool = attrs.field(default=False, validator=is_a(bool))
    """True to allow a start on a collection or database that does not exist yet; with False, the default,
    that raises `NOT_FOUND`.
    """

    def __attrs_post_init__(self) -> None:
        for place, stage in enumerate(self.pipeline):
            if not isinstance(stage, dict):
                raise invalid_request(
                    f"MongoOptions.pipeline[{place}]",
                    f"must be a mapping, not {type(stage).__name__}",
                    'write stages as {"$match": {…}}',
                )
        given = [name for name in _STARTS if getattr(self, name) is not None]
        if len(given) > 1:
            raise invalid_request(
                f"MongoOptions.{given[1]}", f"is given together with {given[0]}", "give only one start"
            )

    def start(self) -> str | None:
        """Return the name of the start option that is given, or None."""
        return next((name for name in _STARTS if getattr(self, name) is not None), None)
