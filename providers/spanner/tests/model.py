"""A change stream service in memory that answers the provider's calls.

The model is based only on the service's documented rules. The model's clock does not run by itself. The clock
moves only when the script moves it, and at each request for the time. Random numbers decide what the service
does not specify: where an answer is cut, the order of transactions with one commit timestamp, the time of a
heartbeat, how often children are named, and which call fails.
"""

import json
import random
import threading
from datetime import UTC, datetime, timedelta

import attrs
import grpc
from google.cloud.spanner_v1 import PartialResultSet, Session
from google.protobuf.struct_pb2 import Value

from multiclouddb_spanner.catalog import ChangeStreamInfo
from multiclouddb_spanner.client import DatabaseClient
from multiclouddb_spanner.config import SpannerConfig
from multiclouddb_spanner.feed import SpannerFeed
from multiclouddb_spanner.provider import SpannerPlugin, SpannerProvider
from multiclouddb_spanner.source import Slots, Source
from multiclouddb_spi.engine import Engine

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ORIGIN = 1_800_000_000_000_000
SLOTS = 8
TABLE = "items"
DAY = 86400
_COLUMNS = [["id", '{"code":"STRING"}', True, "1"], ["n", '{"code":"INT64"}', False, "2"]]
_STATUSES = (("UNAVAILABLE", "gone"), ("INTERNAL", "RST_STREAM"), ("ABORTED", "try again"))


class WireError(grpc.RpcError):
    """The error with which a call failed."""

    def __init__(self, status, text):
        super().__init__(f"{status}: {text}")
        self._status, self._text = grpc.StatusCode[status], text

    def code(self):
        return self._status

    def details(self):
        return self._text

    def trailing_metadata(self):
        return ()


@attrs.frozen
class Change:
    """The change of one row, which the script has committed."""

    at: int
    transaction: str
    sequence: int
    mod: int
    slot: int
    partition: str
    table: str = TABLE

    @property
    def event_id(self):
        return f"{long_text(self.at)}|{self.transaction}|{self.sequence:08}|{self.mod}"


@attrs.define
class Partition:
    """One partition, with its slots of keys, its lifetime, and its records."""

    token: str
    start: int
    slots: list
    parents: tuple = ()
    end: int | None = None
    children: list = attrs.field(factory=list)
    records: list = attrs.field(factory=list)


def text_of(micros):
    """Return a time as the service writes it, without trailing zeros."""
    text = long_text(micros).removesuffix("Z").rstrip("0").rstrip(".")
    return f"{text}Z"


def long_text(micros):
    return f"{EPOCH + timedelta(microseconds=micros):%Y-%m-%dT%H:%M:%S.%f}Z"


def moment(text):
    return round((datetime.fromisoformat(text) - EPOCH) / timedelta(microseconds=1))


class Model:
    """The simulated service.

    Args:
        seed: The seed of the random numbers.
        trouble: The probability that an answer is interrupted at a message.
        partitions: The number of partitions at the start.
    """

    def __init__(self, seed, trouble=0.0, partitions=2, slots=4):
        self.dice, self.trouble, self.slots = random.Random(seed), trouble, slots
        self.lock = threading.RLock()
        self.now = self.last = self.read = ORIGIN
        self.used = set()  # rows that were changed at `last`
        self.ticks = (0, 1, 7)  # the step of the clock when it is asked
        self.sessions, self.numbers = set(), 0
        self.changes = []
        self.partitions = {}
        shares = [list(range(first, SLOTS, partitions)) for first in range(partitions)]
        for share in shares:
            self._add(ORIGIN, share, ())

    # -- The script's actions

    def commit(self, *steps):
        """Commit some transactions, often with one commit timestamp.

        No row is changed by two of these transactions.
        """
        with self.lock:
            same = self.last > self.read and not steps and self.dice.random() < 0.3
            at = self.last if same and len(self.used) < SLOTS else self._next(*steps)
            free = [slot for slot in self.dice.sample(range(SLOTS), SLOTS) if slot not in self.used]
            for _ in range(self.dice.choice([1, 1, 2, 3])):
                slots = [free.pop() for _ in range(min(len(free), self.dice.choice([1, 1, 2, 4])))]
                self.used.update(slots)
                self._transaction(at, slots)
            return at

    def reshape(self, at=None):
        """Split, merge or move partitions, sometimes at the commit timestamp of the last change."""
        with self.lock:
            alive = [each for each in self.partitions.values() if each.end is None]
            parents = self.dice.sample(alive, min(len(alive), self.dice.choice([1, 1, 2, 3])))
            used = max(each.start for each in parents)
            same = self.last > used and self.last > self.read and self.dice.random() < 0.3
            at = at or (self.last if same else self._next())
            slots = sorted(slot for each in parents for slot in each.slots)
            self.dice.shuffle(slots)
            count = min(len(slots), self.dice.choice([1, 1, 2, 3])) or 1
            names = tuple(each.token for each in parents)
            children = [self._add(at, slots[first::count], names) for first in range(count)]
            for each in parents:
                each.end, each.children = at, children

    def pass_time(self):
        with self.lock:
            self.now += self.dice.choice([1, 3, 1000, 90_000_000, 4 * 3600_000_000])

    def _next(self, *steps):
        """Return a time after all changes, and after all times up to which a client has read."""
        self.now = max(self.now, self.last, self.read) + self.dice.choice(steps or (1, 1, 2, 500))
        self.last = self.now
        self.used = set()
        return self.now

    def _add(self, at, slots, parents):
        made = Partition(f"token-{len(self.partitions):03}", at, slots, parents)
        self.partitions[made.token] = made
        return made

    def _transaction(self, at, slots):
        self.numbers += 1
        name = f"t{self.dice.randrange(1000)}x{self.numbers}"
        sequence = 0
        while slots:
            some = [slots.pop() for _ in range(min(len(slots), self.dice.choice([1, 2, 3])))]
            table = TABLE if self.dice.random() < 0.85 else "other"
            homes = {}
            for slot in some:
                home = next(p for p in self.partitions.values() if p.end is None and slot in p.slots)
                homes.setdefault(home.token, []).append(slot)
            for token, held in homes.items():
                record = [Change(at, name, sequence, n, slot, token, table) for n, slot in enumerate(held)]
                self.partitions[token].records.append(record)
                if table == TABLE:
                    self.changes += record
                sequence += self.dice.choice([1, 1, 3])

    # -- Answers to calls

    def root(self, start):
        with self.lock:
            if start < ORIGIN:
                raise WireError(
                    "OUT_OF_RANGE",
                    "Specified start_timestamp is too far in the past. Please specify a start_timestamp "
                    f"within the earliest read timestamp: {text_of(ORIGIN)}. Received {text_of(start)}",
                )
            self._reach(start)
            alive = [
                p for p in self.partitions.values() if p.start <= start and (p.end is None or start < p.end)
            ]
            self.dice.shuffle(alive)
            return [([], [], [[text_of(start), "00000000", [[p.token, []]]]]) for p in alive]

    def rows(self, token, start, end):
        """Return the rows of a query. Rows with equal commit timestamps come in a random order."""
        with self.lock:
            self._reach(end)
            partition = self.partitions.get(token)
            if partition is None:
                raise WireError("INVALID_ARGUMENT", "Specified partition_token is invalid")
            last = partition.end
            if start < partition.start or (last is not None and start > last):
                life = f"{text_of(partition.start)} and {text_of(last) if last else 'infinite-future'}"
                raise WireError(
                    "OUT_OF_RANGE",
                    "Specified start_timestamp is invalid for the partition. Please specify a "
                    f"start_timestamp within {life}. Received start_timestamp: {text_of(start)}",
                )
            ended = last is not None and last <= end
            bound = last if ended else end
            records = self._mixed([record for record in partition.records if start <= record[0].at <= end])
            rows = self._heartbeats(start, records[0][0].at - 1 if records else bound - 1)
            for number, record in enumerate(records):
                rows.append(([self._data(record)], [], []))
                following = records[number + 1][0].at - 1 if number + 1 < len(records) else bound
                rows += self._heartbeats(start, following)
            if ended:
                rows += [*self._heartbeats(start, bound), *self._children(partition)]
            elif not records:
                rows.append(([], [[text_of(end)]], []))
            return rows

    def ask_time(self):
        with self.lock:
            self.now += self.dice.choice(self.ticks)
            self._reach(self.now)
            return self.now

    def _reach(self, at):
        """Move the model's time to the end of a read, unless it is already later.

        After that, no change can be committed at or before the end of the read.
        """
        self.now = max(self.now, at)
        self.read = max(self.read, at)

    def _mixed(self, records):
        found = []
        for at in sorted({record[0].at for record in records}):
            hands = {}
            for record in records:
                if record[0].at == at:
                    hands.setdefault(record[0].transaction, []).append(record)
            turns = [name for name, hand in hands.items() for _ in hand]
            self.dice.shuffle(turns)
            found += [hands[name].pop(0) for name in turns]
        return found

    def _heartbeats(self, start, last):
        """Return heartbeats. Their times may be earlier than those of records that were already sent."""
        if last < start or self.dice.random() < 0.6:
            return []
        moments = [self.dice.choice([last, start, self.dice.randint(start, last)]) for _ in range(2)]
        return [([], [[text_of(at)]], []) for at in sorted(moments)]

    def _children(self, partition):
        named = [[child.token, list(child.parents)] for child in partition.children]
        named *= self.dice.choice([1, 1, 2, 3])
        self.dice.shuffle(named)
        size = self.dice.choice([1, len(named)])
        start = text_of(partition.end)
        return [([], [], [[start, f"{at:08}", named[at : at + size]]]) for at in range(0, len(named), size)]

    def _data(self, record):
        first = record[0]
        mods = [
            [json.dumps({"id": f"k{each.slot}"}), json.dumps({"n": str(each.at)}), "{}"] for each in record
        ]
        return [
            text_of(first.at), f"{first.sequence:08}", first.transaction, False, first.table, _COLUMNS, mods,
            "INSERT", "NEW_ROW", "1", "1", "", False,
        ]  # fmt: skip

    # -- The network

    def answer(self, request):
        """Return the messages of an answer, and the error after them or None."""
        with self.lock:
            if request.session not in self.sessions:
                raise WireError("NOT_FOUND", "Session not found")
            if request.sql == "SELECT 1":
                asked = self.ask_time()
                message = PartialResultSet.pb()()
                stamp = message.metadata.transaction.read_timestamp
                stamp.FromDatetime(EPOCH + timedelta(microseconds=asked))
                return self._broken([message])
            if "information_schema" in request.sql:
                whole = "change_stream_tables" in request.sql
                return self._cut([*map(to_value, ["items_stream", "", TABLE, True] if whole else [])]), None
            fields = request.params.fields
            start = moment(fields["s"].string_value)
            token = fields["t"].string_value
            rows = self.rows(token, start, moment(fields["e"].string_value)) if token else self.root(start)
            return self._broken(self._cut([to_value([row]) for row in rows]))

    def _broken(self, messages):
        if self.dice.random() >= self.trouble:
            return messages, None
        if self.dice.random() < 0.1:
            self.sessions.clear()
        return messages[: self.dice.randint(0, len(messages))], WireError(*self.dice.choice(_STATUSES))

    def _cut(self, values):
        """Return messages that may end anywhere, even inside a value."""
        messages = []
        while values:
            message = PartialResultSet.pb()()
            count = self.dice.randint(1, 3)
            message.values.extend(values[:count])
            del values[:count]
            if self.dice.random() < 0.3:
                first, second = halved(message.values[-1], self.dice)
                message.values[-1].CopyFrom(first)
                values.insert(0, second)
                message.chunked_value = True
            messages.append(message)
        return messages


def to_value(value):
    match value:
        case bool():
            return Value(bool_value=value)
        case str():
            return Value(string_value=value)
        case _:
            made = Value()
            made.list_value.SetInParent()
            made.list_value.values.extend(map(to_value, value))
            return made


def halved(value, dice):
    """Divide a value into two parts. The protocol's rules for chunks say how a client joins the two parts."""
    if value.HasField("string_value"):
        at = dice.randint(0, len(value.string_value))
        return Value(string_value=value.string_value[:at]), Value(string_value=value.string_value[at:])
    values = list(value.list_value.values)
    if not values:
        return to_value([]), to_value([])
    at = dice.randrange(len(values))
    if values[at].HasField("bool_value"):
        parts = [*values[: at + 1]], values[at + 1 :]
    else:
        first, second = halved(values[at], dice)
        parts = [*values[:at], first], [second, *values[at + 1 :]]
    made = to_value([]), to_value([])
    for whole, part in zip(made, parts, strict=True):
        whole.list_value.values.extend(part)
    return made


# -- The provider on the model


class Answer:
    """A streaming gRPC call."""

    def __init__(self, model, request):
        self._model, self._request, self._cancelled = model, request, False

    def __iter__(self):
        messages, error = self._model.answer(self._request)
        for message in messages:
            if self._cancelled:
                raise WireError("CANCELLED", "Locally cancelled")
            yield PartialResultSet.wrap(message)
        if error is not None:
            raise error

    def cancel(self):
        self._cancelled = True


class Made:
    """A gRPC call that returns one value instead of a stream."""

    def __init__(self, value):
        self._value = value

    def result(self, timeout=None):
        del timeout
        return self._value

    def cancel(self):
        pass


class Transport:
    """The part of the library's transport that the provider uses."""

    def __init__(self, model):
        self._model = model
        self.create_session = self.delete_session = self

    def execute_streaming_sql(self, request, timeout, metadata):
        del timeout, metadata
        return Answer(self._model, request)

    def future(self, request, timeout, metadata):
        del timeout, metadata
        with self._model.lock:
            self._model.numbers += 1
            name = f"{getattr(request, 'database', '')}/sessions/{self._model.numbers}"
            self._model.sessions.add(name)
        return Made(Session(name=name, multiplexed=True))

    def close(self):
        pass


class ModelProvider(SpannerProvider):
    """The provider, except that it finds a table's stream without a query."""

    def __init__(self, model, config):
        super().__init__(None, config, ours=True)
        self._model = model
        self._databases["d"] = DatabaseClient(
            "projects/p/instances/i/databases/d", Transport(model), ours=True
        )

    def open_feed(self, spec, deadline):
        found = ChangeStreamInfo("items_stream", TABLE, ("id",), False, True, "NEW_ROW", DAY)
        source = Source(self._databases["d"], found, Slots(self._model.slots))
        self._sources.add(source)
        return SpannerFeed(source, spec)


class ModelPlugin(SpannerPlugin):
    """Parses the configuration of a client."""

    def __init__(self, model):
        self.model = model

    def open(self, config, native_client, observer):
        """Open a client of the provider. The client repeats failed attempts without a pause."""
        provider = ModelProvider(self.model, SpannerConfig.from_client(config))
        return Engine(provider, config, observer, pause=lambda seconds: None)
