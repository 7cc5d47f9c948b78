"""A polling loop over `read_changes`: backs off, retries, follows children, keeps a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Protocol, TypedDict

import attrs

from multiclouddb_api.check import at_least, is_a, not_blank
from multiclouddb_api.checkpoint import CheckpointStore
from multiclouddb_api.errors import invalid_request
from multiclouddb_api.event import ChangeEvent
from multiclouddb_api.follow import Branch, Lane
from multiclouddb_api.handoff import Handoff
from multiclouddb_api.options import OperationOptions
from multiclouddb_api.pacing import Pace, Timer
from multiclouddb_api.page import ChangeFeedPage
from multiclouddb_api.request import ChangeFeedRequest
from multiclouddb_api.scope import PhysicalPartition

if TYPE_CHECKING:
    from typing import Unpack

__all__ = ["ChangeFeedIterator", "IteratorSettings", "ReadsChanges"]


class ReadsChanges(Protocol):
    """What an iterator needs of a client."""

    def read_changes(self, request: ChangeFeedRequest, options: OperationOptions | None = None) -> ChangeFeedPage:
        """See `MulticloudDbClient.read_changes`."""
        ...


class IteratorSettings(TypedDict, total=False):
    """Keyword settings of `ChangeFeedIterator` and `MulticloudDbClient.iterate_changes`.

    Attributes:
        timeout_seconds: For each read, the service's retries included; 30 by default.
        wait_seconds: How long a read may wait at the service for a first event (long poll); 0 by
            default. `stop` takes effect after a read in flight: keep this as short as a stop may take.
        until_idle: True to end when a page is idle: a bounded run. False by default.
        idle_backoff_seconds: First wait after an idle page; 0.1 by default. It doubles from page to
            page, with jitter, and begins again with the first event.
        max_idle_backoff_seconds: Longest wait after an idle page; 5 by default.
        max_outage_seconds: How long retryable failures are retried without a success in between,
            and how long one partition may fail on every page; 300 by default. 0 raises at once.
        checkpoint_store: Where to keep the position; needs `checkpoint_name`.
        checkpoint_name: Which checkpoint of the store.
        checkpoint_interval_seconds: The tokens of pages with nothing on them are saved at most this
            often; 0, each, by default. A page with events is always saved.
        follow_children: With `PhysicalPartition`: True to go on with the children when it ends.
        on_poison: `"raise"` (the default) or `"skip"`: go on behind a record that cannot be
            decoded; a `RecordSkipped` notice comes with the next page.
    """

    timeout_seconds: float
    wait_seconds: float
    until_idle: bool
    idle_backoff_seconds: float
    max_idle_backoff_seconds: float
    max_outage_seconds: float
    checkpoint_store: CheckpointStore | None
    checkpoint_name: str | None
    checkpoint_interval_seconds: float
    follow_children: bool
    on_poison: Literal["raise", "skip"]


def _seconds(default: float, low: float, advice: str) -> float:
    return attrs.field(default=default, validator=[is_a(int, float), at_least(low, advice)])  # type: ignore[no-any-return]


def _longest(settings: _Settings, attribute: attrs.Attribute[float], value: float) -> None:
    if value < settings.idle_backoff_seconds:
        raise invalid_request(
            f"ChangeFeedIterator.{attribute.name}", f"is {value}", "give at least idle_backoff_seconds"
        )


def _on_poison(settings: _Settings, attribute: attrs.Attribute[str], value: object) -> None:
    if value not in ("raise", "skip"):
        raise invalid_request(f"ChangeFeedIterator.{attribute.name}", f"is {value!r}", 'write "raise" or "skip"')


@attrs.frozen(kw_only=True)
class _Settings:
    timeout_seconds: float = 30.0
    wait_seconds: float = 0.0
    until_idle: bool = attrs.field(default=False, validator=is_a(bool))
    idle_backoff_seconds: float = _seconds(0.1, 0.001, "give the seconds of the first wait")
    max_idle_backoff_seconds: float = attrs.field(default=5.0, validator=[is_a(int, float), _longest])
    max_outage_seconds: float = _seconds(300.0, 0, "use 0 to raise at the first failure")
    checkpoint_store: CheckpointStore | None = None
    checkpoint_name: str | None = attrs.field(
        default=None, validator=[is_a(str, type(None)), not_blank("name the checkpoint of this worker")]
    )
    checkpoint_interval_seconds: float = _seconds(0.0, 0, "use 0 to save the token of each page")
    follow_children: bool = attrs.field(default=False, validator=is_a(bool))
    on_poison: Literal["raise", "skip"] = attrs.field(default="raise", validator=_on_poison)

    def __attrs_post_init__(self) -> None:
        if (self.checkpoint_store is None) != (self.checkpoint_name is None):
            raise invalid_request(
                "ChangeFeedIterator.checkpoint_name", "and checkpoint_store go together", "pass both or neither"
            )


class ChangeFeedIterator:
    """Reads a feed page after page until it is stopped, or to its end.

    Iterate events (`for event in it`) or pages (`for page in it.pages()`), in one thread. A page
    counts as done when the caller comes back for what is behind it; then `continuation_token` moves
    and the checkpoint is saved. So a crash, an exception or a `break` in the loop's body delivers the
    page again, never skips it: a later `for` on the same iterator begins behind the last page that is
    done. The error of a read, too, leaves the iterator at that place.

    Retryable failures are retried with growing waits; `CONFLICT` from the checkpoint store means that
    another worker has the same checkpoint.

    With `follow_children` the children of a partition are read when it has ended, several in turn. A
    child of a merge is read once, after all of its parents that are followed here; it is named to the
    followers of its other parents too, so spread merging partitions over workers only if one of them
    leaves the child out. `continuation_token` is then a text of this class, good for another iterator
    with `follow_children` on the same partition only.

    Args:
        client: Reads the pages; it is not closed.
        request: What to read. A stored checkpoint goes before its `start_position`.
        settings: See `IteratorSettings`.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` for a setting that cannot be.

    Example:
        >>> with client.iterate_changes(request, until_idle=True) as changes:
        ...     for event in changes:
        ...         print(event.type, event.key)

    Portability:
        No code of its own for any provider: `follow_children` ends with `FeedEnded` or goes on as the
        service splits and merges. MongoDB has one partition, which never ends.
    """

    def __init__(
        self, client: ReadsChanges, request: ChangeFeedRequest, **settings: Unpack[IteratorSettings]
    ) -> None:
        self._client = client
        self._request = request
        self._settings = _Settings(**settings)
        self._options = OperationOptions(self._settings.timeout_seconds, self._settings.wait_seconds)
        self._root = ""
        if self._settings.follow_children:
            if not isinstance(request.scope, PhysicalPartition):
                raise invalid_request(
                    "ChangeFeedIterator.follow_children",
                    f"needs the scope PhysicalPartition, not {type(request.scope).__name__}",
                    "leave it out: the wider scopes follow splits and merges by themselves",
                )
            self._root = request.scope.partition_id
        self._timer = Timer()
        self._handoff: Handoff | None = None
        self._branch: Branch | None = None
        self._paces: dict[Lane, Pace] = {}
        self._held: tuple[Lane, ChangeFeedPage] | None = None
        self._closed = False
        self._round = 0

    @property
    def continuation_token(self) -> str | None:
        """Behind the last page that the caller is done with; None before there is one."""
        return None if self._branch is None else self._branch.token

    def pages(self) -> Iterator[ChangeFeedPage]:
        """The pages, empty and idle ones included."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[ChangeEvent]:
        with closing(self.pages()) as pages:  # type: ignore[type-var]
            for page in pages:
                yield from page.events

    def stop(self) -> None:
        """End the iteration."""
        self._timer.stop()

    def close(self) -> None:
        """Stop."""
        self.stop()

    def __enter__(self) -> ChangeFeedIterator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
