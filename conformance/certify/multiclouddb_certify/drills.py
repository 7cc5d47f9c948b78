"""Drills: what a service does slowly, as steps that are stored in a folder and picked up hours later.

A step may wait: then the drill ends, and `certify resume FOLDER` tries the step again. A step may be repeated
after a kill, so it compares states, never counts.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import attrs

from multiclouddb_api import (
    ChangeFeedPage,
    ErrorCategory,
    ErrorDetail,
    FromContinuationToken,
    Gap,
    MulticloudDbClient,
    MulticloudDbError,
    Now,
    OperationOptions,
    ResourceAddress,
    SkipToOldest,
    Snapshot,
    StartPosition,
    invalid_request,
)
from multiclouddb_certify.certification import Certification, DrillHarness, Run, load_certification
from multiclouddb_certify.private_files import make_private_folder, write_private
from multiclouddb_certify.report import versions
from multiclouddb_certify.run import DRILL_FILE, classified, drill_marker, remove_run
from multiclouddb_certify.source import check_storable, storable, url_of
from multiclouddb_certify.wire import Call, Meter, WireResponse, cost, dollars
from multiclouddb_conformance.collection import feed_request
from multiclouddb_conformance.harness import CollectionKind, Write

__all__ = ["DRILLS", "Drill", "DrillStep", "State", "Wait", "least_cost", "resume", "start"]

_PAGES: Final = 500
_READERS: Final = 4
_AT_REST: Final = {"100 RU/s for an hour": 8.0}
_GROWN: Final = {"100 RU/s for an hour": 114.0}
"""400 RU/s for the database; 400 for the container at first, and then 11,000."""


@attrs.frozen
class Wait:
    """A step that cannot go on yet.

    Attributes:
        reason: What the service has not done yet.
        hours: When it is worth trying again.
    """

    reason: str
    hours: float


@attrs.define
class State:
    """What is stored of a drill.

    Attributes:
        drill: The name of the drill.
        source: Where it runs: a URL without a secret, the path of a TOML file, or `env:NAME`.
        run: The name of its run.
        step: The number of the next step.
        data: What earlier steps kept: tokens, keys, times.
        told: A line for each step that ended.
        budget: The most that may be spent, in US dollars.
        usd: What was spent.
        hour: The last clock hour whose price is in `usd`; 0 before the collection exists.
        hourly: The price that was counted for this hour.
        ended: How the drill ended; None as long as it goes on.
    """

    drill: str
    source: str = attrs.field(validator=lambda *given: check_storable(given[2]))
    run: str
    step: int = 0
    data: dict[str, Any] = attrs.field(factory=dict)
    told: list[str] = attrs.field(factory=list)
    budget: float = 2.0
    usd: float = 0.0
    hour: int = 0
    hourly: float = 0.0
    ended: str | None = None

    @property
    def url(self) -> str:
        """The URL, which is read from the variable or the file each time."""
        return url_of(self.source)

    def save(self, folder: Path) -> None:
        """Store the state, for this user alone; a kill leaves the old one or the new one."""
        write_private(folder / DRILL_FILE, json.dumps(attrs.asdict(self), indent=2))


class DrillContext:
    """What a step works with: the harness for native calls, the library's client, and the stored data."""

    def __init__(
        self, certification: Certification, state: State, harness: DrillHarness, client: MulticloudDbClient,
        meter: Meter,
    ) -> None:  # fmt: skip
        self.certification, self.state, self.harness = certification, state, harness
        self.client, self.meter = client, meter

    @property
    def data(self) -> dict[str, Any]:
        """What earlier steps kept."""
        return self.state.data

    @property
    def address(self) -> ResourceAddress:
        """The collection of the drill."""
        return ResourceAddress(*self.data["address"])

    def create(self) -> None:
        """Create the collection of the drill."""
        address = self.harness.create("drill", CollectionKind.PLAIN, 1)
        self.data["address"] = [address.database, address.collection]

    def put(self, first: int, last: int) -> None:
        """Write the documents with these numbers."""
        for number in range(first, last):
            self.harness.write(self.address, [Write(f"k{number}", {"n": number})])

    def page(self, start: StartPosition | str, size: int = 0, **settings: Any) -> ChangeFeedPage:
        """Read one page."""
        position = FromContinuationToken(start) if isinstance(start, str) else start
        request = feed_request(self.harness, self.address, position, size, **settings)
        return self.client.read_changes(request, OperationOptions(timeout_seconds=60, wait_seconds=1))

    def drain(self, start: StartPosition | str, until: int, **settings: Any) -> tuple[set[int], int, str]:
        """Read until the document `until` came; return the numbers, the count of gaps, and the last token."""
        numbers: set[int] = set()
        gaps = 0
        for _ in range(_PAGES):
            page = self.page(start, **settings)
            start = page.continuation_token
            gaps += sum(isinstance(notice, Gap) for notice in page.notices)
            numbers |= {
                int((event.new_item_state or {})["n"]) for event in page.events if event.new_item_state
            }
            if until in numbers and page.idle:
                break
        return numbers, gaps, str(start)

    def count_hours(self) -> None:
        """Count what the collection has cost since the last count, also while no process looked."""
        if "address" not in self.data:
            return
        prices = {each.unit: each.usd for each in self.certification.prices}
        hourly, hour = cost(self.harness.hourly_units(self.address), prices), int(time.time() // 3600)
        missing = max(0.0, hourly - self.state.hourly)  # the largest throughput of an hour is billed
        if hour > self.state.hour:
            missing = hourly * (hour - self.state.hour if self.state.hour else 1)
            self.state.hour, self.state.hourly = hour, hourly
        self.state.hourly = max(self.state.hourly, hourly)
        self.meter.spent += missing

    def check(self, found: object, wanted: object, what: str) -> None:
        """Fail the drill unless both are equal."""
        if found != wanted:
            raise MulticloudDbError(
                f"certify: the drill failed: {what}: {found} instead of {wanted}",
                ErrorDetail(ErrorCategory.PERMANENT_FAILURE),
            )


@attrs.frozen
class DrillStep:
    """One step."""

    text: str
    act: Callable[[DrillContext], Wait | None]


@attrs.frozen
class Drill:
    """What a service does slowly.

    Attributes:
        provider: The provider's id.
        about: What it shows.
        hours: After how many hours it expires.
        steps: The steps, in order.
        least: The units that it uses at least and that are billed by the hour.
    """

    provider: str
    about: str
    hours: float
    steps: Sequence[DrillStep]
    least: Mapping[str, float] = {}


def _written(stage: DrillContext) -> None:
    stage.create()
    stage.data["begin"] = stage.page(Now()).continuation_token
    stage.put(0, 20)
    page = stage.page(stage.data["begin"], 7)
    stage.data["read"] = sorted(int((event.new_item_state or {})["n"]) for event in page.events)
    stage.data["half"] = page.continuation_token


def _rolled_over(stage: DrillContext) -> Wait | None:
    if stage.harness.closed_shards(stage.address):
        return None
    return Wait("no shard of the stream has closed yet; the service closes one after about four hours", 4.5)


def _read_on(stage: DrillContext) -> None:
    stage.put(20, 25)
    numbers, gaps, token = stage.drain(stage.data["half"], 24)
    stage.check(sorted(numbers | set(stage.data["read"])), list(range(25)), "the changes of the documents")
    stage.check(gaps, 0, "the number of gaps")
    stage.data["end"] = token


def _expired(stage: DrillContext) -> Wait | None:
    try:
        stage.page(stage.data["begin"])
    except MulticloudDbError as error:
        if error.category == ErrorCategory.CHECKPOINT_EXPIRED:
            return None
        raise
    return Wait("the first changes are still kept; the service removes them after 24 hours", 24.5)


def _skipped(stage: DrillContext) -> None:
    stage.put(25, 30)
    numbers, gaps, _ = stage.drain(stage.data["begin"], 29, on_expired=SkipToOldest())
    stage.check(gaps > 0, True, "a gap is reported")
    stage.check(set(range(25, 30)) <= numbers, True, "what was written after the gap comes")


def _copied(stage: DrillContext) -> None:
    numbers, _, _ = stage.drain(Snapshot(), 29)
    stage.check(sorted(numbers), list(range(30)), "the rows of a new snapshot")


def _grown(stage: DrillContext) -> None:
    stage.harness.grow(stage.address)


def _split(stage: DrillContext) -> Wait | None:
    if (count := _ranges(stage)) > 1:
        stage.data["ranges"] = count
        return None
    return Wait("the container still has one partition; a split takes minutes to hours", 0.5)


def _ranges(stage: DrillContext) -> int:
    return len(list(stage.client.list_physical_partitions(stage.address)))


def _merged(stage: DrillContext) -> Wait | None:
    if _ranges(stage) < stage.data["ranges"]:
        return None
    command = (
        "az cosmosdb sql container merge --account-name ACCOUNT --resource-group GROUP "
        f"--database-name {stage.address.database} --name"
    )
    return Wait(f"no ranges were merged yet; merge them: {command} {stage.address.collection}", 0.5)


def _merge_refused(stage: DrillContext) -> None:
    try:
        stage.drain(stage.data["half"], 19)
    except MulticloudDbError as error:
        stage.check(str(error.category), str(ErrorCategory.PERMANENT_FAILURE), "the category of the error")
        stage.check("without merges" in error.message, True, "the error names the way out")
        return
    stage.check("it was read", "it is refused", "a feed of merged ranges")


def _written_there(stage: DrillContext) -> None:
    _written(stage)
    stage.data["writer"] = stage.harness.writer()


def _stepped_down(stage: DrillContext) -> None:
    if stage.harness.writer() == stage.data["writer"]:
        stage.harness.step_down()


def _moved(stage: DrillContext, how: str) -> Wait | None:
    if (before := stage.data["writer"]) != stage.harness.writer():
        return None
    return Wait(f"{before} still takes the writes; {how}", 0.1)


def _elected(stage: DrillContext) -> Wait | None:
    return _moved(stage, "wait for the election, or on Atlas choose Test Failover for the cluster")


def _failed_over(stage: DrillContext) -> Wait | None:
    return _moved(
        stage,
        "change the order of the regions: az cosmosdb failover-priority-change --name ACCOUNT "
        "--resource-group GROUP --failover-policies OTHER=0 FIRST=1",
    )


def _credentials_expired(stage: DrillContext) -> Wait | None:
    try:
        stage.page(stage.data["half"])
    except MulticloudDbError as error:
        if error.category != ErrorCategory.AUTHENTICATION_FAILED:
            raise
        stage.data["refused"] = True
        return Wait("the credentials have expired, as they should; set new ones", 0)
    if stage.data.get("refused"):
        return None
    return Wait("the credentials are still valid; the shortest session of a role lasts 15 minutes", 0.25)


def _read_by_four(stage: DrillContext) -> None:
    """Each reader has a client of its own, and so reads each shard beside the others."""

    def read(number: int) -> list[int]:
        del number
        with stage.certification.client(stage.state.url) as client:
            reader = DrillContext(stage.certification, stage.state, stage.harness, client, stage.meter)
            numbers, gaps, _ = reader.drain(stage.data["begin"], 24)
        stage.check(gaps, 0, "the number of gaps")
        return sorted(numbers)

    with ThreadPoolExecutor(_READERS) as pool:
        reads = pool.map(read, range(_READERS))
        stage.put(20, 25)
        for numbers in reads:
            stage.check(numbers, list(range(25)), "the changes that one of four readers has read")


def _added(stage: DrillContext) -> None:
    stage.harness.alter(stage.address, column=True)
    stage.put(20, 22)


def _dropped(stage: DrillContext) -> None:
    stage.harness.alter(stage.address, column=False)
    stage.put(22, 25)


DRILLS: Final[Mapping[str, Drill]] = {
    "rollover": Drill(
        "dynamo",
        "a shard closes after four hours, and its changes expire after 24",
        72,
        (
            DrillStep("create a table, write 20 items, read a part", _written),
            DrillStep("wait until a shard has closed", _rolled_over),
            DrillStep("write on, and read from the old position: nothing is lost", _read_on),
            DrillStep("wait until the first position has expired", _expired),
            DrillStep("skip to the oldest change: a gap is reported, and the read goes on", _skipped),
            DrillStep("copy the table with a new snapshot: every item is there", _copied),
        ),
    ),
    "split": Drill(
        "cosmos",
        "a range splits because more throughput is provisioned",
        24,
        (
            DrillStep("create a container, write 20 items, read a part", _written),
            DrillStep("provision more throughput than one partition has", _grown),
            DrillStep("wait until the range has split", _split),
            DrillStep("write on, and read from the old position: nothing is lost", _read_on),
        ),
        _GROWN,
    ),
    "merged": Drill(
        "cosmos",
        "a container whose ranges were merged is refused, and the error names the way out",
        24,
        (
            DrillStep("create a container, write 20 items, read a part", _written),
            DrillStep("provision more throughput than one partition has", _grown),
            DrillStep("wait until the range has split", _split),
            DrillStep("wait until you have merged its ranges, in an account where that is enabled", _merged),
            DrillStep("read on: the service cannot, and the error says what to do", _merge_refused),
        ),
        _GROWN,
    ),
    "failover": Drill(
        "cosmos",
        "a feed goes on in another region",
        24,
        (
            DrillStep("create a container, write 20 items, read a part", _written_there),
            DrillStep("wait until you have made another region the one that takes the writes", _failed_over),
            DrillStep("write on there, and read from the old position: nothing is lost", _read_on),
        ),
        _AT_REST,
    ),
    "election": Drill(
        "mongo",
        "another member of the replica set becomes the primary",
        24,
        (
            DrillStep("create a collection, write 20 documents, read a part", _written_there),
            DrillStep("ask the primary to step down", _stepped_down),
            DrillStep("wait until another member is the primary", _elected),
            DrillStep("write on there, and read from the old position: nothing is lost", _read_on),
        ),
    ),
    "credentials": Drill(
        "dynamo",
        "credentials expire in the middle of a stream, and the read goes on with new ones",
        24,
        (
            DrillStep("with the session of a role, create a table, write 20 items, read a part", _written),
            DrillStep("wait until the credentials have expired and new ones are set", _credentials_expired),
            DrillStep("write on, and read from the old position: nothing is lost", _read_on),
        ),
    ),
    "throttling": Drill(
        "dynamo",
        "two readers too many of each shard slow the others, and none loses anything",
        24,
        (
            DrillStep("create a table, write 20 items, read a part", _written),
            DrillStep(
                "read everything with four readers at once, and write on: each reads all", _read_by_four
            ),
        ),
    ),
    "ddl": Drill(
        "spanner",
        "the schema changes under an open change stream",
        24,
        (
            DrillStep("create a table, write 20 rows, read a part", _written),
            DrillStep("add a column, and write on", _added),
            DrillStep("drop it, and write on", _dropped),
            DrillStep("read from the old position: nothing is lost", _read_on),
        ),
    ),
}
"""Maps each name to its drill."""


def least_cost(name: str, certification: Certification) -> float:
    """Return what a drill costs at least, in US dollars: the clock hour in which it begins to wait."""
    return cost(DRILLS[name].least, {each.unit: each.usd for each in certification.prices})


def start(name: str, source: str, folder: Path, budget: float) -> tuple[State, Certification, Run]:
    """Store a new drill in a folder; nothing has been created yet.

    Raises:
        MulticloudDbError: There is no such drill, it needs what cannot be automated, or the folder is in use.
    """
    drill = DRILLS.get(name)
    if drill is None:
        raise invalid_request("--drill", f"there is no drill {name!r}", f"choose one of {', '.join(DRILLS)}")
    check_storable(source)
    url = url_of(source)
    certification = load_certification(url)
    if certification.provider_id != drill.provider:
        own = [each for each, one in DRILLS.items() if one.provider == certification.provider_id]
        raise invalid_request(
            "URL",
            f"the drill {name!r} is one of {drill.provider}",
            f"choose one of {', '.join(own)}" if own else "no drill runs here",
        )
    with classified(certification, url):
        problem = certification.drill_problem(url, name)
    if problem is not None:
        raise MulticloudDbError(
            f"certify: the drill {name!r} cannot run here: {problem}",
            ErrorDetail(ErrorCategory.UNSUPPORTED_CAPABILITY),
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise invalid_request(
            "--folder", f"{folder} exists already", "name another folder, or resume it if it waits"
        )
    if budget < (usd := least_cost(name, certification)):
        raise invalid_request(
            "--budget", f"${budget:g} is too small for this drill", f"it has to be at least {dollars(usd)}"
        )
    run = Run.new(drill.hours)
    return State(name, storable(source), run.name, budget=budget), certification, run


def resume(folder: Path, state: State | None, tell: Callable[[str], None]) -> tuple[State, Wait | None]:
    """Do the next steps of a drill, until one has to wait or the last has ended; then remove everything.

    Args:
        folder: The folder of the drill.
        state: The state of a new drill; None to read the stored one.
        tell: Is called with a line for each step.

    Returns:
        The state, and what the drill waits for; None if it has ended.
    """
    file = folder / DRILL_FILE
    if state is None:
        if not file.exists():
            raise invalid_request("FOLDER", f"{folder} holds no drill", "name the folder of `certify start`")
        try:
            state = State(**json.loads(file.read_text()))
            DRILLS[state.drill]
        except (KeyError, TypeError, ValueError):
            raise invalid_request("FOLDER", f"{file} cannot be read", "start the drill again") from None
        if state.ended is not None:
            raise invalid_request(
                "FOLDER", f"the drill in {folder} has ended: {state.ended}", "start one in another folder"
            )
    certification = load_certification(state.url)
    run = Run.of(f"mcdb-certify-{state.run}")
    assert run is not None
    if run.expires < datetime.now(UTC):
        remove_run(certification, state.url, run)
        _end(folder, run, state, "it expired and was removed")
        raise MulticloudDbError(
            f"certify: the drill expired at {run.expires:%Y-%m-%d %H:%M} UTC and was removed; start it again",
            ErrorDetail(ErrorCategory.CHECKPOINT_EXPIRED),
        )
    drill = DRILLS[state.drill]
    make_private_folder(folder)
    state.save(folder)
    drill_marker(run).parent.mkdir(parents=True, exist_ok=True)
    write_private(drill_marker(run), str(folder.absolute()))
    try:
        # A harness raises the errors of the vendor's SDK.
        if state.step == 0:  # a first step that was killed may have left something
            remove_run(certification, state.url, run)
        with classified(certification, state.url), _stage(certification, state, run) as stage:
            for step in drill.steps[state.step :]:
                tell(f"{state.step + 1}. {step.text}")
                wait = step.act(stage)
                stage.count_hours()
                state.usd = stage.meter.spent
                if wait is not None:
                    state.save(folder)
                    return state, wait
                state.told.append(f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC: {step.text}")
                state.step += 1
                state.save(folder)
    except MulticloudDbError as error:
        if error.category == ErrorCategory.PERMANENT_FAILURE:
            remove_run(certification, state.url, run)
            _end(folder, run, state, error.message)
        raise
    remove_run(certification, state.url, run)
    _end(folder, run, state, "it passed")
    return state, None


@contextmanager
def _stage(certification: Certification, state: State, run: Run) -> Iterator[DrillContext]:
    """Open the harness and the client; the requests are counted, and what was created stays."""

    def bound() -> None:
        raise MulticloudDbError(
            f"certify: the drill has spent its budget of ${state.budget:g}; it was removed",
            ErrorDetail(ErrorCategory.PERMANENT_FAILURE),
        )

    def units_of(call: Call, answer: WireResponse) -> Mapping[str, float]:
        """Leave out what a run counts by the hour; `count_hours` knows the hours between two processes."""
        found = certification.units_of(call, answer)
        return {unit: number for unit, number in found.items() if unit not in certification.fixed_units(0)}

    meter = Meter(state.budget, certification.prices, units_of, lambda *_: None, bound)
    meter.spent = state.usd
    with TemporaryDirectory() as folder, certification.wire(meter):
        harness = certification.drill(state.url, run)(Path(folder))
        harness.open()
        try:
            with certification.client(state.url) as client:
                stage = DrillContext(certification, state, harness, client, meter)
                stage.count_hours()
                yield stage
        finally:
            harness.keep()
            harness.close()


def _end(folder: Path, run: Run, state: State, how: str) -> None:
    """Keep how a drill ended, and a page that can be attached to an issue."""
    state.ended = how
    state.save(folder)
    lines = [f"# The drill {state.drill} of {DRILLS[state.drill].provider}", "", f"- ended: {how}"]
    lines += [f"- cost: ${state.usd:.4f} of a budget of ${state.budget:.2f}"]
    lines += [f"- {name}: {number}" for name, number in versions(load_certification(state.url)).items()]
    page = "\n".join([*lines, "", *(f"- {each}" for each in state.told), ""])
    write_private(folder / "report.md", page)
    drill_marker(run).unlink(missing_ok=True)
