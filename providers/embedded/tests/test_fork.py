"""Tests forks: parent and child continue to use the same objects, and no document is lost."""

import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing, suppress

import pytest

from multiclouddb_embedded import EmbeddedStore

pytestmark = pytest.mark.slow

PRELUDE = """
import multiprocessing, os, signal, sys, threading, traceback, warnings
from multiclouddb_api import *
from multiclouddb_embedded import EmbeddedOptions, EmbeddedStore, Put, SqliteCheckpointStore
from multiclouddb_embedded.store import forking

warnings.simplefilter("ignore")
signal.alarm(100)
path = sys.argv[1]
URL, ADDRESS = "embedded://" + path, ResourceAddress("main", "items")

def child(action, *arguments):
    "Fork; the child ends with 0 when the action returned."
    pid = os.fork()
    if pid:
        return pid
    signal.alarm(60)
    code = 1
    try:
        action(*arguments)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)

def join(*pids):
    for pid in pids:
        status = os.waitpid(pid, 0)[1]
        assert status == 0, f"a child ended with {status}"

def write(store, name, count):
    for n in range(count):
        store.put("items", f"{name}-{n}", {"n": n})

def seen(client, token=None):
    "How many events there are from a token, and where they end."
    count, position = 0, Beginning() if token is None else FromContinuationToken(token)
    while True:
        page = client.read_changes(ChangeFeedRequest(ADDRESS, position))
        count, position = count + len(page.events), FromContinuationToken(page.continuation_token)
        if page.idle:
            return count, page.continuation_token

def busy(action, threads=4):
    "Repeat an action in threads; returns what ends them and how many runs there were."
    over, counts, failures = threading.Event(), [0] * threads, []
    def work(number):
        try:
            while not over.is_set():
                action(number, counts[number])
                counts[number] += 1
        except BaseException as error:
            failures.append(error)
            traceback.print_exc()
    workers = [threading.Thread(target=work, args=[n]) for n in range(threads)]
    for worker in workers:
        worker.start()
    def end():
        over.set()
        for worker in workers:
            worker.join()
        assert not failures, failures
        return sum(counts)
    return end

class Signal:
    "Told by one process, waited for by another."
    def __init__(self):
        self.reading, self.writing = os.pipe()
    def tell(self):
        os.write(self.writing, b"1")
    def wait(self):
        assert os.read(self.reading, 1) == b"1"

def refusal(action, *arguments):
    try:
        action(*arguments)
    except MulticloudDbError as error:
        assert error.category == ErrorCategory.INVALID_REQUEST, error
        for word in (path, "forked", "spawn", "forkserver"):
            assert word in str(error), error
        return error
    raise AssertionError("not refused")
"""

OPENED = """
store = EmbeddedStore(path, durable=False)
client = connect(URL)
store.put("items", "first", {})
assert seen(client)[0] == 1
"""


@pytest.fixture
def path(tmp_path):
    with EmbeddedStore(tmp_path / "store.db", durable=False) as store:
        store.create_collection("items", partitions=2)
    return tmp_path / "store.db"


@pytest.fixture
def run(path):
    """Run a script in its own process group. The group is ended when the test ends."""

    def start(script, *, opened=True, seconds=120):
        program = PRELUDE + (OPENED if opened else "") + script
        process = subprocess.Popen(
            [sys.executable, "-c", program, str(path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            told, _ = process.communicate(timeout=seconds)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        assert process.returncode == 0, told
        return told

    return start


def sql(path, statement):
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(statement).fetchall()


def documents(path):
    """Return the number of documents in the store and in its log, read by a separate process."""
    assert sql(path, "PRAGMA integrity_check") == [("ok",)]
    ((count,),) = sql(path, "SELECT count(*) FROM documents")
    assert sql(path, "SELECT count(*), max(seq) FROM log") == [(count, count)]
    return count


class TestStore:
    def test_a_child_writes_on_after_the_parent_has_closed(self, run, path):
        run("""
half, closed = Signal(), Signal()
def life():
    write(store, "a", 600)
    half.tell()
    closed.wait()
    write(store, "b", 600)
    store.close()
pid = child(life)
half.wait()
store.put("items", "last", {})
client.close()
store.close()
closed.tell()
join(pid)
with connect(URL) as other:
    assert seen(other)[0] == 1202
""")
        assert documents(path) == 1202

    def test_the_parent_writes_on_after_the_child_has_closed(self, run, path):
        run("""
def life():
    write(store, "child", 100)
    store.close()
    client.close()
pid = child(life)
write(store, "parent", 100)
join(pid)
write(store, "later", 100)
assert seen(client)[0] == 301
""")
        assert documents(path) == 301

    def test_forks_while_threads_write_lock_nobody_out(self, run, path):
        told = run("""
end = busy(lambda thread, n: store.batch("items", [Put(f"{thread}-{n}-{k}", {}) for k in range(20)]))
def life(name):
    write(store, name, 50)
    store.close()
for n in range(5):
    join(child(life, f"child{n}"))
print(20 * end())
""")
        assert documents(path) == 1 + 5 * 50 + int(told)

    @pytest.mark.parametrize("leave", ["sys.exit(0)"])
    def test_a_daemon_writes_when_the_parent_is_gone(self, run, path, leave):
        """A process that forks twice, like a daemon, can write after its parent has ended."""
        told = run(f"""
def leave():
    {leave}
if os.fork():
    os.wait()
    leave()
os.setsid()
if os.fork():
    leave()
signal.alarm(60)
write(store, "daemon", 500)
print(seen(client)[0], flush=True)
""")
        assert told == "501\n"
        assert documents(path) == 501

    @pytest.mark.parametrize("method", ["fork", "spawn"])
    def test_the_methods_of_multiprocessing(self, run, path, tmp_path, method):
        module = tmp_path / "workload.py"
        module.write_text(
            "from multiclouddb_embedded import EmbeddedStore\n"
            "def work(job):\n"
            "    path, name = job\n"
            "    with EmbeddedStore(path, durable=False) as store:\n"
            "        for n in range(20):\n"
            "            store.put('items', f'{name}-{n}', {})\n"
        )
        run(f"""
sys.path.insert(0, {str(tmp_path)!r})
import workload
context = multiprocessing.get_context({method!r})
with context.Pool(3) as pool:
    pool.map(workload.work, [(path, f"pool{{n}}") for n in range(9)])
    write(store, "parent", 20)
process = context.Process(target=workload.work, args=[(path, "process")])
process.start()
write(store, "beside", 20)
process.join()
assert process.exitcode == 0
""")
        assert documents(path) == 1 + 9 * 20 + 3 * 20

    def test_a_scan_goes_on_in_parent_and_child(self, run, path):
        run("""
write(store, "a", 2000)
scan = store.scan("items")
assert len([next(scan) for _ in range(700)]) == 700
def life():
    write(store, "child", 10)
    assert len(list(scan)) == 1301
    assert len(list(store.scan("items"))) == 2011
join(child(life))
write(store, "parent", 10)
assert len(list(scan)) == 1301
""")
        assert documents(path) == 2021

    def test_a_store_that_was_removed_is_not_made_again_behind_a_fork(self, run, path):
        run("""
os.remove(path)
join(child(lambda: None))
try:
    store.put("items", "b", {})
except MulticloudDbError as error:
    assert error.category == ErrorCategory.NOT_FOUND, error
else:
    raise AssertionError("written into nothing")
assert not os.path.exists(path)
""")


class TestClient:
    def test_a_reader_in_the_child_sees_what_comes_after_the_parent_has_closed(self, run, path):
        run("""
read, written = Signal(), Signal()
def life():
    count, token = seen(client)
    assert count == 1
    read.tell()
    written.wait()
    assert seen(client, token)[0] == 100
pid = child(life)
read.wait()
client.close()
store.close()
with EmbeddedStore(path) as other:
    write(other, "later", 100)
    written.tell()
    join(pid)
""")

    def test_four_busy_readers_and_four_busy_writers(self, run, path):
        """Every child reads all changes, and both parent and child continue to work."""
        told = run("""
def read(thread, n):
    assert seen(client)[0] >= 1
ends = [busy(read), busy(lambda thread, n: store.put("items", f"{thread}-{n}", {}))]
def life(n):
    before = seen(client)[0]
    write(store, f"child{n}", 20)
    assert seen(client)[0] >= before + 20
    client.close()
for n in range(4):
    join(child(life, n))
print([end() for end in ends][1])
total = sum(1 for _ in store.scan("items"))
assert seen(client)[0] == total
""")
        assert documents(path) == 1 + 80 + int(told)

    def test_an_iterator_that_waits_in_a_thread_wakes_after_a_fork(self, run, path):
        """A commit that happens after a reader's connection was closed and before it is reopened must wake
        the reader."""
        run("""
import queue
got = queue.Queue()
request = ChangeFeedRequest(ADDRESS, Beginning(), provider_options=EmbeddedOptions(poll_seconds=0.001))
changes = client.iterate_changes(request)
def follow():
    for event in changes:
        got.put(event.key.components["id"])
thread = threading.Thread(target=follow, daemon=True)
thread.start()
assert got.get(timeout=30) == "first"
for n in range(8):
    join(child(lambda: store.put("items", f"child{n}", {})))
    assert got.get(timeout=30) == f"child{n}"
""")


class TestRefused:
    """Tests calls for which SQLite cannot be used in a child process. The parent's calls still work."""

    LONG = """
forking._PATIENCE_SECONDS = 0.1
inside, over = threading.Event(), threading.Event()
def slow():
    with store._session.writing("put") as (connection, _):
        inside.set()
        over.wait()
thread = threading.Thread(target=slow)
thread.start()
inside.wait()
"""

    def test_a_transaction_that_does_not_end(self, run, path):
        run(
            self.LONG
            + """
def life():
    refusal(store.put, "items", "child", {})
    refusal(store.get, "items", "first")
    refusal(lambda: list(store.scan("items")))
    refusal(seen, client)
    refusal(EmbeddedStore, path)
    store.close()
    client.close()
    assert store.closed
join(child(life))
over.set()
thread.join()
write(store, "parent", 10)
assert seen(client)[0] == 11
# With nobody inside the next child is welcome.
join(child(lambda: write(store, "second", 10)))
store.close()
"""
        )
        assert documents(path) == 21

    def test_a_refused_child_that_ends_as_programs_do_harms_nobody(self, run, path):
        run(
            self.LONG
            + """
pid = os.fork()
if not pid:
    refusal(seen, client)
    sys.exit(0)
over.set()
thread.join()
write(store, "parent", 100)
join(pid)
write(store, "later", 100)
"""
        )
        assert documents(path) == 201

    def test_a_connection_of_the_application_itself(self, run, path):
        run("""
import sqlite3
own = sqlite3.connect(path)
own.execute("SELECT count(*) FROM log").fetchone()
def life():
    refusal(store.put, "items", "child", {})
    refusal(seen, client)
    with EmbeddedStore(path + ".other") as another:
        another.create_collection("items")
        write(another, "child", 3)
join(child(life))
own.close()
join(child(write, store, "welcome", 10))
write(store, "parent", 10)
""")
        assert documents(path) == 21

    def test_a_scan_that_does_not_fit_into_memory(self, run, path):
        run("""
from multiclouddb_embedded.store import session
session._KEPT_CHARACTERS = 1000
write(store, "a", 2000)
scan = store.scan("items")
next(scan)
def life():
    refusal(store.put, "items", "child", {})
    refusal(list, scan)
join(child(life))
assert len(list(scan)) == 2000
join(child(write, store, "welcome", 10))
""")
        assert documents(path) == 2011


class TestCheckpoints:
    def test_parent_threads_and_children_save_side_by_side(self, run, path):
        run("""
kept = SqliteCheckpointStore(path + ".checkpoints")
def advance(name, steps):
    for _ in range(steps):
        found = kept.load(name)
        number = int(found.token) if found else 0
        kept.save(name, str(number + 1), found and found.version)
end = busy(lambda thread, n: advance(f"thread{thread}", 1))
for n in range(5):
    join(child(advance, "child", 10))
end()
advance("child", 1)
assert kept.load("child").token == "51"
""")
