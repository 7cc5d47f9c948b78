"""Provides a writer that survives failures, applications that crash repeatedly, and event checks.

A single writer makes the changes one after another. A majority acknowledges each change before the next
change begins, so the list of changes is exact. After a token, an application must receive exactly the rest of
the list, in order, and must not receive a change twice in one run.
"""

import random
import threading
import time
from collections import Counter

import attrs
import pymongo
from pymongo.errors import PyMongoError
from pymongo.read_concern import ReadConcern

from multiclouddb_api import ChangeType, ClientConfig, Now, OperationOptions, connect
from multiclouddb_conformance.loss import Delivered, Failed, Received, Stored, page_consumer_with
from multiclouddb_conformance.waiting import wait_until

COLLECTION = "items"
KEYS = 12
MAJORITY = pymongo.WriteConcern(w="majority")
LONG = 90.0
"""The number of seconds to wait before a test fails. Every outage in these tests is shorter than this
wait."""
STUCK = 60.0
"""The number of seconds that may pass without progress while every server works.

This time is longer than any pause before a retry.
"""


@attrs.frozen
class Change:
    """One change, which the writer makes and an application must receive."""

    type: ChangeType
    key: str
    n: int | None  # None for a delete
    before: int | None = attrs.field(default=None, eq=False)
    """The number of the earlier change that this change replaces or deletes. Events do not contain this
    number."""


def seen(event):
    """Convert an event to the `Change` that it reports."""
    state = event.new_item_state
    return Change(event.type, event.key.components["_id"], None if state is None else state["n"])


class Writer:
    """Creates, replaces and deletes documents in its own thread, sometimes three in one transaction."""

    # If the answer to a write is lost, the writer checks whether the write was made, and repeats it if not.
    # The lost write may still arrive later at a busy server. Each write names the version that it changes.
    # Therefore, if a write arrives twice, its second arrival changes nothing. The writer replaces documents
    # and does not update them, because the event of a replacement contains the document at the time of the
    # write, not at the time of reading.

    def __init__(self, client, database, pause=0.0):
        self.client, self.pause = client, pause
        self.items = client[database].create_collection(COLLECTION, write_concern=MAJORITY)
        self.truth, self.unsure, self.error = [], 0, None
        self._dice, self._there, self._n = random.Random("writer"), {}, 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)

    def write(self, count):
        """Write at least this many changes."""
        goal = len(self.truth) + count
        while len(self.truth) < goal:
            self._write_some()

    def wait_for(self, count):
        """Wait until the thread has made the given number of further changes."""
        goal = len(self.truth) + count
        wait_until(lambda: self.error or len(self.truth) >= goal, LONG)
        if self.error:
            raise self.error

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join(LONG)
        if self.error:
            raise self.error
        assert not self._thread.is_alive()

    def _run(self):
        try:
            while not self._over.wait(self.pause):
                self._write_some()
        except Exception as error:  # noqa: BLE001 - raised in the thread of the test
            self.error = error

    def _write_some(self):
        together = 3 if self._dice.random() < 0.1 else 1
        changes = [self._next(f"k{number}") for number in self._dice.sample(range(KEYS), together)]
        until, unsure = time.monotonic() + LONG, False
        while True:
            try:
                # The time limit is short, because without it a stopped node would block the writer forever.
                with pymongo.timeout(3):
                    if not unsure or not self._is_made(changes[0]):
                        self._make_all(changes)
                break
            except PyMongoError:
                if time.monotonic() > until:
                    raise
                self.unsure, unsure = self.unsure + 1, True
        self.truth += changes

    def _is_made(self, change):
        """Return True if a majority has stored the write permanently."""
        items = self.items.with_options(read_concern=ReadConcern("linearizable"))
        found = items.find_one({"_id": change.key})
        return change.n == (None if found is None else found["n"])

    def _next(self, key):
        before = self._there.get(key)
        if before is not None and self._dice.random() < 0.2:
            del self._there[key]
            return Change(ChangeType.DELETE, key, None, before)
        self._n += 1
        self._there[key] = self._n
        return Change(ChangeType.CREATE if before is None else ChangeType.UPDATE, key, self._n, before)

    def _make_all(self, changes):
        if len(changes) == 1:
            self._make(changes[0], None)
            return
        with self.client.start_session() as session:
            session.with_transaction(
                lambda session: [self._make(change, session) for change in changes], write_concern=MAJORITY
            )

    def _make(self, change, session):
        known = {"_id": change.key, "n": change.before}
        match change.type:
            case ChangeType.CREATE:
                self.items.insert_one({"_id": change.key, "n": change.n}, session=session)
            case ChangeType.UPDATE:
                self.items.replace_one(known, {"n": change.n}, session=session)
            case ChangeType.DELETE:
                self.items.delete_one(known, session=session)


class Life:
    """One run of an application, from a token to its crash."""

    def __init__(self, start):
        self.start, self.events = start, []

    @property
    def end(self):
        """Return the number of changes before the application's current position."""
        return self.start + len(self.events)


def pages(timeout=15.0, wait=0.2):
    """Make an application that reads page after page and resumes each call from a token."""
    return page_consumer_with(OperationOptions(timeout, wait))


class Application:
    """Reads in its own thread. After a crash, a new client continues from an earlier token."""

    def __init__(self, name, url, request, consumer=None, deaths=0.0, far=1, tokens=None):
        """Begin at the first of the `tokens`."""
        # If there are no tokens, begin at `Now`, before the first change. `deaths` is the probability of a
        # crash after a step. After a crash, the application chooses one of its last `far` tokens.
        self.name, self.url, self.request, self.consumer = name, url, request, consumer or pages()
        self.tokens, self.lives, self.failures = list(tokens or ()), [], []
        self.slowest, self.goal, self.error = 0.0, None, None
        self._deaths, self._far, self._dice = deaths, far, random.Random(name)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        if not self.tokens:
            with self._connect() as client:
                page = client.read_changes(attrs.evolve(request, start_position=Now()))
            assert not page.events
            self.tokens.append((0, page.continuation_token))

    def start(self):
        self._thread.start()
        return self

    @property
    def place(self):
        """Return the number of changes before the application's current position."""
        return self.lives[-1].end if self.lives else self.tokens[0][0]

    @property
    def delivered(self):
        return sum(len(life.events) for life in self.lives)

    def join(self):
        """Wait until the application has reached its goal and a page is idle."""
        place, until = self.place, time.monotonic() + STUCK
        while self._thread.is_alive():
            self._thread.join(0.1)
            if self.place > place:
                place, until = self.place, time.monotonic() + STUCK
            if time.monotonic() > until:
                self.error = TimeoutError(f"stuck after {place} of {self.goal} changes")
                break

    def resumed(self, count):
        """Start the given number of new applications from evenly distributed tokens."""
        # They read large pages.
        last = len(self.tokens) - 1
        numbers = sorted({round(number * last / (count - 1)) for number in range(count)})
        request = attrs.evolve(self.request, max_page_size=0)
        for number in numbers:
            name = f"{self.name}, resumed from token {number + 1}"
            yield Application(name, self.url, request, tokens=[self.tokens[number]])

    def _connect(self):
        return connect(ClientConfig("mongo", {"url": self.url}))

    def _run(self):
        try:
            while not self._live():
                pass
        except Exception as error:  # noqa: BLE001 - told with the findings
            self.error = error

    def _live(self):
        """Run until a crash; return True if the goal is reached."""
        position, token = self._dice.choice(self.tokens[-self._far :])
        life = Life(position)
        self.lives.append(life)
        with self._connect() as client:
            steps = self.consumer(client, self.request, token)
            while True:
                began = time.monotonic()
                step = next(steps)
                self.slowest = max(self.slowest, time.monotonic() - began)
                match step:
                    case Delivered(event):
                        life.events.append(event)
                    case Stored(token):
                        self.tokens.append((life.end, token))
                    case Failed(error):
                        self.failures.append(error)
                        time.sleep(0.05)
                    case Received(page) if (
                        not page.events and self.goal is not None and life.end >= self.goal
                    ):
                        return True
                if self.goal is None and self._dice.random() < self._deaths:
                    steps.close()
                    return False


def finish(applications, goal):
    """Let all applications end after this many changes."""
    for application in applications:
        application.goal = goal
    for application in applications:
        application.join()


def assert_kept(truth, applications):
    """Check that each application received the right events, and that all received the same events."""
    found = [text for application in applications for text in _of_one(truth, application)]
    found = found or _identities(applications)
    if found:
        raise AssertionError("\n".join(found))


def _of_one(truth, application):
    found = [] if application.error is None else [f"ended with {application.error!r}"]
    for number, life in enumerate(application.lives, 1):
        came, must = [seen(event) for event in life.events], truth[life.start : life.end]
        if came != must:
            pairs = zip(came, must, strict=False)
            at = next((at for at, (one, other) in enumerate(pairs) if one != other), len(must))
            found.append(
                f"life {number} from change {life.start}: event {at} of {len(came)} and what follows "
                f"is {came[at : at + 3]}, not {must[at : at + 3]}"
            )
    came = Counter(seen(event) for life in application.lives for event in life.events)
    lost = Counter(truth[application.tokens[0][0] :]) - came
    if lost:
        found.append(f"{lost.total()} lost, such as {next(iter(lost))}")
    return [f"{application.name}: {text}" for text in found]


def _identities(applications):
    """Check that each change has the same event id everywhere, and that order keys sort like the changes."""
    known, found = {}, []
    for life in (life for application in applications for life in application.lives):
        for place, event in enumerate(life.events, life.start):
            first = known.setdefault(place, event)
            if (first.event_id, first.order_key) != (event.event_id, event.order_key):
                found.append(f"change {place} is event {first.event_id} and event {event.event_id}")
    if len({event.event_id for event in known.values()}) < len(known):
        found.append("event ids stand for several changes")
    order_keys = [known[place].order_key for place in sorted(known)]
    if sorted(set(order_keys)) != order_keys:
        found.append("order keys are not in the order of the changes")
    return found
