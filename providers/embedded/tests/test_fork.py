"""Tests forks: parent and child continue to use the same objects, and no document is lost."""

import json
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
signal.alarm(100)
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

def write(store, name, count=20):
    for n in range(count):
        store.put("items", f"{name}-{n}", {"n": n})

def seen(client, token=None):
    "How many events there are from a token, and where they end. A child has a client of its own."
    if os.getpid() != PARENT:
        client = clients.get(os.getpid()) or clients.setdefault(os.getpid(), connect(URL))
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

store = EmbeddedStore(path, durable=False)
client = connect(URL)
PARENT, clients = os.getpid(), {}
store.put("items", "first", {})
assert seen(client)[0] == 1
"""

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

# For each case: the script, and the number of documents that are there in the end, beside those of the
# numbers that the script prints; None means that the documents do not matter.
CASES = {
    "a child writes on after the parent has closed": (1202, """
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
"""),
    "forks while threads write lock nobody out": (1 + 5 * 50, """
end = busy(lambda thread, n: store.batch("items", [Put(f"{thread}-{n}-{k}", {}) for k in range(20)]))
def life(name):
    write(store, name, 50)
    store.close()
for n in range(5):
    join(child(life, f"child{n}"))
print(20 * end())
"""),
    "multiprocessing": (1 + 9 * 20 + 3 * 20, """
def work(name):
    with EmbeddedStore(path, durable=False) as own:
        write(own, name)
context = multiprocessing.get_context("fork")
with context.Pool(3) as pool:
    pool.map(work, [f"pool{n}" for n in range(9)])
    write(store, "parent")
process = context.Process(target=work, args=["process"])
process.start()
write(store, "beside")
process.join()
assert process.exitcode == 0
"""),
    "a scan goes on in parent and child": (2021, """
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
"""),
    "a store that was removed is not made again": (None, """
os.remove(path)
join(child(lambda: None))
try:
    store.put("items", "b", {})
except MulticloudDbError as error:
    assert error.category == ErrorCategory.NOT_FOUND, error
else:
    raise AssertionError("written into nothing")
assert not os.path.exists(path)
"""),
    "a reader in the child sees what comes after the parent has closed": (101, """
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
"""),
    "four busy readers and four busy writers": (1 + 4 * 20, """
def read(thread, n):
    assert seen(client)[0] >= 1
ends = [busy(read), busy(lambda thread, n: store.put("items", f"{thread}-{n}", {}))]
def life(n):
    before = seen(client)[0]
    write(store, f"child{n}")
    assert seen(client)[0] >= before + 20
    client.close()
for n in range(4):
    join(child(life, n))
print([end() for end in ends][1])
total = sum(1 for _ in store.scan("items"))
assert seen(client)[0] == total
"""),
    # A commit between the closing of a reader's connection and its reopening must wake the reader.
    "an iterator that waits in a thread wakes after a fork": (9, """
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
"""),
    # Calls for which SQLite cannot be used in a child process. The parent's calls still work.
    "a transaction that does not end": (21, LONG + """
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
pid = os.fork()
if not pid:  # a child that ends as programs do
    refusal(seen, client)
    sys.exit(0)
over.set()
thread.join()
join(pid)
write(store, "parent", 10)
assert seen(client)[0] == 11
# With nobody inside the next child is welcome.
join(child(write, store, "second", 10))
store.close()
"""),
    "a connection of the application itself": (21, """
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
"""),
    "a scan that does not fit into memory": (611, """
module._KEPT_CHARACTERS = 1000
write(store, "a", 600)
scan = store.scan("items")
next(scan)
def life():
    refusal(store.put, "items", "child", {})
    refusal(list, scan)
join(child(life))
assert len(list(scan)) == 600
join(child(write, store, "welcome", 10))
"""),
    "checkpoints of threads and children, side by side": (None, """
kept = SqliteCheckpointStore(path + ".checkpoints")
def advance(name, steps):
    for _ in range(steps):
        found = kept.load(name)
        number = int(found.token) if found else 0
        kept.save(name, str(number + 1), found and found.version)
end = busy(lambda thread, n: advance(f"thread{thread}", 1))
for n in range(3):
    join(child(advance, "child", 10))
end()
advance("child", 1)
assert kept.load("child").token == "31"
"""),
}  # fmt: skip


# Each case has a process of its own, which this one has forked before it has used SQLite. What a case leaves
# behind, such as a daemon, keeps its pipe open.
RUNNER = """
import json, multiprocessing, os, queue, signal, sqlite3, sys, threading, traceback, warnings
from multiclouddb_api import *
from multiclouddb_embedded import EmbeddedOptions, EmbeddedStore, Put, SqliteCheckpointStore
from multiclouddb_embedded.store import forking
from multiclouddb_embedded.store import store as module

warnings.simplefilter("ignore")
told = {}
for name, path, script in json.load(sys.stdin):
    reading, writing = os.pipe()
    if not os.fork():
        os.dup2(writing, 1)
        os.dup2(writing, 2)
        os.close(writing)
        code = 1
        try:
            exec(script, globals())
            code = 0
        except SystemExit:
            code = 0
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        os._exit(code)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    told[name] = os.wait()[1], text
print(json.dumps(told))
"""


def test_parent_and_child_go_on_and_no_document_is_lost(tmp_path):
    tasks = []
    for number, (name, (_, script)) in enumerate(CASES.items()):
        path = str(tmp_path / f"{number}.db")
        with EmbeddedStore(path, durable=False) as store:
            store.create_collection("items", partitions=2)
        tasks.append((name, path, PRELUDE + script))
    process = subprocess.Popen(
        [sys.executable, "-c", RUNNER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        told, _ = process.communicate(json.dumps(tasks), timeout=400)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    found = json.loads(told)
    for name, path, _ in tasks:
        status, text = found[name]
        assert status == 0, f"{name}: {text}"
        count, _ = CASES[name]
        if count is None:
            continue
        # On a busy machine, a line may be a warning, such as that of a partition which answers late.
        assert "did not cover" not in text, f"{name}: {text}"
        count += sum(int(line) for line in text.splitlines() if line.isdigit())
        with closing(sqlite3.connect(path)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)], name
            assert connection.execute("SELECT count(*) FROM documents").fetchall() == [(count,)], name
            assert connection.execute("SELECT count(*), max(seq) FROM log").fetchall() == [(count, count)], (
                name
            )
