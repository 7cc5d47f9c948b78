"""Reads the collection: its rows once, the changes from a position on, and single rows by key."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from types import NoneType
from typing import Any, Final, TypeAlias, TypeVar

import attrs

from multiclouddb_api import (
    BackfillDone,
    Capability,
    ChangeEvent,
    ChangeFeedPage,
    ChangeFeedRequest,
    ChangeType,
    EntireCollection,
    ErrorCategory,
    ErrorDetail,
    ErrorReason,
    FeedEnded,
    FromContinuationToken,
    Gap,
    LogicalPartition,
    LookupAnswer,
    MulticloudDbClient,
    MulticloudDbError,
    MulticloudDbKey,
    NotKnown,
    OperationOptions,
    ProviderOptions,
    RecordSkipped,
    ResourceAddress,
    ScanFacts,
    Snapshot,
    SnapshotStarted,
    decode_json,
    encode_json,
)
from multiclouddb_api.request import to_address
from multiclouddb_api.validators import has_methods, is_a
from multiclouddb_tables.layout import next_count
from multiclouddb_verify.comparison import UNKNOWN
from multiclouddb_verify.texts import Integers, Lines, written

__all__ = [
    "NONE_OF_ITS_OWN", "Answer", "Change", "Follower", "Listener", "Respelt", "Source", "changes_of",
    "floor_of", "key_texts", "own_text", "read_past", "skipped_on",
]  # fmt: skip

_PAGE: Final = 10_000
_FIRST_ASKED: Final = 8
"""The number of keys of the first look-up, when nothing is known of the size of a document."""
_MOST_ASKED: Final = 100
_MOST_BYTES: Final = 64 << 20
"""From how many bytes on documents that were looked up are not kept for further ones."""
_SOME: Final = 20
_NO_KEY: Final = NotKnown("the table has a text that is no key; remove the row by hand")
NONE_OF_ITS_OWN: Final = "the source takes this text for no key of its own; remove the row by hand"
_POLL_SECONDS: Final = 0.05
_MOST_POLL_SECONDS: Final = 0.4
_LEAST_PATIENCE: Final = 60.0
_CLOCK_ERROR = 1.0
"""How late the engine's copy of the service's time may be, because it asks only once a minute."""
_IDLE_SECONDS: Final = 30.0
"""How old the answers may be by which a page is idle, where the service only makes it likely."""
_T = TypeVar("_T")
Change = tuple[int, str, str, int]
"""A version of a key: hash and text of the key, `order_key`, digest of the document."""


@attrs.frozen
class Respelt:
    """What the source answers for a key that a sink writes as another text."""

    text: str = attrs.field(repr=False)
    """The text that a sink writes."""
    event: ChangeEvent | None
    """The row of this key, or None if the source answered that there is none."""


Answer: TypeAlias = ChangeEvent | Respelt | NotKnown | None
"""What the source answers for a key of the table: the row that has exactly this text as its key; `Respelt`;
None if there is no such row; or `NotKnown`."""


def own_text(text: str) -> str | None:
    """Return the text that a sink writes for a key of the table; None if the text is no key."""
    key = _key(text, 1)
    return None if key is None else encode_json(key.components).decode()


def _key(text: str, parts: int) -> MulticloudDbKey | None:
    try:
        components = decode_json(text)
        encode_json(components)  # no sink can write a value that is nested too deeply
        return MulticloudDbKey(components, parts) if isinstance(components, Mapping) else None
    except (MulticloudDbError, ValueError, RecursionError):
        return None


def key_texts(events: Sequence[ChangeEvent]) -> Lines:
    """Return the texts of the keys of events, as a sink writes them."""
    return written([event.key.components for event in events])


class Listener:
    """Lets a caller listen while a read waits; an error of the caller ends the read, and is its error.

    Args:
        listen: Calls the caller.
    """

    def __init__(self, listen: Callable[[], None]) -> None:
        self._listen = listen
        self._raised: BaseException | None = None

    def answered(self) -> None:
        """See `multiclouddb_api.progress.Progress`."""

    def waits(self, reason: Callable[[], str | None]) -> None:
        """See `multiclouddb_api.progress.Progress`.

        Args:
            reason: Why the last attempt has failed.
        """

    def must_stop(self) -> bool:
        """Let the caller listen; return whether it has raised an error."""
        if self._raised is None:
            try:
                self._listen()
            except BaseException as error:  # noqa: BLE001 - the engine would take it for a defect of its own
                self._raised = error
        return self._raised is not None

    def check(self) -> None:
        """Raise the error of the caller, if there is one."""
        if self._raised is not None:
            raise self._raised


@attrs.frozen
class Source:
    """A collection, and how it is read."""

    client: MulticloudDbClient = attrs.field(
        validator=has_methods("read_changes", advice="pass connect(url)")
    )
    address: ResourceAddress = attrs.field(converter=to_address, validator=is_a(ResourceAddress))
    provider_options: ProviderOptions | None = attrs.field(
        default=None, validator=is_a(ProviderOptions, NoneType)
    )
    max_scan_rate: float | None = attrs.field(default=None, validator=is_a(int, float, NoneType))
    partition_key: MulticloudDbKey | None = None
    """The partition key whose rows a scan reads; None for all rows. Changes are always read of all keys,
    because the sink's position is one of the whole collection."""
    listener: Listener | None = attrs.field(default=None, eq=False, repr=False)
    """Who listens while a read waits; None for nobody."""

    @property
    def facts(self) -> ScanFacts:
        """What the database promises about a scan of its rows."""
        found = self.client.capabilities(self.provider_options).scan
        if found is None:
            raise MulticloudDbError(
                "verify: the database cannot read all rows of a collection; see client.capabilities()",
                ErrorDetail(ErrorCategory.UNSUPPORTED_CAPABILITY, reason=ErrorReason.NOT_OFFERED),
            )
        return found

    @property
    def has_deletes(self) -> bool:
        """Whether the feed contains deletes; otherwise a sink cannot remove the rows of deleted documents."""
        return self.client.capabilities(self.provider_options).is_supported(Capability.CHANGE_FEED_DELETES)

    def _request(
        self, start: Snapshot | FromContinuationToken, size: int = _PAGE, *, scans: bool = True
    ) -> ChangeFeedRequest:
        is_part = scans and self.partition_key is not None
        scope = LogicalPartition(self.partition_key) if is_part else EntireCollection()  # type: ignore[arg-type]
        return ChangeFeedRequest(
            self.address, start, scope=scope, max_page_size=size, provider_options=self.provider_options
        )

    def first_page(self) -> ChangeFeedPage:
        """Begin a scan; no row is read yet."""
        start = Snapshot(max_scan_rate=self.max_scan_rate, changes=False)
        return self._asked(lambda options: self.client.read_changes(self._request(start), options))

    def floor(self) -> str:
        """Return an `order_key` that is higher than that of every change until now, if there is one."""
        return floor_of(self.first_page())

    def scan(self, token: str, size: int = _PAGE) -> Iterator[ChangeFeedPage]:
        """Read the rows that follow a token of a scan, up to its end."""
        while True:
            page = self._read_past(self._request(FromContinuationToken(token), size))
            yield page
            if any(isinstance(each, BackfillDone | FeedEnded) for each in page.notices):
                return
            token = page.continuation_token

    def first_documents(self) -> list[Mapping[str, Any]]:
        """Read some documents of a collection; none if it is empty."""
        for page in self.scan(self.first_page().continuation_token, _SOME):
            if found := [each.new_item_state for each in page.events if each.new_item_state is not None]:
                return found
        return []

    def changes(self, token: str, wait: float = 0.0) -> ChangeFeedPage:
        """Read one page of changes."""
        request = self._request(FromContinuationToken(token), 0, scans=False)
        return self._read_past(request, wait)

    def _read_past(self, request: ChangeFeedRequest, wait: float = 0.0) -> ChangeFeedPage:
        return self._asked(lambda options: read_past(self.client, request, options), wait)

    def _asked(self, call: Callable[[OperationOptions], _T], wait: float = 0.0) -> _T:
        """Make a call; who listens is told while it waits, and may end it."""
        try:
            return call(OperationOptions(wait_seconds=wait, progress=self.listener))
        except MulticloudDbError:
            if self.listener is not None:
                self.listener.check()
            raise

    def answers(self, keys: Sequence[MulticloudDbKey]) -> Mapping[MulticloudDbKey, LookupAnswer]:
        """Read the rows of some keys."""
        return self._asked(
            lambda options: self.client.lookup(
                self.address, keys, options, provider_options=self.provider_options
            )
        )

    def look_up(self, keys: Sequence[str], partition_components: int) -> Iterator[dict[str, Answer]]:
        """Read rows by key, in parts whose documents are small enough to be kept together.

        An answer counts only for the key whose text was asked. A refusal is no answer: it makes the key
        unknown if the source answers for a key that a scan has just delivered, and ends the call otherwise.

        Args:
            keys: The keys, as the table has them.
            partition_components: The number of components that form the partition key.
        """
        asked = {text: _key(text, partition_components) for text in keys}
        found: dict[str, Answer] = {text: _NO_KEY for text, key in asked.items() if key is None}
        call = _Lookup(self, {text: key for text, key in asked.items() if key is not None})
        texts, count, size = list(call.keys), _FIRST_ASKED, 0
        while texts:
            part, texts = texts[:count], texts[count:]
            call.ask(part)
            sizes = [_bytes_of(call.found[text]) for text in part]
            found, size = found | call.taken(), size + sum(sizes)
            count = next_count(count, _MOST_ASKED, sizes)
            if size >= _MOST_BYTES:
                yield found
                found, size = {}, 0
        if found:
            yield found

    def some_keys(self) -> list[MulticloudDbKey]:
        """Return keys that a scan delivers now; none if the collection is empty."""
        request = self._request(Snapshot(changes=False), _SOME)
        begun = self._asked(lambda options: self.client.read_changes(request, options))
        for page in self.scan(begun.continuation_token, _SOME):
            if page.events:
                return [event.key for event in page.events]
        return []


class _Lookup:
    """One look-up of keys of the table.

    Attributes:
        keys: The keys by their texts.
        found: The answers by the texts.
    """

    def __init__(self, source: Source, keys: Mapping[str, MulticloudDbKey]) -> None:
        self._source, self.keys = source, keys
        self.found = dict[str, Answer]()
        self._delivered: list[MulticloudDbKey] | None = None

    def taken(self) -> dict[str, Answer]:
        """Return the answers that have come since the last call."""
        found, self.found = self.found, {}
        return found

    def ask(self, texts: Sequence[str]) -> None:
        try:
            answers = self._source.answers([self.keys[text] for text in texts])
        except MulticloudDbError as error:
            if error.retryable:
                raise
            if len(texts) > 1:
                middle = len(texts) // 2
                self.ask(texts[:middle])
                self.ask(texts[middle:])
            else:
                if (refusal := self._refusal()) is not None:
                    raise refusal from error
                reason = error.message
                if error.category is ErrorCategory.INVALID_REQUEST:
                    reason = f"{NONE_OF_ITS_OWN} ({reason})"
                self.found[texts[0]] = NotKnown(reason)
            return
        for text in texts:
            answer = answers[self.keys[text]]
            if isinstance(answer, NotKnown) and len(texts) > 1:
                self.ask([text])  # the row of one key may have made others unknown
            else:
                self.found[text] = _for_text(text, self.keys[text], answer)

    def _refusal(self) -> MulticloudDbError | None:
        """Return the error of the keys that a scan has just delivered; None if the source answers for one.

        "Not known" is an answer too: then an error belongs to the key that was asked for. An empty collection
        delivers no keys; then it is not known whose the error is, and nothing is written anyway.
        """
        if self._delivered is None:
            self._delivered = self._source.some_keys()
        refusal: MulticloudDbError | None = None
        for key in self._delivered:
            try:
                self._source.answers([key])
            except MulticloudDbError as error:
                if error.retryable:
                    raise
                refusal = refusal or error
            else:
                self._delivered = [key]
                return None
        return refusal


def _bytes_of(answer: Answer) -> int:
    """Return the size of the document of an answer as JSON text; 0 if there is none."""
    event = answer.event if isinstance(answer, Respelt) else answer
    return 0 if event is None or isinstance(event, NotKnown) else len(encode_json(event.new_item_state))


def _for_text(text: str, key: MulticloudDbKey, answer: LookupAnswer) -> Answer:
    if isinstance(answer, NotKnown):
        return answer
    own = encode_json((key if answer is None else answer.key).components).decode()
    return answer if own == text else Respelt(own, answer)


def read_past(
    client: MulticloudDbClient, request: ChangeFeedRequest, options: OperationOptions | None = None
) -> ChangeFeedPage:
    """Read a page; a record that cannot be decoded becomes its notice, and hides no other record.

    Args:
        client: The client.
        request: What to read.
        options: As in `read_changes`.
    """
    try:
        return client.read_changes(request, options)
    except MulticloudDbError as error:
        after = error.detail.skip_token
        if error.category is not ErrorCategory.PROVIDER_ERROR or after is None:
            raise
    return client.read_changes(attrs.evolve(request, start_position=FromContinuationToken(after)), options)


def floor_of(page: ChangeFeedPage) -> str:
    """Return the floor of a scan from its first page."""
    return next(notice.floor for notice in page.notices if isinstance(notice, SnapshotStarted))


def skipped_on(page: ChangeFeedPage) -> list[tuple[str, str]]:
    """Return the partition and the position of each record of a page that cannot be decoded."""
    return [(each.partition_id, each.position) for each in page.notices if isinstance(each, RecordSkipped)]


def changes_of(
    events: Sequence[ChangeEvent], digests_of: Callable[[Sequence[ChangeEvent]], Integers]
) -> list[Change]:
    """Return what is stored of changes."""
    texts, digests = key_texts(events), digests_of(events).tolist()
    return [
        (
            hashed,
            text.decode(),
            event.order_key,
            UNKNOWN if event.new_item_state is None and event.type is not ChangeType.DELETE else value,
        )
        for hashed, text, event, value in zip(
            texts.digests().tolist(), texts.texts(), events, digests, strict=True
        )
    ]


class Follower:
    """Reads the stream from a position on.

    Args:
        source: The collection.
        token: The position.
        keep: Called with the changes of each page and the token after it.
        pause: Called with the seconds to wait.
        patience: How long the stream may take to deliver what has been committed.
        digests_of: Returns the digests of the documents of changes.
    """

    def __init__(
        self,
        source: Source,
        token: str,
        keep: Callable[[list[Change], ChangeFeedPage], None],
        pause: Callable[[float], None],
        patience: float,
        digests_of: Callable[[Sequence[ChangeEvent]], Integers],
    ) -> None:
        self._source, self._token, self._keep, self._digests_of = source, token, keep, digests_of
        self._pause, self._patience = pause, patience

    def read(self, wait: float = 0.0) -> ChangeFeedPage:
        """Read and keep one page."""
        page = self._source.changes(self._token, wait)
        for notice in page.notices:
            if isinstance(notice, FeedEnded | Gap):
                raise MulticloudDbError(
                    f"position: the feed does not go on ({notice}); the collection was removed or renamed",
                    ErrorDetail(ErrorCategory.NOT_FOUND),
                )
        self._keep(changes_of(page.events, self._digests_of), page)
        self._token = page.continuation_token
        return page

    def catch_up(self) -> None:
        """Read every change that was committed before this call.

        The clock of this machine plays no part in it: the moment is one of the service's clock, and a page
        has the moment up to which all partitions were read. If the service reports no time, the proof is an
        idle page that was requested long enough after this call began, because a duration is the same on
        both machines.
        """
        began, asked_after = time.monotonic(), 0.0
        page, moment, waited, pause = self.read(), None, 0.0, _POLL_SECONDS
        settle = self._source.facts.settle_seconds + _IDLE_SECONDS
        patience = max(self._patience, _LEAST_PATIENCE)
        while not _has_read(page, moment := moment or self._moment(page)):
            tells_time = moment is not None or page.diagnostics.lag_seconds is not None
            if not tells_time and page.idle and asked_after > settle:
                return
            if page.idle or not page.events:
                self._pause(pause)
                waited, pause = waited + pause, min(2 * pause, _MOST_POLL_SECONDS)
            asked_after = max(waited, time.monotonic() - began)
            if not tells_time and asked_after > patience + settle:
                raise MulticloudDbError(
                    f"the service does not tell its time, so only a quiet stream shows that every change was "
                    f"read, and it was not quiet in {asked_after:.0f} seconds; stop the writers until verify "
                    "has ended, or give a longer patience_seconds",
                    ErrorDetail(ErrorCategory.TRANSIENT_FAILURE, retryable=True),
                )
            if tells_time and waited > patience:
                raise MulticloudDbError(
                    f"the stream has been read up to {page.diagnostics.read_until} only, and {moment} is "
                    f"needed; this has not changed for {waited:.0f} seconds; see page.diagnostics",
                    ErrorDetail(ErrorCategory.TRANSIENT_FAILURE, retryable=True),
                )
            page = self.read()

    def _moment(self, page: ChangeFeedPage) -> datetime | None:
        """Return the time of the service's clock at the end of a call, or None if it is not known."""
        told = page.diagnostics
        if told.read_until is None or told.lag_seconds is None:
            return None
        wait = self._source.facts.settle_seconds if told.read_until_estimated else 0.0
        return told.read_until.astimezone(UTC) + timedelta(seconds=told.lag_seconds + _CLOCK_ERROR + wait)


def _has_read(page: ChangeFeedPage, moment: datetime | None) -> bool:
    until = page.diagnostics.read_until
    if page.diagnostics.partition_errors:
        return False
    if moment is None or until is None:
        return False
    # A clock that stands still never passes the moment, but then an idle page has read everything.
    return until > moment or (page.idle and until >= moment)
