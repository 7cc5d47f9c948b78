"""Tests that a forked child reads if gRPC works there, and otherwise refuses."""

import json
import subprocess
import sys

import pytest

from .servers.emulator import STILL
from .table import Table

SECONDS = 60
REFUSED = "[INVALID_REQUEST] process: it was forked after its parent had read from Cloud Spanner"

# Each program is a process of its own, because the tests' own process uses gRPC.
PROGRAM = """
import json, os, sys, threading, warnings

from multiclouddb_api import Beginning, ChangeFeedRequest, ResourceAddress, connect

warnings.simplefilter("ignore")  # Python warns of a fork while threads run
url, database, task = sys.argv[1:]
client = connect(url)


def count(reader=client):
    request = ChangeFeedRequest(ResourceAddress(database, "items"), Beginning())
    return len(list(reader.iterate_changes(request, until_idle=True)))


def in_child(function):
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            found = function()
        except BaseException as error:
            found = str(error)
        os.write(writing, json.dumps(found).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        found = json.load(pipe)
    os.waitpid(child, 0)
    return found


print(json.dumps(eval(task)))
client.close()
"""


@pytest.fixture
def run(still):
    table = Table(still)
    table.put(*([f"k{number}", number, "x"] for number in range(5)))

    def run(task):
        arguments = [sys.executable, "-c", PROGRAM, still.url, table.database.database_id, task]
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=SECONDS)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    yield run
    table.drop()


@pytest.mark.emulator(*STILL)
class TestForks:
    def test_a_child_reads_if_its_parent_has_not_read(self, run):
        assert run("[in_child(count), in_child(lambda: count(connect(url))), count()]") == [5, 5, 5]

    def test_a_child_reads_if_the_parent_of_its_parent_has_not_read(self, run):
        assert run("in_child(lambda: in_child(count))") == 5

    @pytest.mark.parametrize(
        "child",
        ["count", "lambda: count(connect(url))", "lambda: in_child(count)"],
        ids=["the parent's client", "a new client", "a grandchild"],
    )
    def test_a_child_of_a_parent_that_has_read_refuses_and_says_what_to_do(self, run, child):
        before, message, after = run(f"[count(), in_child({child}), count()]")
        assert (before, after) == (5, 5)
        assert REFUSED in message
        assert "'spawn' or 'forkserver'" in message

    def test_children_of_a_parent_whose_threads_read_refuse(self, run):
        found = run(
            "[threading.Thread(target=count).start() for _ in range(4)] and "
            "[count(), *(in_child(count) for _ in range(4)), count()]"
        )
        assert (found[0], found[-1]) == (5, 5)
        assert all(REFUSED in message for message in found[1:-1])

    def test_a_child_that_does_not_read_is_not_disturbed(self, run):
        assert run("[count(), in_child(lambda: repr(client)), in_child(client.close)]")[2] is None
