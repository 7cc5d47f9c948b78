"""Runs the mirrors of one file: a connection, and the tables that follow its collections."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import nullcontext
from operator import itemgetter
from pathlib import Path
from threading import Event, Lock
from typing import Any, Final, TypeAlias, Unpack

import attrs

from multiclouddb_api import (
    Capability,
    ClientConfig,
    ErrorCategory,
    ErrorDetail,
    MulticloudDbClient,
    MulticloudDbError,
    ResourceAddress,
    invalid_request,
)
from multiclouddb_api.config import config_of, from_environment, toml_of
from multiclouddb_api.validators import path_here, unknown_name
from multiclouddb_mirror.destinations import Shared, destination_among, destination_of
from multiclouddb_mirror.mirroring import Mirror, is_outage, page_bounds
from multiclouddb_mirror.proving import ProvedMirror
from multiclouddb_mirror.report import MirrorProgress, MirrorReport
from multiclouddb_mirror.settings import MirrorSettings
from multiclouddb_mirror.sharing import SharedReading
from multiclouddb_mirror.table_reading import TableReading
from multiclouddb_spi.faults import unexpected

__all__ = ["MirrorFile", "MirrorJob", "Mirrors", "Outcome"]

_KEYS: Final = ("collection", "target", "position", "columns")
_ALL: Final = "*"
_FILLED: Final = ("database", "collection")
"""What stands for a name, in braces, in an entry with `*`."""
_BRACES: Final = re.compile(r"\{([A-Za-z_]\w*)\}")
_SECRET: Final = re.compile(r"://.*@|password\s*=\s*(?:'(?:\\.|[^'\\])*'|\S+)", re.DOTALL)
"""What may be a password, in which braces are braces."""
_AGAIN_SECONDS: Final = 60.0
"""How long a mirror that follows rests after it has tried to reach a server for five minutes. A process with
one table ends then, and what has started it starts it again; this one goes on for its other tables. And how
often it looks for new collections."""
_NAME: Final = re.compile(r"\w+(?:\.\w+)?")
"""The name of a table of PostgreSQL, which is told where the rest of its text may have a secret."""
_MOST: Final = 10_000
"""More threads than there are collections; each is made when it is needed."""


@attrs.frozen
class MirrorJob:
    """One collection, and the table that follows it."""

    address: ResourceAddress
    """The collection."""
    target: str = attrs.field(repr=False)  # it may contain a password
    """The table, as in `mirror`."""
    position: str | None = None
    """As in `mirror`."""
    columns: Path | None = None
    """The file with the declaration of its columns; None if there is none."""
    is_listed: bool = False
    """True if its entry names every collection of a database, so that one reading may serve them all."""
    refusal: MulticloudDbError | None = attrs.field(default=None, eq=False, repr=False)
    """Why its table cannot be written beside those of the other entries; None if it can."""

    def check(self) -> None:
        """Raise the refusal, if there is one."""
        if self.refusal is not None:
            raise self.refusal

    @property
    def table(self) -> str:
        """The name of the table, without secrets, also if the text names none that can be used."""
        try:
            return destination_of(self.target).name
        except MulticloudDbError:
            kind, _, rest = self.target.partition(":")
            if kind in ("sqlite", "delta") and "@" not in self.target:
                return self.target
            # Two tables of one collection are told apart, and what may be a part of a password is not shown.
            place, _, name = rest.rpartition("#")
            is_name = kind == "postgres" and place and _NAME.fullmatch(name)
            return f"{kind[:20]}:…" + (f"#{name}" if is_name else "")


@attrs.frozen
class MirrorFile:
    """A TOML file with a connection, as `ClientConfig.from_toml` reads it, and an entry for each table.

    Each `[[table]]` has `collection`, `target` and, if the position is not stored with the table, `position`;
    `columns` is the file with its columns, from the folder of this one.
    `collection = "shop/*"` names every collection of a database, and `"*"` every one of the service; then
    `{database}` and `{collection}` in `target` and `position` stand for the names. `{ env = "NAME" }` in
    place of a text is replaced by the environment variable.
    """

    config: ClientConfig
    """The connection."""
    entries: Sequence[Mapping[str, str]] = attrs.field(repr=False)
    """The entries as they stand in the file."""
    path: Path
    """The file."""

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> MirrorFile:
        """Read a file.

        Args:
            path: The file.

        Raises:
            MulticloudDbError: `INVALID_REQUEST`, with the file and the key, as `ClientConfig.from_toml`, and
                if it has no table, or an entry that is not complete.
        """
        place = path_here("path", path)
        read = toml_of(place)
        tables, file = read.pop("table", None), f"file {place.name}"
        if not isinstance(tables, list) or not tables:
            way_out = 'add [[table]] with the lines collection = "…" and target = "…"'
            raise invalid_request(file, "has no table to mirror", way_out)
        return cls(config_of(read, place.name), [_entry(place.name, each) for each in tables], place)

    @property
    def lists(self) -> bool:
        """True if an entry names all collections, of which there may be others later."""
        return any(each["collection"].rpartition("/")[2] == _ALL for each in self.entries)

    def jobs(self, client: MulticloudDbClient) -> list[MirrorJob]:
        """Return what is to be done now; the collections of `*` are listed at each call.

        Args:
            client: The client of the connection.

        Raises:
            MulticloudDbError: `INVALID_REQUEST` if two collections would have the same table, and `NOT_FOUND`
                if a `*` names no collection. Two Delta tables of which one is in the folder of the other are
                refused alone, by `MirrorJob.refusal`.
        """
        found = list[MirrorJob]()
        for entry in self.entries:
            target, position = entry["target"], entry.get("position")
            columns = self.path.parent / entry["columns"] if "columns" in entry else None
            database, _, collection = entry["collection"].rpartition("/")
            if collection != _ALL:
                found.append(MirrorJob(ResourceAddress.parse(entry["collection"]), target, position, columns))
                continue
            addresses = client.collections(database or None)
            if not addresses:
                raise MulticloudDbError(
                    f"collection: {entry['collection']} names no collection, because there is none in "
                    f"{database or 'the service'}; check the name, and the user's right to list collections",
                    ErrorDetail(ErrorCategory.NOT_FOUND),
                )
            for address in addresses:
                names = dict(zip(_FILLED, (address.database or "", address.collection or ""), strict=True))
                filled = _filled(target, names), position and _filled(position, names)
                found.append(MirrorJob(address, *filled, columns, is_listed=True))
        targets = list[str]()
        for job in found:
            if job.target in targets:
                raise invalid_request(
                    f"file {self.path.name}",
                    f"gives {job.address} the table of another collection",
                    "write {collection}, and if need be {database}, in its target",
                )
            targets.append(job.target)
        refusals = self._refusals(found)
        return [attrs.evolve(job, refusal=refusals.get(job.target)) for job in found]

    def _refusals(self, jobs: Sequence[MirrorJob]) -> Mapping[str, MulticloudDbError]:
        """Return why Delta tables are refused, by target: one in the folder of another, and that other.

        VACUUM of the outer one removes what is not its own.
        """
        folders = [(job.target.rstrip("/") + "/", job) for job in jobs if job.target.startswith("delta:")]
        folders.sort(key=itemgetter(0))
        found, around = dict[str, MulticloudDbError](), list[tuple[str, MirrorJob]]()
        for folder, inner in folders:
            while around and not folder.startswith(around[-1][0]):
                around.pop()
            if around:
                outer = around[-1][1]
                error = invalid_request(
                    f"file {self.path.name}",
                    f"puts the table of {inner.address} into the folder of the table of {outer.address}, and "
                    "VACUUM of that one, for example in Spark, removes all files that are not its own",
                    "give each table a folder beside the others",
                )
                for job in (outer, inner):
                    found.setdefault(job.target, error)
            around.append((folder, inner))
        return found


Outcome: TypeAlias = MirrorReport | MulticloudDbError
"""What became of one mirror: its report, or the error with which it ended."""


class Mirrors:
    """The mirrors of a file, of which one that fails does not stop the others.

    Tables whose entry names every collection of a database share one reading of it, where the database has
    `EntireDatabase()`; see the page *Mirror a table nightly*.

    Args:
        client: The client, which all of them use.
        jobs: The collections and their tables.
        on_end: Called in the order in which they end.
        on_page: Called after each page.
        on_pause: With `follow`, called when a server could not be reached for five minutes; the mirror is
            tried again every minute.
        find: With `follow`, called every minute: what it returns, and was not there before, is followed too.
            Its errors end all mirrors. Of two tables that are refused, one that is followed already goes on.
        prove_seconds: With `follow`, the time from one proof of a table to the next; one table is proved at a
            time.
        on_run: With `prove_seconds`, called after each proof and before it, as by `ProvedMirror`.
        **settings: The settings of `mirror` for each; without `follow` they run one after the other, apart
            from those that share a reading, and with it all at the same time.
    """

    def __init__(
        self,
        client: MulticloudDbClient,
        jobs: Sequence[MirrorJob],
        on_end: Callable[[MirrorJob, Outcome], None],
        *,
        on_page: Callable[[MirrorJob, MirrorProgress], None] | None = None,
        on_pause: Callable[[MirrorJob, MulticloudDbError], None] | None = None,
        find: Callable[[], Sequence[MirrorJob]] | None = None,
        prove_seconds: float | None = None,
        on_run: Callable[[MirrorJob, MirrorReport], None] | None = None,
        **settings: Unpack[MirrorSettings],
    ) -> None:
        self._client, self._jobs, self._settings = client, list(jobs), settings
        self._on_end, self._on_page, self._on_pause = on_end, on_page, on_pause
        self._follows = settings.get("follow", False)
        self._find = find if self._follows else None
        self._prove_seconds, self._on_run, self._proving = prove_seconds, on_run, Lock()
        self._stopped, self._lock, self._running = Event(), Lock(), set[Mirror | ProvedMirror]()
        self._shared = Shared()
        self._turn = nullcontext() if self._follows else Lock()
        """Held by who works alone: without `follow`, one at a time."""
        self._readings: dict[str, SharedReading] = self._made_readings()

    def _made_readings(self) -> dict[str, SharedReading]:
        """Return the readings that several tables share, by database."""
        options, scope = self._settings.get("provider_options"), Capability.CHANGE_FEED_DATABASE_SCOPE
        if self._settings.get("spark") or not self._client.capabilities(options).is_supported(scope):
            return {}
        page_events, wait_seconds = page_bounds(follows=self._follows)
        counts = Counter(job.address.database for job in self._jobs if job.is_listed)
        return {
            database: SharedReading(
                self._client,
                database,
                count,
                follows=self._follows,
                timeout_seconds=self._settings.get("timeout_seconds", 30.0),
                page_events=page_events,
                wait_seconds=wait_seconds,
                provider_options=options,
            )
            for database, count in counts.items()
            if database is not None and (count > 1 or self._find is not None)
        }

    def stop(self) -> None:
        """End each run after its page, and begin no other; any thread or signal handler may call this."""
        self._stopped.set()
        for each in tuple(self._running):
            each.stop()

    def run(self) -> list[Outcome]:
        """Run the mirrors, and return what became of each that has begun."""
        running = list[Future[Outcome | None]]()
        at_once = self._follows or self._readings
        with ThreadPoolExecutor(_MOST if at_once else 1, "multiclouddb-mirror") as pool:
            new, expected = self._jobs, True
            try:
                while new or not all(each.done() for each in running):
                    running += [pool.submit(self._run, job, expected) for job in new]
                    wait(running, None if self._find is None else _AGAIN_SECONDS)
                    new, expected = self._found(), False
            except BaseException:
                self.stop()
                raise
            finally:
                wait(running)
                for reading in self._readings.values():
                    reading.close()
        return [outcome for each in running if (outcome := each.result()) is not None]

    def _found(self) -> list[MirrorJob]:
        """Return what is there to be mirrored since the last time."""
        if self._find is None or self._stopped.is_set():
            return []
        new = [job for job in self._find() if job not in self._jobs]
        self._jobs += new
        return new

    def _run(self, job: MirrorJob, expected: bool) -> Outcome | None:
        shared = self._readings.get(job.address.database or "") if job.is_listed else None
        reading = TableReading(shared, self._turn, is_expected=expected)
        if shared is not None:
            try:
                return self._ran(job, reading)
            finally:
                reading.end()
        if not self._readings:
            return self._ran(job, reading)
        with self._turn:
            return self._ran(job, TableReading(None, None))

    def _ran(self, job: MirrorJob, reading: TableReading) -> Outcome | None:
        outcome: Outcome
        if self._stopped.is_set():
            return None
        try:
            job.check()
            outcome = self._follow(job, self._made(job, reading))
        except MulticloudDbError as error:
            outcome = error
        except Exception as error:  # noqa: BLE001 - else nobody is told of it before all the others have ended
            fault = unexpected(error)
            outcome = MulticloudDbError(f"mirror: {fault.message}", ErrorDetail(fault.category))
            outcome.__cause__ = error
        with self._lock:
            self._on_end(job, outcome)
        return outcome

    def _made(self, job: MirrorJob, reading: TableReading) -> Mirror | ProvedMirror:
        settings = self._settings.copy()
        if job.columns is not None:
            settings["columns"] = job.columns
        elif settings.get("columns") is None:
            settings["refill"] = False  # it is about the other tables of the file
        if (on_page := self._on_page) is not None:
            settings["on_progress"] = lambda progress: on_page(job, progress)
        table = destination_among(self._shared, job.target, job.position)

        def made(settings: MirrorSettings) -> Mirror:
            one = Mirror(self._client, job.address, table, **settings)
            one.reading = reading
            return one

        if self._prove_seconds is None:
            return made(settings)

        def ran(report: MirrorReport) -> None:
            if self._on_run is not None:
                self._on_run(job, report)

        return ProvedMirror(made, settings, self._prove_seconds, ran, self._proving)

    def _follow(self, job: MirrorJob, one: Mirror | ProvedMirror) -> MirrorReport:
        """Run a mirror, and again for as long as a server that it follows cannot be reached."""
        self._running.add(one)
        try:
            while True:
                if self._stopped.is_set():  # meanwhile
                    one.stop()
                try:
                    return one.run()
                except MulticloudDbError as error:
                    if not self._follows or not is_outage(error):
                        raise
                    if self._on_pause is not None:
                        self._on_pause(job, error)
                    if self._stopped.wait(_AGAIN_SECONDS):
                        raise
        finally:
            self._running.discard(one)


def _entry(file: str, table: Any) -> dict[str, str]:
    where = f"file {file}, table"
    if not isinstance(table, dict):
        raise invalid_request(where, "is not a TOML table", "begin it with the line [[table]]")
    for name in table:
        if name not in _KEYS:
            raise unknown_name(where, name, _KEYS)
    entry = {name: from_environment(file, f"table.{name}", value) for name, value in table.items()}
    for name in ("collection", "target"):
        if name not in entry:
            raise invalid_request(where, f"has no {name}", f'add the line {name} = "…"')
    for name, value in entry.items():
        if not isinstance(value, str):
            raise invalid_request(where, f"has a {name} that is no text", "put it in quotes")
    _check_braces(where, entry)
    return entry


def _check_braces(where: str, entry: Mapping[str, str]) -> None:
    """Refuse a name in braces that would become a part of the name of a folder or a table."""
    known = " and ".join(f"{{{each}}}" for each in _FILLED)
    fills = entry["collection"].rpartition("/")[2] == _ALL
    for name in ("target", "position"):
        for place in _BRACES.findall(_SECRET.sub("", entry.get(name, ""))):
            if not fills:
                raise invalid_request(
                    where,
                    f"has a {name} with {{{place}}}, but the entry names one collection",
                    f'write the name itself; {known} are filled in where collection is "*" or "DATABASE/*"',
                )
            if place not in _FILLED:
                raise invalid_request(
                    where, f"has a {name} with {{{place}}}, which is not known", f"known are {known}"
                )


def _filled(text: str, names: Mapping[str, str]) -> str:
    for name, value in names.items():
        text = text.replace(f"{{{name}}}", value)
    return text
