"""Sends recorded requests to another server, and compares its answers with the recorded ones."""

from __future__ import annotations

import re
import time
import tomllib
import uuid
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

import attrs
import yaml

from multiclouddb_api import invalid_request
from multiclouddb_certify.recordings.hiding import Veil
from multiclouddb_certify.recordings.rules import PLACEHOLDER, WORDS, Codec, Rules, Sender, moment_of, shape

__all__ = ["Difference", "Known", "exchanges_of", "replay"]

_CUT: Final = re.compile(r"<cut: \d+ characters>")
_FILLED: Final = re.compile(rf"({PLACEHOLDER.pattern})(?:([+-]\d+\.\d+)s)?")
_NOTHING: Final = object()
_SECONDS: Final = 3.0
_PAUSE: Final = 0.02


@attrs.frozen
class Difference:
    """One difference between a recorded answer and the answer of the server.

    Attributes:
        test: The name of the recording, which is that of its test.
        place: The number of the exchange in the file, from 1.
        operation: The name of the operation.
        path: The field, for example `body.Records.0.eventName`.
        recorded: What the recording says.
        got: What the server answered.
    """

    test: str
    place: int
    operation: str
    path: str
    recorded: str
    got: str

    def __str__(self) -> str:
        """Return a line for a person."""
        where = f"{self.test} #{self.place} {self.operation} {self.path}"
        return f"{where}: recorded {self.recorded}, got {self.got}"


@attrs.define
class Known:
    """The differences that are known.

    Each is of one service and one server, and has a reason; `*` in an operation or a path is any text.
    """

    entries: Sequence[Mapping[str, str]] = ()
    _used: set[int] = attrs.field(factory=set, init=False)

    @classmethod
    def of(cls, file: Path, service: str, server: str) -> Known:
        """Read the entries for a server.

        Args:
            file: A TOML file of tables `difference`: `service`, `server`, `operation`, `path`, `reason`.
            service: The id of the provider.
            server: The name of the server.
        """
        entries = tomllib.loads(file.read_text(encoding="utf-8"))["difference"]
        return cls([each for each in entries if (each["service"], each["server"]) == (service, server)])

    def __contains__(self, difference: Difference) -> bool:
        """Return True for a known difference."""
        found = [
            place
            for place, each in enumerate(self.entries)
            if fnmatchcase(difference.operation, each["operation"])
            and fnmatchcase(difference.path, each["path"])
        ]
        self._used.update(found)
        return bool(found)

    def unused(self) -> list[Mapping[str, str]]:
        """Return the entries that no difference has needed so far."""
        return [each for place, each in enumerate(self.entries) if place not in self._used]


def exchanges_of(file: Path) -> list[dict[str, Any]]:
    """Return the exchanges of a recording.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` if the file is no recording.
    """
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        found = yaml.load(file.read_text(encoding="utf-8"), loader)
        if all("cut" in each or {"operation", "request", "answer"} <= each.keys() for each in found):
            return list(found)
    except (yaml.YAMLError, TypeError, AttributeError, UnicodeDecodeError) as error:
        raise invalid_request("recording", f"{file.name} cannot be read", "record the test again") from error
    raise invalid_request("recording", f"{file.name} has no exchanges", "record the test again")


def replay(files: Iterable[Path], codec: Codec, prefix: str) -> Iterator[Difference]:
    """Send the requests of recordings, and return the differences between the answers.

    Args:
        files: The recordings.
        codec: The service's part, which knows the server.
        prefix: The beginning of each name that is created.
    """
    sender = codec.sender()
    try:
        for number, file in enumerate(files):
            values = _Values(codec, f"{prefix}{number}")
            portions = _Portions(codec, sender)
            for place, exchange in enumerate(exchanges_of(file), 1):
                request = values.filled(exchange.get("request"))
                # The rest needs what was cut.
                if "cut" in exchange or _CUT.search(str(request)):
                    break
                operation = exchange["operation"]
                answer = sender.send(operation, request, exchange["answer"])
                portions.adjust(exchange, request, answer)
                for path, recorded, got in values.compare(exchange["answer"], answer):
                    yield Difference(file.stem, place, operation, path, recorded, got)
    finally:
        sender.close()


class _Portions:
    """Cuts long lists as the recording does: reads on if entries are missing, and keeps what is too much."""

    def __init__(self, codec: Codec, sender: Sender) -> None:
        self._codec, self._sender = codec, sender
        self._surplus: dict[str, list[Any]] = {}

    def adjust(self, exchange: Mapping[str, Any], request: dict[str, Any], answer: dict[str, Any]) -> None:
        operation = exchange["operation"]
        portion = self._codec.rules.portions.get(operation)
        wanted = None if portion is None else _at(exchange["answer"], portion.entries)
        entries = None if portion is None else _at(answer, portion.entries)
        if portion is None or not isinstance(wanted, list) or not isinstance(entries, list):
            return
        if portion.position:
            entries[:0] = self._surplus.get(str(_at(exchange["request"], portion.position)), [])
        until = time.monotonic() + _SECONDS
        last = answer
        while len(entries) < len(wanted) and time.monotonic() < until:
            following = self._codec.following(operation, request, last)
            if following is None:
                break
            time.sleep(_PAUSE)
            operation, request = following
            last = self._sender.send(operation, request, exchange["answer"])
            portion_now = self._codec.rules.portions[operation]
            more = _at(last, portion_now.entries)
            if not isinstance(more, list):
                break
            entries += more
            _at(answer, portion.following[:-1])[portion.following[-1]] = _at(last, portion_now.following)
        surplus = entries[len(wanted) :]
        del entries[len(wanted) :]
        self._surplus[str(_at(exchange["answer"], portion.following))] = surplus


def _at(tree: Any, path: Sequence[str]) -> Any:
    for name in path:
        tree = tree.get(name) if isinstance(tree, dict) else None
    return tree


class _Values:
    """The values that stand for the placeholders of one recording in this run."""

    def __init__(self, codec: Codec, run: str) -> None:
        self._rules: Rules = codec.rules
        hidden = {**codec.secrets(), run: "run"}
        self._shown = {f"<{name}>": text for text, name in hidden.items() if text}
        self._veil = Veil(codec.rules, hidden)
        self._known: dict[str, Any] = {}
        self._seen: dict[str, list[Any]] = {}

    def filled(self, value: Any) -> Any:
        """Return a request with the values of this run."""
        match value:
            case dict():
                return {self.filled(name): self.filled(each) for name, each in value.items()}
            case list():
                return [self.filled(each) for each in value]
            case str():
                whole = _FILLED.fullmatch(value)
                if whole is not None:
                    return self._value(whole)
                for name, text in self._shown.items():
                    value = value.replace(name, text)
                return _FILLED.sub(lambda found: str(self._value(found)), value)
            case _:
                return value

    def _value(self, found: re.Match[str]) -> Any:
        """Return what an earlier answer gave, or a new value: the client chose it."""
        name, distance = found[1], found[5]
        if name not in self._known:
            new: Any = str(uuid.uuid4())
            if name.endswith("$binary>"):
                new = {"$binary": {"base64": b64encode(uuid.uuid4().bytes).decode(), "subType": "04"}}
            elif found[2] == "time" and not found[4]:
                new = _text_of(datetime.now(UTC))
            self._known[name] = new
        value = self._known[name]
        moment = moment_of(value)
        if distance is None or moment is None:
            return value
        return _text_of(moment + timedelta(seconds=float(distance)))

    def compare(self, recorded: Any, got: Any) -> Iterator[tuple[str, str, str]]:
        """Return the path of each difference and both values, and learn the values of the placeholders."""
        yield from self._compare(recorded, self._veil.over(got), ())

    def _compare(self, recorded: Any, got: Any, path: tuple[str, ...]) -> Iterator[tuple[str, str, str]]:
        where = ".".join(path)
        whole = PLACEHOLDER.fullmatch(recorded) if isinstance(recorded, str) else None
        match recorded, got:
            case _ if whole is not None:
                if got is _NOTHING or got is None or (whole[3] or "") != shape(got):
                    yield where, recorded, _short(got)
                seen = self._seen.setdefault(recorded, [])
                if whole[1] in self._rules.same and seen and got not in seen:
                    yield where, recorded, "another value than before"
                seen.append(got)
                if got is not _NOTHING:
                    self._known[recorded] = got
            case dict(), dict():
                for name in dict.fromkeys([*recorded, *got]):
                    pair = recorded.get(name, _NOTHING), got.get(name, _NOTHING)
                    yield from self._compare(*pair, (*path, name))
            case list(), list():
                if len(recorded) != len(got):
                    yield where, f"{len(recorded)} entries", f"{len(got)}"
                for place, pair in enumerate(zip(recorded, got, strict=False)):
                    yield from self._compare(*pair, (*path, str(place)))
            case _:
                is_same = type(recorded) is type(got) and (recorded == got or self._rules.kind(path) == WORDS)
                if not is_same:
                    yield where, _short(recorded), _short(got)


def _text_of(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _short(value: Any) -> str:
    if value is _NOTHING:
        return "nothing"
    text = repr(value)
    return text if len(text) < 80 else f"{text[:77]}..."
