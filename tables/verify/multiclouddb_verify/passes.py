"""Compares a table again and again, so that it is known at any time how old the oldest proof of a row is.

A pass is a comparison of the whole table, and its scan may take as long as the rate wants. When the rows of
the source have been read, the stream brings them up to the position that the sink has then; only then is the
table read. So a pass judges every row as the table had it at the end of the pass, however long the scan took,
and finds damage that was done before that.

A part of the source's rows cannot be compared alone. The segments of a scan are parts of a hash or a token
range that only the service knows, so it is not known which rows of the table belong to one, and a row that
only the table has would belong to none.

What is kept between the passes is one small file: when every row was compared, and when the next pass begins.
A pass that was interrupted is no proof: it leaves what `verify` takes up, which is the reading of the source.
"""

from __future__ import annotations

import json
import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Unpack

import attrs

from multiclouddb_api import (
    ChangeFeedPage,
    ErrorCategory,
    ErrorDetail,
    MulticloudDbClient,
    MulticloudDbError,
    ResourceAddress,
    invalid_request,
)
from multiclouddb_api.redaction import rfc3339
from multiclouddb_api.validators import check_type
from multiclouddb_spi.token_report import is_in_snapshot
from multiclouddb_tables.contract import Target
from multiclouddb_verify.report import Report
from multiclouddb_verify.source import Source
from multiclouddb_verify.state_folder import FILE_MODE, locked, translated
from multiclouddb_verify.verification import Verification, VerifySettings, checked

__all__ = ["Passes", "Standing", "verify_every"]

_FILES: Final = re.compile(r"lock|proof\.json(\.new)?|run")
_LONGER: Final = 1.1
"""By how much longer than the pass before a pass may take and still end in time."""
_WAITS: Final = (1.0, 300.0)
"""The shortest and the longest time between two tries while a side does not answer, in seconds."""
_NAP: Final = 60.0
_LOG: Final = logging.getLogger("multiclouddb.verify")


@attrs.frozen
class Standing:
    """What is known of a table that is compared again and again."""

    proved_at: datetime | None
    """Every row was compared with its source after this time of this machine's clock, and is equal or counted
    in `differences`. None as long as no pass has compared every row."""
    differences: int
    """The number of differences that the last pass has left."""
    healed: int
    """The number of rows that were repaired, by all passes together."""
    next_at: datetime
    """When the next pass begins."""
    report: Report | None
    """The report of the last pass; None before the first pass of this call."""

    def age_seconds(self) -> float | None:
        """Return the age of the oldest proof of a row now, in seconds; None if there is none."""
        return None if self.proved_at is None else (datetime.now(UTC) - self.proved_at).total_seconds()

    def to_dict(self) -> dict[str, Any]:
        """Return the standing as a dictionary of JSON's own types."""
        return {
            "proved_at": None if self.proved_at is None else rfc3339(self.proved_at),
            "age_seconds": self.age_seconds(),
            "differences": self.differences,
            "healed": self.healed,
            "next_at": rfc3339(self.next_at),
            "report": None if self.report is None else self.report.to_dict(),
        }


def verify_every(
    client: MulticloudDbClient,
    address: ResourceAddress | str,
    target: Target,
    every: timedelta,
    **settings: Unpack[VerifySettings],
) -> Iterator[Standing]:
    """Compare a table again and again, so that no row's proof is older than a period.

    Each pass is a call of `verify`, which reads every row of the source once, at `max_scan_rate`. A pass
    begins early enough to end within `every` after the previous pass, even if it takes a tenth longer than
    the previous pass. If passes take too long for this, they follow one another without a pause, and
    `Standing.proved_at` shows how old the proof is.

    Errors that may pass, such as throttling, make a pass longer; all others are raised. If the process is
    killed, call it again in the same way: the open pass goes on with the source where it was, reads the table
    again, and judges each difference again.

    A proof is valid for this comparison alone. It is forgotten if the collection is created again, if a
    setting that may change the verdict has another value, or with another version of this package or the
    provider.

    Args:
        client: The client of the source.
        address: The collection, or its text.
        target: The table.
        every: The period.
        **settings: See `VerifySettings`. `state` is required, and the folder is kept; `position` must be a
            function, because the sink moves, or None; `transform` needs `transform_name`; `sample`,
            `keys` and `partition_key` are refused; `resume` is always on.

    Returns:
        An endless iterator, which gives what is known at the beginning and after each pass.

    Raises:
        MulticloudDbError: As `verify`.
    """
    source = checked(client, address, target, Target, settings)
    check_type("every", every, timedelta)
    if every <= timedelta():
        raise invalid_request("every", f"is {every}", "give a period, such as timedelta(hours=24)")
    if settings.get("state") is None:
        raise invalid_request("state", "is missing", "give a folder that stays: it keeps what is proved")
    if isinstance(settings.get("position"), str):
        raise invalid_request(
            "position",
            "is a token, which stands still while the sink moves",
            "give a function that returns the newest one, such as stored_position(store, name), or "
            "--position @FILE or spark:CHECKPOINT",
        )
    for name in ("sample", "keys", "partition_key"):
        if settings.get(name) is not None:
            raise invalid_request(name, "is given, but every row is compared", "leave it out")
    if (settings.get("transform") is None) != (settings.get("transform_name") is None):
        raise invalid_request(
            "transform_name", "has to be given with transform, and only with it", "give both, or none"
        )
    return Passes(source, target, every, **settings).run()


class Passes:
    """The passes of `verify_every`.

    Args:
        source: The collection.
        target: The table.
        every: The period.
        pause: Waits for some seconds.
        clock: Returns the time in seconds.
        settings: The other arguments of `verify_every`.
    """

    def __init__(
        self,
        source: Source,
        target: Target,
        every: timedelta,
        *,
        pause: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.time,
        **settings: Any,
    ) -> None:
        self._source, self._target, self._every = source, target, every.total_seconds()
        self._pause, self._clock = pause, clock
        self._folder = Path(os.fspath(settings["state"]))
        self._settings = settings | {"state": self._folder / "run", "resume": True}

    def run(self) -> Iterator[Standing]:
        """Compare, until an error that does not pass."""
        wait, is_told = 0.0, False
        with closing(locked(self._folder, _FILES)):
            while True:
                began = self._clock()
                one = _Pass(
                    self._source, self._target, pause=self._pause, clock=self._clock, **self._settings
                )
                try:
                    one.look()
                    proof = self._proof(one.identity)
                    if not is_told:
                        is_told = True
                        yield proof.standing(None)
                    if proof.next_at > self._clock():
                        self._sleep_until(proof.next_at)
                        continue
                    report = one.run()
                except MulticloudDbError as error:
                    if not error.retryable:
                        raise
                    # One that has lasted longer than the wait before it has got on.
                    wait = _WAITS[0] if self._clock() - began > wait else min(2 * wait, _WAITS[1])
                    _LOG.warning("verify: %s; trying again in %.0f seconds", error, wait)
                    self._pause(wait)
                    continue
                wait = 0.0
                ended = self._clock()
                proof = self._proof(one.identity).after(one.compared_at, ended, report, self._every)
                proof = proof.known_at(ended, self._every)
                self._keep(proof, one.identity)
                yield proof.standing(report)

    def _sleep_until(self, moment: float) -> None:
        # A machine may sleep, and the clock may be set. After it was set back, the moment is more than a
        # period away; then `_proof` says how long to wait.
        while 0 < (left := moment - self._clock()) < self._every + _NAP:
            self._pause(min(left, _NAP))

    def _proof(self, identity: Mapping[str, str]) -> _Proof:
        """Return what the passes of this comparison have proved; a damaged file proves nothing."""
        now, path = self._clock(), self._folder / "proof.json"
        with translated(self._folder), suppress(FileNotFoundError):
            text = path.read_bytes()
            with suppress(ValueError, TypeError, KeyError):
                told = json.loads(text)
                if told["identity"] == identity:
                    stored = _Proof(**told["proof"])
                    known = stored.known_at(now, self._every)
                    if known != stored:
                        # Otherwise it would count again when a clock that was set back gets there, and the
                        # wait would begin again whenever it has ended.
                        self._keep(known, identity)
                    return known
            _LOG.warning("verify: what is in %s was proved by another comparison, and does not count", path)
        # The first pass begins now, also if it is killed, and goes on in another process.
        found = _Proof(proved_at=None, next_at=now, differences=0, healed=0)
        self._keep(found, identity)
        return found

    def _keep(self, proof: _Proof, identity: Mapping[str, str]) -> None:
        text = json.dumps({"identity": dict(identity), "proof": attrs.asdict(proof)})
        path = self._folder / "proof.json"
        with translated(self._folder):
            draft = os.open(f"{path}.new", os.O_CREAT | os.O_TRUNC | os.O_WRONLY, FILE_MODE)
            with os.fdopen(draft, "w") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(f"{path}.new", path)


def _moment(_: object, attribute: Any, value: Any) -> None:
    if type(value) not in (int, float):
        raise TypeError(attribute.name)


@attrs.frozen(kw_only=True)
class _Proof:
    """What the passes have proved, as it is kept; times in seconds since 1970.

    Attributes:
        proved_at: See `Standing`.
        next_at: When the next pass begins, or the open one was to begin.
        differences: See `Standing`.
        healed: See `Standing`.
    """

    proved_at: float | None = attrs.field(validator=attrs.validators.optional(_moment))
    next_at: float = attrs.field(validator=_moment)
    differences: int = attrs.field(validator=attrs.validators.instance_of(int))
    healed: int = attrs.field(validator=attrs.validators.instance_of(int))

    def known_at(self, now: float, every: float) -> _Proof:
        """Return what counts now: nothing was proved in the future, and no wait is longer than a period."""
        proved_at = self.proved_at if self.proved_at is None or self.proved_at <= now else None
        return attrs.evolve(self, proved_at=proved_at, next_at=min(self.next_at, now + every))

    def after(self, compared_at: float, ended: float, report: Report, every: float) -> _Proof:
        """Return what is proved after a pass: nothing new, if it has not compared every row."""
        counts = report.counts
        is_whole = not counts.unsettled and not counts.behind
        took = max(ended - self.next_at, 0.0)
        return _Proof(
            proved_at=compared_at if is_whole else self.proved_at,
            next_at=max(compared_at + every - _LONGER * took, ended),
            differences=sum(counts.differences.values()),
            healed=self.healed + counts.repaired,
        )

    def standing(self, report: Report | None) -> Standing:
        proved, following = self.proved_at, datetime.fromtimestamp(self.next_at, UTC)
        proved_at = None if proved is None else datetime.fromtimestamp(proved, UTC)
        return Standing(proved_at, self.differences, self.healed, following, report)


class _Pass(Verification):
    """One pass.

    Attributes:
        identity: On what the comparison depends; set by `look`.
        compared_at: A time before the table was read; a change of the table before it has been seen.
    """

    identity: dict[str, str]
    compared_at: float

    def look(self) -> tuple[str, dict[str, str]]:
        self.compared_at = self._sides.clock()
        # K is moved only with deletes, and the versions before it are not needed then.
        self._sides.folds = self._sides.source.has_deletes
        first, self.identity = super().look()
        return first, self.identity

    def _checked(self, first: str) -> ChangeFeedPage:
        if is_in_snapshot(first):
            raise MulticloudDbError(
                "position: is inside the sink's own snapshot; the pass begins when that has ended",
                ErrorDetail(ErrorCategory.TRANSIENT_FAILURE, retryable=True),
            )
        return super()._checked(first)

    def _compare_sides(self) -> None:
        """Read the source, move K to where the sink is by then, and compare."""
        self._read_source()
        at, now = self._sides.clock(), self._sides.first_position()
        # Without deletes, an old reading of the source cannot be brought up to date. While the sink is inside
        # a snapshot of its own, only what an earlier position says is right.
        if self._sides.source.has_deletes and not is_in_snapshot(now):
            self._move_to(now)
            self.compared_at = at
        super()._compare_sides()
