"""Lives of a table and its source, judged by a model that knows both and shares nothing with `verify`.

The model reads the rows of the table itself, with their texts, and compares them with the documents that
were written. Between two runs of `verify` anything happens to the table: rows are damaged, it goes back to
an older version, it is made again; the collection is made again; a run is killed, and its folder is copied
or put back; look-ups are refused. After each run, the verdict must be that of the model, and no row that was
right may be worse.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol

import attrs

from multiclouddb_api import (
    ChangeFeedPage,
    ChangeFeedRequest,
    ErrorCategory,
    ErrorDetail,
    FromContinuationToken,
    MulticloudDbError,
    ResourceAddress,
    encode_json,
)
from multiclouddb_verify import Target, verify

__all__ = ["Life", "ModelRow", "ModelSource", "ModelTable"]

_STEPS: Final = 9
_BLOCKED: Final = "~"
_SPELLINGS: Final[Sequence[Callable[[str], str]]] = (
    lambda text: text.replace(":", ": ", 1),
    lambda text: "{ " + text[1:],
    lambda text: text[:-1] + "," + text[1:],
    lambda text: text.replace('id"', 'ID"', 1),
    lambda text: text.strip('{"}'),
    lambda text: "\u00e4" + text,
)


@attrs.frozen
class ModelRow:
    """A row of the table as it is stored."""

    key: str
    order_key: str
    text: str | None
    deleted: bool


class ModelSource(Protocol):
    """A collection, which is written with the vendor's own calls.

    Attributes:
        client: The client that reads it.
        address: Its address.
        start: Where the sink begins.
    """

    client: Any
    address: ResourceAddress
    start: Any

    def key(self, name: str) -> dict[str, Any]:
        """Return the components of the key of a document."""

    def write(self, name: str, number: int) -> dict[str, Any]:
        """Write a document, and return what the feed delivers of it."""

    def remove(self, name: str) -> None:
        """Remove a document."""

    def recreate(self) -> None:
        """Drop the collection, and make an empty one of the same name."""


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
    """A client whose look-ups of some keys are refused, as by a gateway; everything else is passed on."""

    def __init__(self, client: Any, refuses: Callable[[str], bool]) -> None:
        self._client, self._refuses = client, refuses

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def lookup(self, address: Any, keys: Any, *args: Any, **settings: Any) -> Any:
        """Refuse the look-up if it asks for one of the keys."""
        keys = list(keys)
        if any(self._refuses(encode_json(dict(key.components)).decode()) for key in keys):
            raise MulticloudDbError(
                "401 Unauthorized: the gateway cannot be asked for this id",
                ErrorDetail(ErrorCategory.AUTHENTICATION_FAILED, "model", "lookup"),
            )
        return self._client.lookup(address, keys, *args, **settings)


class Life:
    """A source, its sink and a table, and the model of what is in them.

    Args:
        seed: The seed of what happens.
        folder: An empty folder.
        source: The collection, which is empty.
        table: The table, which does not exist yet.
        settings: Further settings of `verify`.
    """

    def __init__(
        self, seed: int, folder: Path, source: ModelSource, table: ModelTable, **settings: Any
    ) -> None:
        self.dice = random.Random(f"model {seed}")
        self.source, self.table, self.settings = source, table, settings
        self.state, self.copy = folder / "state", folder / "copy"
        self.number, self.token = 0, ""
        self.documents: dict[str, dict[str, Any]] = {}
        self._fill()

    def live(self) -> None:
        """Let things happen, and judge every verdict."""
        happenings = [
            *[self.damage] * 4, self.table_goes_back, self.killed, self.killed, self.repaired_without_answers,
            self.rebuild_table, self.recreate_source,
        ]  # fmt: skip
        for _ in range(_STEPS):
            if self.dice.random() < 0.4:
                self.change()
                self.sink()
            self.dice.choice(happenings)()
            if self.dice.random() < 0.5:
                self.dice.choice([self.compared, self.repaired])()
        self.repaired()
        self.compared()

    # -- The application and the sink

    def _fill(self) -> None:
        self.documents, self.token = {}, ""
        self.start = self.source.start
        for number in range(self.dice.randint(25, 40)):
            self.write(f"o-{number}")
        self.sink()

    def write(self, name: str) -> None:
        """Write a new version of a document."""
        self.number += 1
        self.documents[name] = self.source.write(name, self.number)

    def change(self) -> None:
        """Write and remove some documents."""
        for _ in range(self.dice.randint(0, 6)):
            name = f"o-{self.dice.randrange(45)}"
            if name in self.documents and self.dice.random() < 0.4:
                self.source.remove(name)
                del self.documents[name]
            else:
                self.write(name)

    def sink(self) -> None:
        """Merge pages until the feed is idle."""
        while True:
            start = FromContinuationToken(self.token) if self.token else self.start
            page = self.source.client.read_changes(ChangeFeedRequest(self.source.address, start))
            self.table.merge(page)
            self.token = page.continuation_token
            if page.idle:
                return

    # -- The model

    def key(self, name: str) -> str:
        """Return the text of a key, as the sink writes it."""
        return encode_json(self.source.key(name)).decode()

    def right_rows(self) -> set[str]:
        """Return the keys of the rows that say what the source says."""
        rows, right = self.table.rows(), set[str]()
        names = {self.key(name): name for name in self.documents}
        for row in rows:
            name = names.get(row.key)
            if name is None or row.deleted or row.text is None or row.order_key >= _BLOCKED:
                continue
            with suppress(ValueError):
                if json.loads(row.text) == json.loads(encode_json(self.documents[name])):
                    right.add(row.key)
        return {key for key in right if sum(row.key == key for row in rows) == 1}

    def equal(self) -> bool:
        """Return whether the live rows are the documents, each once, under the key that the sink writes."""
        right = self.right_rows()
        live = [row.key for row in self.table.rows() if not row.deleted or row.order_key >= _BLOCKED]
        return right == {self.key(name) for name in self.documents} and sorted(live) == sorted(right)

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
        self.table.delete(self._some_key())

    def _change_row(self) -> None:
        self.table.update(self._some_key(), text='{"n":-1}')

    def _bury(self) -> None:
        self.table.update(self._some_key(), text=None, deleted="now")

    def _haunt(self) -> None:
        self.table.add(ModelRow(self.key(f"ghost-{self.dice.randrange(9)}"), "0", '{"n":0}', False))

    def _respell(self) -> None:
        """Add a row whose key is another spelling of a document's key, or of none, or no key at all."""
        text = self.key(self.dice.choice([*sorted(self.documents), "nobody"]))
        self.table.add(ModelRow(self.dice.choice(_SPELLINGS)(text), "0", '{"n":0}', False))

    def _double(self) -> None:
        self.table.add(ModelRow(self._some_key(), "0", '{"n":0}', False))

    def _block(self) -> None:
        self.table.update(self._some_key(), order_key=_BLOCKED)

    def table_goes_back(self) -> None:
        """Set the table back to an older version."""
        self.table.go_back(self.dice)

    def rebuild_table(self) -> None:
        """Make the table again from the beginning of the feed."""
        self.table.drop()
        self.token = ""
        self.sink()

    def recreate_source(self) -> None:
        """Make the collection again, with another table."""
        self.source.recreate()
        self.table.drop()
        self._fill()

    # -- verify

    def verify(self, **settings: Any) -> Any:
        """Run `verify` while nothing changes."""
        client = settings.pop("client", self.source.client)
        settings = {
            "position": self.token, "state": self.state, "patience_seconds": 0.0, "force": True,
            **self.settings, **settings,
        }  # fmt: skip
        return verify(client, self.source.address, self.table.target(), **settings)

    def killed(self) -> None:
        """Run `verify`, which dies at a random moment; keep or copy its folder, or put an older copy back."""
        after = self.dice.randrange(12)

        def die(_: object) -> None:
            nonlocal after
            after -= 1
            if after < 0:
                raise KilledError

        with suppress(KilledError):
            self.verify(on_progress=die, repair=self.dice.random() < 0.5, resume=self.dice.random() < 0.5)
        if self.state.exists() and self.dice.random() < 0.3:
            shutil.rmtree(self.copy, ignore_errors=True)
            shutil.copytree(self.state, self.copy)
        elif self.copy.exists() and self.dice.random() < 0.5:
            shutil.rmtree(self.state, ignore_errors=True)
            shutil.copytree(self.copy, self.state)

    def compared(self) -> None:
        """What `verify` says is what the model says; nothing is written."""
        before = sorted(map(str, self.table.rows()))
        report = self.verify(resume=self.dice.random() < 0.5)
        assert report.equal == self.equal(), report
        assert sorted(map(str, self.table.rows())) == before

    def repaired(self) -> None:
        """The table is equal afterwards, and no row that was right is worse."""
        before = self.right_rows()
        report = self.verify(repair=True, resume=self.dice.random() < 0.5)
        if report.unsettled:
            # Nobody can be asked for a text that is no key, so a person has to remove its row.
            assert not report.equal
            for key in report.unsettled:
                assert not key.startswith("{"), report
                assert "by hand" in report.reasons[key]
                self.table.delete(key)
            report = self.verify(repair=True)
        assert report.equal, report
        assert self.equal(), report
        assert before <= self.right_rows()

    def repaired_without_answers(self) -> None:
        """What nobody could ask for is neither repaired nor called equal."""
        refused = {self.key(name) for name in self.dice.sample(sorted(self.documents), 9)}
        everything = self.dice.random() < 0.3
        client = RefusingClient(self.source.client, lambda key: everything or key in refused)
        before, was_equal = self.right_rows(), self.equal()
        try:
            report = self.verify(client=client, repair=True)
        except MulticloudDbError as error:
            if error.category != ErrorCategory.AUTHENTICATION_FAILED:
                raise
        else:
            # What could not be asked for may be unsettled, although it is equal.
            assert self.equal() or not report.equal, report
        assert before <= self.right_rows()
        assert self.equal() or not was_equal
