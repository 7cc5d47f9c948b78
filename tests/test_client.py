"""Tests the client over a fake provider: arguments that it passes on, closing, pickling and forking."""

import gc
import os
import pickle
import signal
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

import multiclouddb_api as api
from multiclouddb_api import client

from .refusals import refusal, refused

ADDRESS = api.ResourceAddress("shop", "orders")
REQUEST = api.ChangeFeedRequest(ADDRESS, api.Beginning())


class FakeBackend:
    """A backend that answers every call and records the arguments."""

    def __init__(self, *opened_with):
        self.opened_with = opened_with
        self.pid = os.getpid()
        self.calls = []
        self.closed = 0

    def read_changes(self, request, options):
        self.calls.append((request, options))
        return api.ChangeFeedPage((), "token", idle=True)

    def list_physical_partitions(self, address, options):
        self.calls.append((address, options))
        return ("p",)

    def plan_partitions(self, request, options, *, with_descendants):
        self.calls.append((request, options))
        return (("p", "token"),)

    def run_command(self, database, command, options):
        return (database, command, options)

    def run_cursor_command(self, database, command, options):
        return iter([(database, command, options)])

    def lookup(self, address, keys, options, provider_options):
        self.calls.append((address, keys))

    def capabilities(self, provider_options):
        return api.CapabilitySet({})

    def close(self):
        assert self.pid == os.getpid(), "closed by another process"
        self.closed += 1

    def __del__(self):
        if self.pid != os.getpid():
            os.write(2, b"collected by another process\n")


class FakePlugin:
    provider_id = "fake"

    def __init__(self):
        self.backends = []
        self.failures = []
        self.seconds = 0.0

    def open(self, config, native_client, observer):
        if self.failures:
            raise self.failures.pop()
        time.sleep(self.seconds)
        self.backends.append(FakeBackend(config, native_client, observer))
        return self.backends[-1]


@pytest.fixture
def plugin(monkeypatch):
    made = FakePlugin()
    monkeypatch.setattr(client, "load_plugin", lambda provider_id: made)
    return made


@pytest.fixture
def made(plugin):
    return api.connect("embedded:///x")


def test_more_keys_than_a_lookup_takes_are_refused(made):
    keys = (api.MulticloudDbKey({"id": number}) for number in range(1001))
    assert "more than 1000 keys" in refused(made.lookup, ADDRESS, keys)


class TestConnect:
    def test_takes_a_url_a_configuration_and_a_toml_file(self, plugin, tmp_path):
        url, config = "embedded:///data/store.db", api.ClientConfig("embedded")
        assert api.connect(url).config == api.ClientConfig.from_url(url)
        assert api.connect(config).config is config
        path = tmp_path / "client.toml"
        path.write_text('provider = "embedded"')
        assert api.connect(path).config == api.connect(str(path)).config == config

    def test_passes_the_native_client_and_the_observer_on(self, plugin):
        native, observer = object(), api.Observer()
        api.connect("embedded:///x", native_client=native, observer=observer)
        assert plugin.backends[0].opened_with[1:] == (native, observer)

    @pytest.mark.parametrize("source", ["store.db", "/data/store.json", 5, None, b"embedded:///x", {}])
    def test_anything_else_is_refused_with_an_example(self, plugin, source):
        assert 'write connect("embedded:///path/store.db")' in refused(api.connect, source)

    def test_an_unknown_provider_is_refused_and_no_secret_is_shown(self, monkeypatch):
        assert "did you mean 'embedded'?" in refused(api.connect, "embeded:///x")
        monkeypatch.setattr(client, "load_plugin", lambda provider_id: FakePlugin())
        assert "hunter2" not in repr(api.connect("mongodb://user:hunter2@host"))


class TestCalls:
    @pytest.mark.parametrize("given", [(), (api.OperationOptions(5, 1),)], ids=["default", "given"])
    def test_options_are_passed_on(self, plugin, made, given):
        made.read_changes(REQUEST, *given)
        made.list_physical_partitions(ADDRESS, *given)
        made.plan_partitions(REQUEST, *given)
        (options,) = given or (api.OperationOptions(),)
        assert plugin.backends[0].calls == [(REQUEST, options), (ADDRESS, options), (REQUEST, options)]

    def test_answers_come_back(self, made):
        assert made.read_changes(REQUEST).continuation_token == "token"
        assert made.list_physical_partitions(ADDRESS) == ("p",)
        assert made.plan_partitions(REQUEST) == (("p", "token"),)
        assert made.run_command("db", {"ping": 1}, session=5) == ("db", {"ping": 1}, {"session": 5})
        assert list(made.run_cursor_command("db", {"find": 1})) == [("db", {"find": 1}, {})]
        assert not made.capabilities().is_supported(api.Capability.RUN_COMMAND)

    def test_iterates_with_the_settings_of_the_iterator(self, plugin, made):
        changes = made.iterate_changes(REQUEST, until_idle=True, wait_seconds=2)
        assert isinstance(changes, api.ChangeFeedIterator)
        assert list(changes) == []
        assert changes.continuation_token == "token"
        error = refusal(made.iterate_changes, REQUEST, max_outage_seconds=-1)
        assert "max_outage_seconds" in error.message
        assert plugin.backends[0].calls == [(REQUEST, api.OperationOptions(30, 2))]


CALLS = {
    "read_changes": lambda made: made.read_changes(REQUEST),
    "list_physical_partitions": lambda made: made.list_physical_partitions(ADDRESS),
    "plan_partitions": lambda made: made.plan_partitions(REQUEST),
    "run_command": lambda made: made.run_command("db", {}),
    "run_cursor_command": lambda made: made.run_cursor_command("db", {}),
    "capabilities": lambda made: made.capabilities(),
}


class TestClose:
    def test_is_done_once_by_many_threads(self, plugin, made):
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda _: made.close(), range(8)))
        assert plugin.backends[0].closed == 1
        assert repr(made).endswith(" closed>")

    def test_comes_with_the_end_of_the_block_and_of_an_error(self, plugin):
        with pytest.raises(ZeroDivisionError), api.connect("embedded:///x"):
            raise ZeroDivisionError
        assert plugin.backends[0].closed == 1

    def test_nothing_can_be_called_afterwards(self, made):
        changes = made.iterate_changes(REQUEST)
        made.close()
        for operation, call in CALLS.items():
            error = refusal(call, made)
            assert "this client is closed; open another with connect(client.config)" in error.message
            assert (error.detail.operation, error.detail.provider) == (operation, "embedded")
        assert "closed" in refused(list, changes)


def test_a_client_is_not_pickled_but_its_configuration_is(made):
    assert "pickle client.config and connect(config)" in refused(pickle.dumps, made)
    assert api.connect(pickle.loads(pickle.dumps(made.config))).config == made.config


def in_child(action):
    """Run an action in a forked child; return the action's result, or the error that it raises."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(120)  # This ends the child if it hangs.
        try:
            answer = action()
        except BaseException as error:  # noqa: BLE001
            answer = error
        os.write(writing, pickle.dumps(answer))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        answer = pickle.loads(file.read())
    assert os.waitpid(child, 0)[1] == 0
    return answer


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # Python 3.12: the test runner has threads
class TestFork:
    def test_a_call_is_refused_in_the_child_and_a_close_does_nothing(self, plugin, made):
        def use():
            made.close()
            found = [refusal(made.read_changes, REQUEST), refusal(made.capabilities)]
            return found, [(backend.calls, backend.closed) for backend in plugin.backends]

        errors, backends = in_child(use)
        assert backends == [([], 0)]
        for error in errors:
            assert error.category == api.ErrorCategory.INVALID_REQUEST
            assert error.message == (
                "MulticloudDbClient: was made in another process: connect here; "
                "call connect(client.config) in this process"
            )
        assert made.read_changes(REQUEST).continuation_token == "token"

    def test_the_child_connects_and_the_parent_goes_on(self, plugin, made):
        def connect():
            with api.connect(made.config) as own:
                own.read_changes(REQUEST)
                refusal(made.read_changes, REQUEST)
            return [(len(backend.calls), backend.closed) for backend in plugin.backends]

        assert in_child(connect) == [(0, 0), (1, 1)]
        assert in_child(lambda: in_child(connect)) == [(0, 0), (1, 1)]
        made.read_changes(REQUEST)
        assert [(len(backend.calls), backend.closed) for backend in plugin.backends] == [(1, 0)]

    def test_the_child_never_collects_what_it_has_inherited(self, plugin, capfd):
        """`FakeBackend` complains."""
        gc.collect()  # what other tests have left
        made = [api.connect("embedded:///x"), api.connect("embedded:///y")]

        def forget():
            made.clear()
            plugin.backends.clear()
            return gc.collect() < 0

        assert in_child(forget) is False
        assert capfd.readouterr().err == ""
        assert [backend.closed for backend in plugin.backends] == [0, 0]

    def test_a_lock_that_another_thread_held_at_the_fork_blocks_nobody(self, made):
        with made._lock:
            assert (
                "another process"
                in in_child(lambda: (made.close(), refusal(made.read_changes, REQUEST))[1]).message
            )

    def test_an_iterator_is_refused_in_the_child(self, made):
        changes = made.iterate_changes(REQUEST, until_idle=True)
        list(changes)
        assert "another process" in in_child(lambda: refusal(list, changes)).message


def test_a_client_that_nobody_holds_is_forgotten(plugin):
    made = weakref.ref(api.MulticloudDbClient(api.ClientConfig("embedded")))
    gc.collect()
    assert made() is None
