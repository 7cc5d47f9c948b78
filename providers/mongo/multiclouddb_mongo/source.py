"""Opens the streams of one watched resource."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias, TypeVar
from weakref import WeakSet

from pymongo import MongoClient
from pymongo.errors import AutoReconnect, NetworkTimeout, OperationFailure
from pymongo.read_concern import ReadConcern
from pymongo.read_preferences import ReadPreference
from pymongo.server_description import ServerDescription

from multiclouddb_api import (
    EntireCluster,
    ErrorCategory,
    LogicalPartition,
    NewItemStateMode,
    ResourceAddress,
)
from multiclouddb_mongo.driver import (
    Closer,
    Rows,
    Stream,
    await_next,
    is_told_at_once,
    may_read_primary,
    reach,
    retried,
    server_of,
    watch_cluster,
)
from multiclouddb_mongo.errors import (
    CODES,
    CONVERSION_FAILURE,
    EVENT_TOO_LARGE,
    FIRST_LOCATION,
    HISTORY_LOST,
    TIME_LIMIT,
    TOKEN_NOT_FOUND,
)
from multiclouddb_mongo.members import Majority, ServerClock, proven, ticks_in
from multiclouddb_mongo.options import MongoOptions
from multiclouddb_mongo.position import After, At, Place, compare, ticks_at, token_text
from multiclouddb_mongo.raw_change import RAW_CODEC, last_answer
from multiclouddb_mongo.values import CODEC, LENIENT_RAW, to_bson
from multiclouddb_spi import Deadline, FeedSpec, ProviderFault, unsupported
from multiclouddb_spi.time_limits import ANSWER_SECONDS

T = TypeVar("T")
Stage: TypeAlias = Mapping[str, Any]

ENDINGS: Final = ("invalidate", "drop", "rename", "dropDatabase")
"""Operations that the library's filters must not hide, because the server closes the stream after them,
perhaps silently.
"""

# What the server sends for each mode of a document, if the collection keeps images.
_REQUIRED: Final = "required"
_IMAGES: Final = {"OMIT": None, "INCLUDE_IF_AVAILABLE": "whenAvailable", "REQUIRE": _REQUIRED}
IMAGES: Final = ("fullDocument", "fullDocumentBeforeChange")
"""The fields of a change with the document after it and before it."""
SPLIT: Final = "$changeStreamSplitLargeEvent"
EXPANDED: Final = "showExpandedEvents"
BY_MINIMUM: Final = "min"
# CommandNotSupported, APIStrictError, Atlas' own code, and an unknown stage.
REFUSALS: Final = (115, 323, 8000, 40324)
_WITHOUT: Final = {
    SPLIT: "an event that is larger than 16 MB cannot be read",
    EXPANDED: "its events would be ignored anyway",
    BY_MINIMUM: "the plan of a scan with segments takes longer",
}
_UNWANTED: Final = ("updateDescription", "clusterTime", "lsid", "txnNumber")
_log: Final = logging.getLogger("multiclouddb.mongo")
_MAJORITY: Final = ReadConcern("majority")
_COMMENT: Final = "multiclouddb"
_PROBE_MS: Final = 50
_SHARDED_PROBE_MS: Final = 400
# An answer has at most 16 MB and contains such a key at least five times.
_LARGE_KEY: Final = 2 * 1024 * 1024
_QUOTE: Final = "cluster time "
_QUOTED: Final = re.compile(_QUOTE + "([0-9A-F]{16})")
_MOST_PATIENCE: Final = 3600.0
CLOSED: Final = "connection closed"  # PyMongo's words


class ReaderContext:
    """The objects that the readers of one feed share: the target and the options of their streams.

    No call uses `pymongo.timeout`, because the driver would then retry repeatedly until the time is over. The
    engine itself stops waiting at its deadline.

    Attributes:
        patience: For how many seconds a server may not answer while it searches its log.
        closed_at: The position at which the server has closed the connection instead of an answer, or None.
        believed: The election whose primary's empty answers show the end of the log, if any; see `LogEnd`.
        majority: Whether a majority has what the primary has acknowledged.
        clock: The wall clock of the servers.
        refused: The stages and options that the server has refused, and that no command has any more.
    """

    def __init__(
        self,
        client: MongoClient[Any],
        spec: FeedSpec,
        address: ResourceAddress,
        closer: Closer | None = None,
        *,
        images: bool = False,
        splits: bool = False,
        sharded: bool = False,
        believed: set[object] | None = None,
        majority: Majority | None = None,
        clock: ServerClock | None = None,
        refused: set[str] | None = None,
    ) -> None:
        assert isinstance(spec.options, MongoOptions)
        self._closer = closer or Closer()
        self.at_work, self.opening = self._closer.at_work, self._closer.opening
        self.client, self.spec, self.address, self.options = client, spec, address, spec.options
        self._splits, self.sharded, self.images = splits, sharded, images
        self.refused = set[str]() if refused is None else refused
        self.patience = ANSWER_SECONDS
        limits = (client.options.timeout, client.options.pool_options.socket_timeout)
        self.closed_at: Place | None = None
        self._elsewhere = WeakSet[Stream]()
        self.believed = set() if believed is None else believed
        self.majority = Majority() if majority is None else majority
        self.clock = ServerClock() if clock is None else clock
        self._limit_ms = min((int(limit * 1000) for limit in limits if limit is not None), default=None)

    @property
    def splits(self) -> bool:
        """Return True if the server splits events that are larger than 16 MB."""
        return self._splits and SPLIT not in self.refused

    def leave_out(self, name: str, error: OperationFailure) -> None:
        """Record that the server refuses a stage or an option, and that the rest of the command works."""
        # Some servers report the version of one that has it, and the strict Stable API refuses some.
        if name not in self.refused:
            self.refused.add(name)
            text = "%s: the server refuses %s (code %s), so it is left out: %s"
            _log.warning(text, self.address, name, error.code, _WITHOUT[name])

    # -- The streams of a reader

    def open(
        self, place: Place, batch_size: int, await_ms: int, *, slim: bool = False, lenient: bool = False
    ) -> Stream:
        """Open a stream at a position; `lenient` means that the server sends changes without their images."""
        lenient = lenient or slim  # slim changes need the images too: the caller's pipeline may use them
        ticks = ticks_at(place)

        def watch(preference: Any) -> Stream:
            if not batch_size and ticks is not None:
                # Without a batch, a member would not say before its next answer that its log is too short.
                self._probe(At.of(ticks), preference)
            own = preference == self.client.read_preference
            stream = self._watch(
                batch_size,
                self._awaiting(await_ms),
                slim=slim,
                lenient=lenient,
                preference=None if own else preference,
                **_start(place),
            )
            if not own:
                self._elsewhere.add(stream)
            return stream

        return self._by_a_longer_log(place, watch)

    def is_elsewhere(self, stream: Stream) -> bool:
        """Return True if the primary is read only because the preferred member's log is too short."""
        return stream in self._elsewhere

    def required(self) -> tuple[str, ...]:
        """Return the fields with the images that each change has to have."""
        images = (self.full_document(), self.full_document_before_change())
        return tuple(name for name, image in zip(IMAGES, images, strict=True) if image == _REQUIRED)

    def wait_next(self, stream: Stream, await_ms: int) -> None:
        """Let the server delay its next answer by `await_ms` if it has no change."""
        await_next(stream, self._awaiting(await_ms))

    def be_patient(self) -> None:
        """Give the server twice as much time for its next search; perhaps it was still searching."""
        self.patience = min(_MOST_PATIENCE, 2 * self.patience)

    def calm(self) -> None:
        """Record that the server has answered."""
        self.patience = ANSWER_SECONDS

    def reach(self, deadline: Deadline) -> None:
        """Wait for a server, but no longer than the call may take; see `driver.reach`."""
        reach(self.client, deadline)

    def close(self, stream: Stream | Rows) -> None:
        """Close a stream or a cursor of rows, and its cursor on the server. This method raises no error."""
        self._closer.close(stream, reachable=self.answers(stream))

    def answers(self, stream: Stream | Rows) -> bool:
        """Return False if the server of a stream is known to be unreachable."""
        return server_of(stream) is None or self._server(stream) is not None

    def is_replaced(self, stream: Stream) -> bool:
        """Return True if another server has to be read: this one is unreachable, or no primary any more."""
        server = self._server(stream)
        if server is None:
            return not self.answers(stream)
        return (
            server.server_type_name == "RSSecondary"
            and self.client.topology_description.topology_type_name == "ReplicaSetWithPrimary"
            and self.client.read_preference == ReadPreference.PRIMARY
        )

    def now(self) -> After:
        """Return the end of the log as a server that may be read knows it; see `LogEnd`."""
        return self._now()[0]

    def present(self) -> tuple[After, Place]:
        """Return the end of the log, and a position that no write passes that is acknowledged later."""
        now, _, end = self._now()
        ticks = ticks_at(now)
        if self.sharded or end is None or ticks is None or end + 1 >= ticks:
            return now, now
        # A write gets its place in the log before it is committed, so one with an earlier place than the last
        # one that the server has may still be on its way. All that a majority has was committed before.
        return now, At.of(end + 1)

    def head(self) -> After | None:
        """Return the end of the log; None if only another server may know it."""
        end = LogEnd(self)
        if not (self.sharded or (self.believed and self.majority.is_fresh())):
            end.ask()
        now, stream, _ = self._now()
        return now if self.sharded or end.is_passed(now, stream, now) else None

    def acknowledged(self, deadline: Deadline) -> tuple[After, int | None]:
        """Return the end of the log, and a cluster time that is after every write acknowledged before.

        The cluster time is None if no server proves that it is a primary.
        """
        if self.sharded:
            # The primaries of the shards know what is acknowledged, and a `mongos` learns it from them.
            now, _, _ = self._now(ReadPreference.PRIMARY)
            return now, ticks_at(now)
        now, _, _ = self._now()
        with self.opening():
            return now, proven(self.client, self.address, deadline, self.majority)

    def _now(self, preference: Any = None) -> tuple[After, Stream, int | None]:
        # The position comes from the first answer of a stream that requests no changes. A `mongos` learns
        # from the answers of the shards how late it is, so only the second stream begins late enough.
        for _ in range(2 if self.sharded else 1):
            with self.opening(), self._watch(0, self._awaiting(1), preference=preference) as stream:
                token, answer = stream.resume_token, last_answer()
        if token is None:
            raise unsupported(
                "this server sends no resume token with an answer without changes, as MongoDB does",
                "use MongoDB 6.0 or later",
            )
        return After("h", token_text(token)), stream, None if answer is None else answer.log_end

    def election(self, stream: Stream | None) -> object:
        """Return the id of the election that the stream's server has won; None if it is no primary."""
        server = None if stream is None else self._server(stream)
        return None if server is None or server.server_type_name != "RSPrimary" else server.election_id

    def is_believed(self, stream: Stream | None) -> bool:
        """Return True if an empty answer of the stream's server shows the end of the log; see `LogEnd`."""
        server = None if stream is None else self._server(stream)
        if server is None:
            return False
        return self.is_alone() or (
            server.topology_version is not None and self.election(stream) in self.believed
        )

    def is_alone(self) -> bool:
        """Return True if a member is connected directly that is no primary, so no primary can be asked."""
        topology = self.client.topology_description
        is_direct = topology.topology_type_name == "Single"
        return is_direct and not any(each.is_writable for each in topology.server_descriptions().values())

    def reaches(self, place: At) -> bool:
        """Return True if changes can be read from a cluster time on."""
        return _is_kept(lambda: self._by_a_longer_log(place, lambda member: self._probe(place, member)))

    def has(self, place: At, preference: Any) -> bool:
        """Return True if the log of one member still contains everything from a cluster time on."""
        return _is_kept(lambda: self._probe(place, preference))

    def _by_a_longer_log(self, place: Place, ask: Callable[[Any], T]) -> T:
        """Ask a member that may be read; if its log does not reach back to a position, ask the primary."""
        # The members' oplogs differ in length, and no member knows what another one still has.
        client, preference = self.client, self.client.read_preference
        try:
            return ask(preference)
        except OperationFailure as error:
            topology = client.topology_description
            is_only = preference == ReadPreference.PRIMARY or topology.topology_type_name == "Single"
            ticks = ticks_at(place)
            if error.code != HISTORY_LOST or is_only or ticks is None:
                raise
            there = topology.has_writable_server()
            if there and may_read_primary(client):
                return ask(ReadPreference.PRIMARY)
            if there and not self.has(At.of(ticks), ReadPreference.PRIMARY):
                raise
            raise _too_short(client, there) from error

    def _probe(self, place: At, preference: Any) -> None:
        """Raise the server's error if its log no longer contains everything from a cluster time on."""
        # The check is a command that may scan the log for only 50 ms. If the log still contains the cluster
        # time, the server begins to scan, and the time limit may end the command. If the log no longer
        # contains the cluster time, the server refuses the command at once. A `mongos` gets more time,
        # because it asks the shards first.
        stage: dict[str, Any] = {"startAtOperationTime": place.timestamp()}
        if isinstance(self.spec.scope, EntireCluster):
            stage["allChangesForCluster"] = True
        name = self.address.collection
        command = {
            "aggregate": 1 if name is None else name,
            # Of the first change, only its token is needed.
            "pipeline": [{"$changeStream": stage}, {"$project": {"_id": 1}}],
            "cursor": {"batchSize": 1},
            "readConcern": {"level": "majority"},
            "maxTimeMS": _SHARDED_PROBE_MS if self.sharded else _PROBE_MS,
        }
        database = self.client[self.address.database or "admin"]
        try:
            with self.opening():
                database.cursor_command(
                    command, read_preference=preference, codec_options=LENIENT_RAW
                ).close()
        except NetworkTimeout:
            pass  # a `timeoutMS` in the connection string replaces these 50 ms
        except OperationFailure as error:
            if error.code not in (TIME_LIMIT, EVENT_TOO_LARGE):
                raise
        except AutoReconnect as error:
            # The server closes the connection if the first change is larger than an answer may be.
            if CLOSED not in str(error) or self.oversized(place) is None:
                raise

    def oversized(self, place: Place) -> At | None:
        """Return the cluster time of the next change if its key is too large for an answer."""
        # The key is in the answer up to five times: in the change, in its document, and in two tokens that
        # are twice as long. The server cannot send such a change in any form, so it is asked to quote the
        # change's time in an error.
        time = {"$concat": [_QUOTE, {"$substrBytes": ["$_id._data", 2, 16]}]}
        size = {"$bsonSize": {"$ifNull": ["$documentKey", {}]}}
        quoting = {"$match": {"$expr": {"$cond": [{"$gt": [size, _LARGE_KEY]}, {"$toInt": time}, True]}}}

        def watch(preference: Any) -> Stream:
            settings = {"slim": True, "lenient": True, "preference": preference, **_start(place)}
            return self._watch(1, self._awaiting(1), also=quoting, **settings)

        try:
            with self.opening(), self._by_a_longer_log(place, watch):
                return None
        except OperationFailure as error:
            found = _QUOTED.search(str(error))
            if error.code != CONVERSION_FAILURE or found is None:
                raise
            return At.of(int(found[1], 16))

    def pipeline(self, *, slim: bool = False) -> list[Stage]:
        """Return the pipeline stages that follow `$changeStream`."""
        # The library's own stage in the pipeline removes unused fields, because sending and decoding them
        # would take time. The stage also removes the description of the changed fields, because the library
        # returns only whole documents. Without the removed fields, an event whose size is near the server's
        # limit of 16 MB stays under this limit.
        stages: list[Stage] = []
        if isinstance(self.spec.scope, LogicalPartition):
            stages.append({"$match": _match(self.spec.scope)})
        stages += self.options.pipeline
        if slim:
            return [*stages, {"$project": {"_id": 1, "operationType": 1, "ns": 1, "clusterTime": 1}}]
        if not self.spec.include_native:
            unwanted = dict.fromkeys(_UNWANTED, 0)
            if self.spec.new_item_state_mode is NewItemStateMode.OMIT and self.options.full_document is None:
                unwanted["fullDocument"] = 0
            stages.append({"$project": unwanted})
        return [*stages, {SPLIT: {}}] if self.splits else stages

    def full_document(self) -> str | None:
        """Return the option that says from where the server takes the new document of an update."""
        mode = self.spec.new_item_state_mode
        if self.options.full_document is not None:
            return self.options.full_document
        if mode is NewItemStateMode.INCLUDE_IF_AVAILABLE and not self.images:
            return "updateLookup"
        return _IMAGES[mode.name]

    def full_document_before_change(self) -> str | None:
        """Return the option that says whether the server sends the old document."""
        if self.options.full_document_before_change is not None:
            return self.options.full_document_before_change
        return _IMAGES[self.spec.old_item_state_mode.name]

    # -- Internals

    def _server(self, stream: Stream | Rows) -> ServerDescription | None:
        """Return what PyMongo knows of a stream's server; None if it does not reach the server."""
        address = server_of(stream)
        servers = self.client.topology_description.server_descriptions()
        server = None if address is None else servers.get(address)
        return server if server is not None and server.is_server_type_known else None

    def _awaiting(self, await_ms: int) -> int:
        """Return a wait time that is shorter than the connection string's time limit for each call."""
        # If the wait were longer than the connection string's time limit, every call that waits would exceed
        # this limit.
        wanted = self.options.max_await_time_ms or await_ms
        return wanted if self._limit_ms is None else max(1, min(wanted, self._limit_ms // 4))

    def _watch(
        self,
        batch_size: int,
        await_ms: int,
        *,
        slim: bool = False,
        lenient: bool = False,
        also: Stage | None = None,
        preference: Any = None,
        **start: Any,
    ) -> Stream:
        without: list[str] = []
        first: OperationFailure | None = None
        while True:
            try:
                stream = self._asked(
                    batch_size, await_ms, slim, lenient, also, preference, {*self.refused, *without}, start
                )
            except OperationFailure as error:
                first = first or error
                doubtful = self._doubtful(error, {*self.refused, *without})
                if doubtful is None:
                    raise first from None
                without.append(doubtful)
            else:
                for name in without:
                    assert first is not None
                    self.leave_out(name, first)
                return stream

    def _doubtful(self, error: OperationFailure, without: set[str]) -> str | None:
        """Return the stage or the option that the server may have refused."""
        if self.options.show_expanded_events and EXPANDED not in without and EXPANDED in str(error):
            return EXPANDED
        if self._splits and SPLIT not in without and (SPLIT in str(error) or _may_mean_split(error.code)):
            return SPLIT
        return None

    def _asked(
        self,
        batch_size: int,
        await_ms: int,
        slim: bool,
        lenient: bool,
        also: Stage | None,
        preference: Any,
        without: set[str],
        start: Mapping[str, Any],
    ) -> Stream:
        settings: dict[str, Any] = {
            "full_document": _if_there(self.full_document(), lenient),
            "full_document_before_change": _if_there(self.full_document_before_change(), lenient),
            "max_await_time_ms": await_ms,
            "batch_size": batch_size,
            "comment": _COMMENT if self.options.comment is None else self.options.comment,
            "show_expanded_events": None if EXPANDED in without else self.options.show_expanded_events,
            **start,
        }
        stages = [*([] if also is None else [also]), *self.pipeline(slim=slim)]
        stages = [stage for stage in stages if without.isdisjoint(stage)]
        # The client's own codec and read concern may not be suitable.
        name = "admin" if self.address.database is None else self.address.database
        database = self.client.get_database(name, RAW_CODEC, preference, read_concern=_MAJORITY)
        if isinstance(self.spec.scope, EntireCluster):
            return watch_cluster(database, stages, settings)
        collection = self.address.collection
        target = database if collection is None else database.get_collection(collection)
        return target.watch(stages, **settings)


class LogEnd:
    """Decides in one fetch whether an empty answer shows that every acknowledged write was delivered."""

    # A server answers from the part of its log that a majority has, as far as the server knows.
    # 1. After its election, a primary learns with its first own write that a majority has the writes of its
    #    predecessor. From then on, its empty answers are believed, so an idle feed costs no further request.
    #    A client that is not told at once of an election asks in every fetch; the next answer counts.
    # 2. The primary is asked every few seconds whether a majority has its writes. If not, the stream has to
    #    pass the last write that the primary has now.
    # 3. A secondary may lag, so its stream always has to pass that write. The position at which a reader
    #    begins may be before the write of the same time; later positions are after it.
    # 4. A `mongos` answers while it waits for a shard that may have an earlier change. Therefore, the stream
    #    has to pass the end that the log had during this fetch. A `mongos` does not say what a majority of a
    #    shard has.
    #
    # 5. A server whose `operationResponseMaxMs` is set searches its log only for that time, and then answers
    #    with the position that it has reached (SERVER-102900). Therefore, the stream also has to pass the end
    #    of the log that the first answer of the fetch names.
    #
    # 6. A member that is connected directly, and is no primary, answers the questions itself. So its end is
    #    that of what it has.
    #
    # `is_late` is True if another answer may be needed, and only after some time. `is_former` is True if the
    # server that PyMongo takes for the primary is none any more. PyMongo learns it from the next command that
    # needs a primary, such as one that opens a stream; its own question may come a minute later.

    def __init__(self, source: ReaderContext) -> None:
        self._source = source
        self._mark: After | None = None
        self._last: int | None = None
        self._named: int | None = None
        self._election: object = None
        self._is_common = False
        self.is_late = self.is_former = False

    def is_passed(
        self, place: Place, stream: Stream | None, begin: Place, log_end: int | None = None
    ) -> bool:
        """Return True if the answer after which a stream is at `place` was the end of the log.

        Args:
            place: The position of the stream.
            stream: The stream, or None if it is closed.
            begin: The position at which the reader has begun.
            log_end: The end of the log that the answer names; see `Answer.log_end`.
        """
        source, at = self._source, ticks_at(place)
        if source.sharded:
            self._mark = self._mark or source.now()
            self.is_late = compare(place, self._mark) not in (0, 1)
            return not self.is_late
        self._named = log_end if self._named is None else self._named
        if self._named is not None and at is not None and at < self._named:
            self.is_late = False  # it searches, so it need not be given time
            return False
        is_believed = source.is_believed(stream)
        if is_believed and source.majority.is_fresh():
            return True
        before = self._election
        if self._last is None:
            self.ask()
        self.is_late = self._last is None
        if self._last is None:
            return False
        if self._is_common:
            if is_believed:
                return True
            if self._election is not None and source.election(stream) == self._election:
                return before is not None
        unmoved = place == begin or (isinstance(begin, At) and at == ticks_at(begin))
        self.is_late = at is not None and (at < self._last or (at == self._last and unmoved))
        if not self.is_late:
            source.majority.has_all()
        return not self.is_late

    def ask(self) -> int | None:
        """Ask the primary, or the only member, for its last write; return its cluster time, or None."""
        source, client = self._source, self._source.client
        if not client.topology_description.has_writable_server():
            return None  # an election is running
        with source.opening():
            answer = retried(client, lambda: client.admin.command("hello", codec_options=CODEC))
        if not (answer.get("isWritablePrimary", True) or source.is_alone()):
            self.is_former = True
            return None
        source.clock.told(answer)
        self._is_common = source.majority.told(answer)
        last = ticks_in(answer, "opTime")
        self._last = last or 0
        self._election = elected(answer)
        if self._election is not None and is_told_at_once(client):
            source.believed.clear()  # there is only one primary, so only its election is kept
            source.believed.add(self._election)
        return last


def elected(hello: Mapping[str, Any]) -> object:
    """Return the election that a server has won and in which a majority has one of its writes, or None."""
    written = hello.get("lastWrite", {})
    knows = written.get("opTime", {}).get("t") == written.get("majorityOpTime", {}).get("t")
    return hello.get("electionId") if knows and hello.get("isWritablePrimary") else None


def _is_kept(probe: Callable[[], None]) -> bool:
    """Return False if a server says that its log does not reach back to the position of a probe."""
    try:
        probe()
    except OperationFailure as error:
        if error.code != HISTORY_LOST:
            raise
        return False
    return True


def _too_short(client: MongoClient[Any], is_there: bool) -> ProviderFault:
    """Return the fault for a position that the member that was read no longer has."""
    members = ", ".join(sorted(f"{host}:{port}" for host, port in client.secondaries)) or "a secondary"
    has_it = "but that of the primary does" if is_there else "and no primary can be asked whether it does"
    return ProviderFault.of(
        ErrorCategory.TRANSIENT_FAILURE,
        f"the oplog of the member that was read ({members}) does not reach back to this position, {has_it}; "
        "read the same token with readPreference=secondaryPreferred, which reads from the primary until it "
        "has caught up, and give all members oplogs of one size (replSetResizeOplog)",
        retryable=True,
        vendor_retried=True,
    )


def _start(place: Place) -> dict[str, Any]:
    """Convert a position to a single start option of PyMongo."""
    # PyMongo would silently drop a second start option.
    match place:
        case At():
            return {"start_at_operation_time": place.timestamp()}
        case After("i", _):
            return {"start_after": place.token()}
        case After():
            return {"resume_after": place.token()}


def _match(scope: LogicalPartition) -> Stage:
    values = {name: to_bson(value) for name, value in scope.key.partition_key.items()}
    wanted: dict[str, Any] = {
        f"documentKey.{name}": {"$eq": value} for name, value in values.items() if "." not in name
    }
    # In a change, the whole path to a nested field of the shard key is one name.
    paths = [
        {"$eq": [{"$getField": {"field": name, "input": "$documentKey"}}, {"$literal": value}]}
        for name, value in values.items()
        if "." in name
    ]
    if paths:
        wanted["$expr"] = {"$and": paths}
    return {"$or": [wanted, {"operationType": {"$in": list(ENDINGS)}}]}


def _may_mean_split(code: int | None) -> bool:
    """Return True if the stage that splits events may be the cause of an error that does not name it."""
    # A mongos of 6.0.12 and 6.0.13 refuses it with a location code. 6.0.10, 6.0.11, 7.0.2 and 7.0.3 do not
    # find a token with it that was made without it.
    return code in (*REFUSALS, TOKEN_NOT_FOUND) or (
        code is not None and code >= FIRST_LOCATION and code not in CODES
    )


def _if_there(image: str | None, lenient: bool) -> str | None:
    return "whenAvailable" if lenient and image == _REQUIRED else image
