"""Tests that a parent reads on after a fork, and that its child is refused before it waits for gRPC."""

import json
import subprocess
import sys

import pytest

from .servers.emulator import STILL, shared
from .table import Table

SECONDS = 300

# The program is a process of its own, because the tests' own process uses gRPC.
PROGRAM = """
import json, os, signal, sys, warnings
from multiclouddb_api import *

warnings.simplefilter("ignore")  # Python warns of a fork while threads run
url, database = sys.argv[1:]
client = connect(url)

def events(reader, start=Beginning()):
    request = ChangeFeedRequest(ResourceAddress(database, "items"), start, max_page_size=1)
    return reader.iterate_changes(request, until_idle=True)

def numbers(reader):
    return sorted(event.new_item_state["n"] for event in events(reader))

def own():
    with connect(url) as made:
        return numbers(made)

def in_child(function):
    "The child ends as a program does, so that Python frees what it can."
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(60)
        try:
            found = function()
        except Exception as error:
            found = str(error)
        os.write(writing, json.dumps(found).encode())
        sys.exit()
    os.close(writing)
    with os.fdopen(reading) as pipe:
        found = json.load(pipe)
    assert os.waitpid(child, 0)[1] == 0
    return found

read, inherited, refused = [in_child(own)], [in_child(lambda: numbers(client))], []
for start in (Beginning(), Snapshot()):  # forks in the middle of an answer
    found = []
    for event in events(client, start):
        found.append(event.new_item_state["n"])
        inherited.append(in_child(lambda: numbers(client)))
        refused += [in_child(own), in_child(lambda: in_child(own))]
    read.append(sorted(found))
read.append(numbers(client))
client.close()
print(json.dumps([read, inherited, refused]))
"""


@pytest.mark.emulator(*STILL)
def test_the_parent_reads_on_and_a_child_reads_only_if_the_parent_had_not():
    emulator = shared(STILL)
    table = Table(emulator)
    table.put(*([f"k{number}", number, "x"] for number in range(5)))
    command = [sys.executable, "-c", PROGRAM, emulator.url, table.database.database_id]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    assert "Exception ignored" not in done.stderr  # a child has freed what it inherited
    table.drop()
    read, inherited, refused = json.loads(done.stdout)
    assert read == [[0, 1, 2, 3, 4]] * 4
    assert len(inherited) == 11
    assert all("was made in another process: connect here" in message for message in inherited), inherited
    assert len(refused) == 20
    assert all("was forked after its parent had used gRPC" in message for message in refused), refused
