"""Lives of a table and its source, judged by a model that knows both and shares nothing with `verify`.

The model reads the rows of the table itself, with their texts, and compares them with the documents that the
sink has merged. Between two runs of `verify` anything happens to the table: rows are damaged, it goes back to
an older version, it is made again; the collection is made again; the sink stays behind. A run is killed, and
its folder is copied or put back; look-ups are refused; the options change from run to run. After each run,
the verdict must be that of the model, only what the report names may have been written, and no row may be
worse.

The choices of a life depend on its seed alone, and those of a step on no step before it. A life that fails
tells its history.
"""

from __future__ import annotations

import json
import random
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, cast
from unittest.mock import patch

import attrs

from multiclouddb_api import (
    ChangeFeedPage,
    ChangeFeedRequest,
    ErrorCategory,
    ErrorDetail,
    FromContinuationToken,
    MulticloudDbError,
    NotKnown,
    ResourceAddress,
    encode_json,
)
from multiclouddb_tables import Columns
from multiclouddb_tables.contract import Target
from multiclouddb_verify import source as source_room
from multiclouddb_verify.verification import Verification, checked
from testing.history import History

if TYPE_CHECKING:
    from multiclouddb_verify.verification import VerifySettings

__all__ = ["DECLARED", "Life", "ModelRow", "ModelSource", "ModelTable", "with_columns"]

_BLOCKED: Final = "~"
_SPELLINGS: Final[Sequence[Callable[[str], str]]] = (
    lambda text: text.replace(":", ": ", 1),
    lambda text: "{ " + text[1:],
    lambda text: text[:-1] + "," + text[1:],
    lambda text: text.replace('id"', 'ID"', 1),
    lambda text: text.strip('{"}'),
    lambda text: "\u00e4" + text,
)


DECLARED: Final = Columns({"n": "json", "v": "json"})
"""The declaration of a table with columns: those of the fields of the documents."""


@attrs.frozen
class ModelRow:
    """A row of the table as it is stored."""

    key: str
    order_key: str
    text: str | None
    deleted: bool


_Rows: TypeAlias = Mapping[str, Sequence[ModelRow]]
"""The rows of the table by their keys."""


class ModelSource(Protocol):
    """A collection, which is written with the vendor's own calls.

    Attributes:
        client: The client that reads it.
        address: Its address.
        start: Where the sink begins.
        odd_names: Further names of documents, whose keys are easily written in another way.
    """

    client: Any
    address: ResourceAddress
    start: Any
    odd_names: Sequence[str]

    def key(self, name: str) -> dict[str, Any]:
        """Return the components of the key of a document."""

    def write(self, name: str, number: int) -> dict[str, Any]:
        """Write a document, and return what the feed delivers of it."""

    def remove(self, name: str) -> None:
        """Remove a document."""

    def recreate(self) -> None:
        """Drop the collection, and make an empty one of the same name."""

    def tick(self) -> None:
        """Let the time of the service go on, if it goes on only with what happens there."""


class ModelTable(Protocol):
    """A table, which is read and damaged with its own calls."""

    def merge(self, page: ChangeFeedPage) -> None:
        """Let the sink merge a page."""

    def target(self) -> Target:
        """Return the table for `verify`."""

    def rows(self) -> list[ModelRow]:
        """Return all rows."""

    def update(self, key: str, **values: str | None) -> None:
        """Set columns of the rows of a key; `text`, `order_key`, or `deleted` for a tombstone."""

    def add(self, row: ModelRow) -> None:
        """Add a row, if the table can have it."""

    def delete(self, key: str) -> None:
        """Remove the rows of a key."""

    def go_back(self, dice: random.Random) -> None:
        """Set the table back to an older version, if it has any."""

    def drop(self) -> None:
        """Remove the table."""


class KilledError(BaseException):
    """Raised to simulate the death of the process at this point."""


class RefusingClient:
    """A client whose look-ups of some keys are refused, as by a gateway; everything else is passed on.

    Args:
        client: The client.
        refuses: Says of the text of a key whether it is refused.
        answers: True to answer *not known* for a refused key; False to refuse the whole look-up.
    """

    def __init__(self, client: Any, refuses: Callable[[str], bool], *, answers: bool = False) -> None:
        self._client, self._refuses, self._answers = client, refuses, answers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def lookup(self, address: Any, keys: Any, *args: Any, **settings: Any) -> Any:
        """Refuse the look-up, or those of its keys that are refused."""
        keys = list(keys)
        refused = [key for key in keys if self._refuses(encode_json(dict(key.components)).decode())]
        answers = self.refuse(refused) if refused else {}
        found = self._client.lookup(address, keys, *args, **settings)
        return {**found, **answers}

    def refuse(self, keys: Sequence[Any]) -> dict[Any, Any]:
        """Return the answers for refused keys, or raise the error of their look-up."""
        if self._answers:
            return dict.fromkeys(keys, NotKnown("the gateway cannot be asked for this id"))
        raise MulticloudDbError(
            "401 Unauthorized: the gateway cannot be asked for this id",
            ErrorDetail(ErrorCategory.AUTHENTICATION_FAILED, "model", "lookup"),
        )


class Life:
    """A source, its sink and a table, and the model of what is in them.

    Args:
        seed: The seed of what happens.
        folder: An empty folder.
        source: The collection, which is empty.
        table: The table, which does not exist yet.
        steps: How much happens.
        settings: Further settings of `verify`.
    """

    def __init__(
        self, seed: int, folder: Path, source: ModelSource, table: ModelTable, *, steps: int = 9,
        **settings: Any,
    ) -> None:  # fmt: skip
        self.dice, self.told = random.Random(f"model {seed}"), History(seed)
        self._seed, self._steps = seed, steps
        self.source, self.table, self.settings = source, table, settings
        self.folder, self.state = folder, folder / "state"
        self._paused = 0.0
        self.copies: list[Path] = []
        self.number, self.token = 0, ""
        self.documents: dict[str, dict[str, Any]] = {}
        self.merged: dict[str, dict[str, Any]] = {}
        self.open: set[str] = set()

    def live(self) -> History:
        """Let things happen, and judge every verdict; return what has happened."""
        with self.told.told(), _one_clock():
            self._fill()
            for step in range(self._steps):
                # One choice more or less in a step does not change the steps after it.
                self.dice = random.Random(f"model {self._seed} {step}")
                self._step()
            self.sink()
            self.repaired()
            self.compared()
        return self.told

    def _step(self) -> None:
        happenings = [
            *[self.damage] * 4, self.table_goes_back, self.run, *[self.killed] * 3,
            self.copy_folder, self.put_back_folder, self.rebuild_table, self.recreate_source,
        ]  # fmt: skip
        if self.dice.random() < 0.4:
            self.change()
            if self.dice.random() < 0.7:
                self.sink()
        self.dice.choice(happenings)()
        if self.dice.random() < 0.5:
            self.run()

    # -- The application and the sink

    def _fill(self) -> None:
        self.documents, self.token = {}, ""
        self.start = self.source.start
        for name in (*(f"o-{number}" for number in range(self.dice.randint(25, 40))), *self.source.odd_names):
            self.write(name)
        self.sink()

    def write(self, name: str) -> None:
        """Write a new version of a document."""
        self.number += 1
        self.documents[name] = self.source.write(name, self.number)
        self.open.add(name)

    def change(self) -> None:
        """Write and remove some documents."""
        names = [*(f"o-{number}" for number in range(45)), *self.source.odd_names]
        for _ in range(self.dice.randint(0, 6)):
            name = self.dice.choice(names)
            if name in self.documents and self.dice.random() < 0.4:
                self.source.remove(name)
                del self.documents[name]
                self.open.add(name)
            else:
                self.write(name)
        self.told.add(f"documents that the sink has not merged: {sorted(self.open)}")

    def sink(self) -> None:
        """Merge pages until the feed is idle."""
        self.token = self._read(self.table.merge)
        self.merged, self.open = dict(self.documents), set()
        self.told.add(f"the sink merges: {len(self.merged)} documents")

    def _read(self, keep: Callable[[ChangeFeedPage], None]) -> str:
        """Read until the feed is idle; return the position."""
        token = self.token
        while True:
            start = FromContinuationToken(token) if token else self.start
            page = self.source.client.read_changes(ChangeFeedRequest(self.source.address, start))
            keep(page)
            token = str(page.continuation_token)
            if page.idle:
                return token

    # -- The model

    def key(self, name: str) -> str:
        """Return the text of a key, as the sink writes it."""
        return encode_json(self.source.key(name)).decode()

    def _is_key(self, text: str) -> bool:
        """Return whether a text is a key of the collection in some spelling, so that it can be asked for."""
        with suppress(ValueError):
            found = json.loads(text)
            return isinstance(found, dict) and found.keys() == self.source.key("").keys()
        return False

    def rows(self) -> _Rows:
        """Return the rows of the table by their keys."""
        found: dict[str, list[ModelRow]] = {}
        for row in sorted(self.table.rows(), key=str):
            found.setdefault(row.key, []).append(row)
        return found

    def wrong(self, rows: _Rows) -> set[str]:
        """Return the keys of which the table does not have what the sink has merged.

        Of a document that has changed since, only a second row and a blocked one are wrong for certain.
        """
        merged = {self.key(name): each for name, each in self.merged.items()}
        moved = {self.key(name) for name in self.open}
        return {
            key
            for key in {*rows, *merged}
            if len(mine := rows.get(key, [])) > 1
            or any(row.order_key >= _BLOCKED for row in mine)
            or (key not in moved and not _says(mine, merged.get(key)))
        }

    # -- What happens between two runs

    def damage(self) -> None:
        """Damage up to three rows."""
        kinds = (
            self._lose, self._change_row, self._bury, self._haunt, self._respell, self._respell, self._double,
            self._block,
        )  # fmt: skip
        for _ in range(self.dice.randint(1, 3)):
            self.dice.choice(kinds)()

    def _some_key(self) -> str:
        return self.key(self.dice.choice(sorted(self.documents)))

    def _lose(self) -> None:
        key = self._some_key()
        self.told.add(f"the row {key!r} is lost")
        self.table.delete(key)

    def _change_row(self) -> None:
        self._update(self._some_key(), text='{"n":-1}')

    def _bury(self) -> None:
        self._update(self._some_key(), text=None, deleted="now")

    def _update(self, key: str, **values: str | None) -> None:
        self.told.add(f"the row {key!r} gets {values}")
        self.table.update(key, **values)

    def _add(self, key: str) -> None:
        self.told.add(f"a row {key!r} is added")
        self.table.add(ModelRow(key, "0", '{"n":0}', False))

    def _haunt(self) -> None:
        self._add(self.key(f"ghost-{self.dice.randrange(9)}"))

    def _respell(self) -> None:
        """Add a row whose key is another spelling of a document's key, or of none, or no key at all."""
        text = self.key(self.dice.choice([*sorted(self.documents), "nobody"]))
        self._add(self.dice.choice(_SPELLINGS)(text))

    def _double(self) -> None:
        self._add(self._some_key())

    def _block(self) -> None:
        self._update(self._some_key(), order_key=_BLOCKED)

    def table_goes_back(self) -> None:
        """Set the table back to an older version."""
        self.told.add("the table goes back")
        self.table.go_back(self.dice)

    def rebuild_table(self) -> None:
        """Make the table again from the beginning of the feed."""
        self.told.add("the table is made again")
        self.table.drop()
        self.token = ""
        self.sink()

    def copy_folder(self) -> None:
        """Copy what a killed run has left."""
        if self.state.exists():
            self.told.add("the folder is copied")
            self.copies.append(self.folder / f"copy-{len(self.copies)}")
            shutil.copytree(self.state, self.copies[-1])

    def put_back_folder(self) -> None:
        """Put an older copy back."""
        if self.copies:
            self.told.add("a copy of the folder is put back")
            shutil.rmtree(self.state, ignore_errors=True)
            shutil.copytree(self.dice.choice(self.copies), self.state)

    def recreate_source(self) -> None:
        """Make the collection again; its table is refused, and it is made again as well."""
        self.told.add("the collection is made again, and then its table")
        self.source.recreate()
        self.start, self.token = self.source.start, ""
        self.token = self._read(lambda page: None)
        before = self.rows()
        try:
            self.verify(repair=True, adopt=True)
        except MulticloudDbError as error:
            if error.category != ErrorCategory.INVALID_REQUEST:
                raise
        else:
            raise AssertionError("the table of the collection before this one was compared")
        finally:
            assert self.rows() == before, "the table of the collection before this one was written"
        self.table.drop()
        self._fill()

    # -- verify

    def verify(self, **settings: Any) -> Any:
        """Run `verify` while nothing changes; it waits for nothing, because its time goes on at once."""
        client = settings.pop("client", self.source.client)
        settings = {
            "position": self.token, "state": self.state, "patience_seconds": 0.0, "force": True,
            **self.settings, **settings,
        }  # fmt: skip
        shown = {name: settings[name] for name in ("repair", "resume", "sample") if settings.get(name)}
        try:
            target = self.table.target()
            checked_source = checked(
                client, self.source.address, target, Target, cast("VerifySettings", settings)
            )
            report = Verification(
                checked_source, target, pause=self._pause, clock=self._clock, **settings
            ).run()
        except (KilledError, MulticloudDbError) as error:
            said = error.category if isinstance(error, MulticloudDbError) else "killed"
            self.told.add(f"verify {shown}: {said}")
            raise
        told, repaired = ([each.key for each in found] for found in (report.differences, report.repaired))
        self.told.add(
            f"verify {shown}: {report.outcome}, different {told}, repaired {repaired}, "
            f"unsettled {sorted(report.unsettled)}"
        )
        return report

    def _pause(self, seconds: float) -> None:
        self._paused += seconds
        self.source.tick()

    def _clock(self) -> float:
        return time.time() + self._paused

    def killed(self) -> None:
        """Run `verify`, which dies at a random moment; later the table is another one, and it runs again."""
        # Most runs report the beginning and the end of the scan, of the table, and of the comparison: a run
        # that dies at the third report has read the table.
        self.run(dies_after=self.dice.choice([0, 1, 2, 3, 3, 3, 4, 5, 6]))
        self.dice.choice([self.damage, self.damage, self.table_goes_back, self.copy_folder])()
        self.run(resumes=True)

    def run(self, *, dies_after: int | None = None, resumes: bool = False) -> None:
        """Run `verify` with any options, and compare what it says and does with the model."""
        dice = self.dice
        settings: dict[str, Any] = {"repair": dice.random() < 0.5, "resume": resumes or dice.random() < 0.6}
        settings["sample"] = 2 if dice.random() < 0.1 else None
        refused, answers = dice.choice([0, 0, 1, 1, 3]), dice.random() < 0.5
        client = RefusingClient(
            self.source.client, lambda key: sum(key.encode()) % 3 < refused, answers=answers
        )

        def die(_: object) -> None:
            nonlocal dies_after
            if dies_after is not None:
                dies_after -= 1
                if dies_after < 0:
                    raise KilledError

        before, report = self.rows(), None
        wrong = self.wrong(before)
        try:
            report = self.verify(client=client, on_progress=die, **settings)
        except KilledError:
            pass
        except MulticloudDbError as error:
            if not refused or error.category != ErrorCategory.AUTHENTICATION_FAILED:
                raise
        after = self.rows()
        left = self.wrong(after)
        assert left <= wrong, ("a row was damaged", left - wrong)
        if report is not None:
            written = {key for key in {*before, *after} if before.get(key) != after.get(key)}
            self._judge(report, settings, wrong, left, written, has_answers=not refused)

    def _judge(
        self, report: Any, settings: dict[str, Any], wrong: set[str], left: set[str], written: set[str], *,
        has_answers: bool,
    ) -> None:  # fmt: skip
        """Compare a report with what was wrong before, with what is now, and with what was written."""
        told, repaired = ({each.key for each in found} for found in (report.differences, report.repaired))
        assert told | repaired <= wrong, ("a false alarm", (told | repaired) - wrong, report)
        assert told <= left, ("told, but right", told - left, report)
        assert written <= (repaired if settings["repair"] else set()), ("written", written - repaired)
        if settings["sample"] is None:
            assert left <= told | {*report.unsettled}, ("not told", left - told, report)
            assert not (report.equal and (left or self.open)), ("a false equal", left, self.open)
            if has_answers:
                assert not any(map(self._is_key, report.unsettled)), report
                if settings["repair"] and not self.open:
                    assert not any(map(self._is_key, left)), ("not repaired", left, report)

    def compared(self) -> None:
        """What `verify` says is what the model says; nothing is written."""
        before = self.rows()
        report = self.verify(resume=self.dice.random() < 0.5)
        assert report.equal == (not self.wrong(before)), report
        assert self.rows() == before

    def repaired(self) -> None:
        """The table is equal afterwards."""
        report = self.verify(repair=True, resume=self.dice.random() < 0.5)
        if report.unsettled:
            # Nobody can be asked for a text that is no key, so a person has to remove its row.
            assert not report.equal
            for key in report.unsettled:
                assert not self._is_key(key), report
                assert "by hand" in report.reasons[key]
                self.table.delete(key)
            report = self.verify(repair=True)
        assert report.equal, report
        assert not self.wrong(self.rows()), report


def with_columns(text: str | None, columns: Mapping[str, str | None]) -> str | None:
    """Return the document of a row; if its columns are not those of it, a text that no document has.

    Args:
        text: The document.
        columns: The texts of the columns of `DECLARED`; none for a table without them.
    """
    try:
        document = {} if text is None else json.loads(text)
    except ValueError:
        return text
    try:
        held = {name: json.loads(value or "null") for name, value in columns.items()}
        is_right = isinstance(document, dict) and held == {name: document.get(name) for name in held}
    except ValueError:
        is_right = False
    return text if is_right else json.dumps({"document": text, "columns": columns})


@contextmanager
def _one_clock() -> Iterator[None]:
    """Let `verify` allow for no error of a clock, because both sides have that of this machine."""
    with patch.multiple(source_room, _CLOCK_ERROR=0.0, _IDLE_SECONDS=0.0):
        yield


def _says(rows: Sequence[ModelRow], document: dict[str, Any] | None) -> bool:
    """Return whether the rows of a key say what a document is, or that there is none.

    A tombstone has nothing of its document.
    """
    if any(row.deleted and row.text is not None for row in rows):
        return False
    live = [row for row in rows if not row.deleted]
    if document is None or not live:
        return document is None and not live
    with suppress(ValueError):
        return bool(json.loads(live[0].text or "") == json.loads(encode_json(document)))
    return False
