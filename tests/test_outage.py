"""Tests that an iterator reports an outage soon, repeats the report, and reports the end of the outage."""

import logging
import threading
import time
from contextlib import closing, suppress

import pytest

import multiclouddb_api as api
from multiclouddb_api.pacing import Outage
from multiclouddb_conformance.simulation import ServerError, Simulation, SimulationProvider
from multiclouddb_conformance.waiting import SOON, wait_until
from multiclouddb_embedded import EmbeddedStore
from multiclouddb_spi import Engine, InlineExecutor
from multiclouddb_spi.contract import Provider

from .test_iterator import Service, iterator


def failure(text="refused", *, retryable=True):
    detail = api.ErrorDetail(api.ErrorCategory.TRANSIENT_FAILURE, retryable=retryable)
    return api.MulticloudDbError(text, detail)


class Told(api.Observer):
    def __init__(self):
        self.outages, self.ends = [], []

    def outage(self, address, seconds, reason):
        self.outages.append((seconds, reason))

    def outage_ended(self, address, seconds):
        self.ends.append(seconds)


def run(*faults, pages=(), observer=None, **settings):
    """Return the observer of an iterator that has read until the feed was idle."""
    service = Service(list(pages), faults=faults)
    service.observer = observer or Told()
    list(iterator(service, api.Now(), until_idle=True, **settings).pages())
    return service.observer


def waits(seconds, reason=None, then=None):
    """Return a read during which the engine reports every 0.2 s that it is still waiting."""

    def read(clock):
        until = clock.time + seconds
        while clock.time < until:
            clock.time += 0.2
            clock.progress.waits(lambda: reason)
        return then

    return read


def slow(clock):
    """Answer a read at once, and then wait for news."""
    clock.progress.answered()
    return waits(4)(clock)


def answers(clock):
    """Answer often, as a read does that asks many partitions."""
    for _ in range(20):
        clock.time += 0.4
        clock.progress.waits(lambda: None)
        clock.progress.answered()


class TestFailedReads:
    def test_the_first_is_reported_at_once_and_the_end_too(self, caplog):
        caplog.set_level(logging.INFO, "multiclouddb.iterator")
        told = run(failure())
        assert told.outages == [(0.0, "refused")]
        assert len(told.ends) == 1
        assert 0 < told.ends[0] < 30
        first, last = caplog.records
        assert (first.levelname, last.levelname) == ("WARNING", "INFO")
        assert "shop/orders" in first.getMessage()
        assert "refused" in first.getMessage()

    def test_then_every_thirty_seconds_also_between_two_reads(self, monkeypatch):
        monkeypatch.setattr("random.uniform", lambda low, high: high)
        told = run(*(failure() for _ in range(9)))
        assert told.outages == [(seconds, "refused") for seconds in (0, 30, 60, 90, 120)]

    def test_a_report_within_a_pause_is_due_to_the_moment(self, monkeypatch):
        """A longer wait would also delay the next read."""
        monkeypatch.setattr("random.uniform", lambda low, high: 29.5)
        told = run(failure(), failure())
        assert told.outages == [(seconds, "refused") for seconds in (0, 30)]

    def test_a_failure_that_ends_the_iteration_is_only_raised(self):
        told = Told()
        with pytest.raises(api.MulticloudDbError):
            run(failure(retryable=False), observer=told)
        assert told.outages == []

    def test_reason_of_an_earlier_outage_is_forgotten(self):
        told = run(failure("no host"), None, waits(40), pages=[0, 0])
        assert len(told.ends) == 2
        assert told.outages[0][1] == "no host"
        assert "not answered" in told.outages[1][1]

    def test_an_observer_that_raises_ends_nothing(self, caplog):
        class Broken(Told):
            def outage(self, address, seconds, reason):
                raise ValueError("".join(["a", "document"]))

        run(failure(), observer=Broken())
        assert "outage failed with ValueError" in caplog.text
        assert "test_outage.py" in caplog.text
        assert "adocument" not in caplog.text


class TestARunningRead:
    @pytest.mark.parametrize(("reason", "told"), [("no host", "no host"), (None, "not answered")])
    def test_is_reported_within_two_seconds(self, reason, told):
        ((seconds, said),) = run(waits(6, reason)).outages
        assert 0 < seconds < 2
        assert told in said

    def test_a_reason_that_comes_later_is_told_too(self):
        told = run(waits(3, then=failure("no host")))
        assert [reason for _, reason in told.outages][1:] == ["no host"]

    @pytest.mark.parametrize(
        ("faults", "settings", "reports"),
        [
            ([waits(0.3, "busy")], {}, 0),  # it fails for a moment
            ([waits(1.4)], {}, 0),  # it is slow for a moment
            ([None, slow], {"pages": [0], "wait_seconds": 5}, 0),  # it waits for news
            ([answers], {}, 0),  # it asks many partitions
            ([waits(2)] * 20, {"pages": [0] * 20}, 2),  # a slow service does not fill the log
        ],
    )
    def test_what_passes_is_not_an_outage(self, faults, settings, reports):
        told = run(*faults, **settings)
        assert (len(told.outages), len(told.ends)) == (reports, reports)


class TestEngine:
    """Tests that the report comes while the first read is still being retried."""

    @pytest.fixture
    def dead(self, monkeypatch):
        """Provide an embedded store whose host does not answer until it is released."""
        released = threading.Event()
        from multiclouddb_embedded.provider import EmbeddedProvider

        def open_feed(self, spec, deadline):
            del self, spec
            released.wait(deadline.remaining())
            raise OSError("gone")

        assert issubclass(EmbeddedProvider, Provider)
        monkeypatch.setattr(EmbeddedProvider, "open_feed", open_feed)
        yield
        released.set()

    def test_silence_of_a_control_call_is_reported(self, tmp_path, dead):
        with EmbeddedStore(tmp_path / "s.db", durable=False) as store:
            store.create_collection("orders")
        with api.connect(f"embedded://{tmp_path}/s.db", observer=(told := Told())) as client:
            request = api.ChangeFeedRequest(api.ResourceAddress(collection="orders"), api.Now())
            changes = client.iterate_changes(request)

            def read():
                with suppress(api.MulticloudDbError):
                    list(changes)

            reading = threading.Thread(target=read)
            reading.start()
            wait_until(lambda: told.outages)
            changes.stop()
            client.close()
            reading.join(SOON)
        seconds, reason = told.outages[0]
        assert 0 < seconds < 2
        assert "not answered" in reason

    def test_a_stop_during_a_read_ends_the_loop_without_an_error(self, tmp_path, monkeypatch):
        asked, found, must_stop = threading.Event(), [], Outage.must_stop

        def noted(outage):
            asked.set()  # the read is waiting
            return must_stop(outage)

        monkeypatch.setattr(Outage, "must_stop", noted)
        with EmbeddedStore(tmp_path / "s.db", durable=False) as store:
            address = store.create_collection("orders")
            with api.connect(f"embedded://{tmp_path}/s.db") as client:
                request = api.ChangeFeedRequest(address, api.Now())
                changes = client.iterate_changes(request, wait_seconds=20)
                reading = threading.Thread(target=lambda: found.append(list(changes)))
                reading.start()
                assert asked.wait(SOON)
                changes.stop()
                reading.join(SOON)
        assert found == [[]]

    def test_reason_of_a_fetch_that_is_tried_again_is_reported(self):
        sim, told, released, pages = Simulation(), Told(), threading.Event(), []
        sim.write("a", {})
        sim.fail_next("p0", ServerError("no host"), times=1)
        engine = Engine(
            SimulationProvider(sim), api.ClientConfig("simulation"), None, pause=lambda _: released.wait(SOON)
        )

        def read():
            request = api.ChangeFeedRequest(sim.address, api.Beginning())
            outage = Outage(sim.address, told, time.monotonic)
            pages.append(engine.read_changes(request, api.OperationOptions(SOON, progress=outage)))

        reading = threading.Thread(target=read)
        reading.start()
        try:
            wait_until(lambda: any(reason == "no host" for _, reason in told.outages))
        finally:
            released.set()
            reading.join(SOON)
            engine.close()
        assert told.outages[-1][1] == "no host"
        assert len(pages[0].events) == 1

    def test_a_stop_ends_a_read_that_waits(self):
        sim = Simulation()
        provider = SimulationProvider(sim)
        engine = Engine(provider, api.ClientConfig("simulation"), executor=InlineExecutor())
        outage = Outage(sim.address, None, time.monotonic, lambda: bool(provider.calls.fetches))
        request = api.ChangeFeedRequest(sim.address, api.Beginning())
        options = api.OperationOptions(wait_seconds=1.0, progress=outage)
        with closing(engine), pytest.raises(api.MulticloudDbError, match=r"ended by .*progress"):
            engine.read_changes(request, options)
        assert outage.has_stopped
