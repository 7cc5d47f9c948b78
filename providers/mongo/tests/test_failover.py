"""Three members, one of them always in trouble: nothing is lost, and nothing comes twice in one life."""

import logging
import time
from contextlib import contextmanager

import attrs
import pytest

from multiclouddb_api import (
    ChangeFeedRequest,
    ClientConfig,
    FromContinuationToken,
    Now,
    OperationOptions,
    ResourceAddress,
    connect,
)
from multiclouddb_conformance.consumer import Pause
from multiclouddb_conformance.loss import iterator_consumer

from .servers.mongod import ReplicaSet
from .workload import COLLECTION, Application, Writer, assert_kept, pages, seen, wait_until

CALL = 15.0
"""Seconds that a read may take."""
MARGIN = 2.0
"""Seconds that it may take longer, on a machine that is busy."""


@pytest.fixture(scope="module")
def proxied(tmp_path_factory):
    """Three members, each behind a proxy that the writer does not go through."""
    with ReplicaSet(tmp_path_factory.mktemp("proxied"), members=3, proxied=True) as made:
        yield made


def url(cluster, **options):
    """A member that does not answer is given up after one second, not after twenty."""
    return cluster.uri(connectTimeoutMS=1000, **options)


def crowd(cluster, database):
    """Applications of many kinds, all before the first change."""

    def one(name, size, consumer=None, **others):
        request = ChangeFeedRequest(ResourceAddress(database, COLLECTION), Now(), max_page_size=size)
        return Application(name, others.pop("at", url(cluster)), request, consumer or pages(CALL), **others)

    def iterator():
        return iterator_consumer(timeout_seconds=CALL, wait_seconds=0.2)

    return [
        one("large pages", 0),
        one("small pages", 3),
        one("small pages, always behind", 2, lagging(pages(CALL))),
        one("pages of a secondary", 20, at=url(cluster, readPreference="secondary")),
        one("an iterator", 10, iterator()),
        one("pages, dies often", 5, deaths=0.004, far=10),
        one("an iterator, dies often", 10, iterator(), deaths=0.004),
    ]


def lagging(consumer):
    """Slower than the writer: there is always a rest of a batch that was not handed out."""

    def consume(client, request, token):
        for step in consumer(client, request, token):
            yield step
            if isinstance(step, Pause) and not step.idle:
                time.sleep(0.01)

    return consume


@contextmanager
def load(cluster, database):
    """A writer, and applications that read all the while; in the end everything has come to each of them."""
    writer = Writer(cluster.client(), database, pause=0.005)
    applications = crowd(cluster, database)
    with writer:
        for application in applications:
            application.start()
        writer.wait_for(50)
        yield writer, applications
        writer.wait_for(50)
    cluster.wait_healthy()
    for application in applications:
        application.finish(len(writer.truth))
    late = [late.start().finish(len(writer.truth)) for late in applications[1].resumed(5)]
    assert_kept(writer.truth, applications + late)
    for application in applications:
        assert application.slowest < CALL + MARGIN, application.name
    logging.getLogger(__name__).info(
        "written %d, delivered %d, deaths %d, failures %s, slowest %s s",
        len(writer.truth),
        sum(application.delivered for application in applications),
        sum(len(application.lives) - 1 for application in applications),
        [len(application.failures) for application in applications],
        [round(application.slowest, 1) for application in applications],
    )


@contextmanager
def killed(cluster):
    """Without the member that is the primary now; with all members again, in the end."""
    member = cluster.wait_primary()
    cluster.kill(member)
    try:
        yield
    finally:
        cluster.restart(member)
        cluster.wait_healthy()


@contextmanager
def paused(cluster):
    """The member that is the primary now hangs; it goes on in the end."""
    member = cluster.wait_primary()
    cluster.pause(member)
    try:
        yield
    finally:
        cluster.resume(member)


def go_on(writer, applications):
    """Until everybody has come to where the writer is by now."""
    place = len(writer.truth)
    wait_until(lambda: all(each.error or each.place >= place for each in applications))


def test_ten_kills_of_a_primary_under_load_lose_nothing(three, database):
    with load(three, database) as (writer, _):
        for _ in range(10):
            with killed(three):
                writer.wait_for(30)


def test_a_primary_that_steps_down_loses_nothing(three, database):
    with load(three, database) as (writer, applications):
        for _ in range(3):
            primary = three.wait_primary()
            three.step_down()
            writer.wait_for(30)
            assert three.wait_primary() != primary
            go_on(writer, applications)


def test_a_primary_that_hangs_stops_nobody(three, database):
    """Its connections stay open and say nothing: another one is read while it hangs."""
    with load(three, database) as (writer, applications):
        with paused(three):
            writer.wait_for(30)
            go_on(writer, applications)
        # It had not noticed that another was elected.
        writer.wait_for(30)
        go_on(writer, applications)


@pytest.mark.parametrize("trouble", ["cut", "drop"])
def test_a_network_that_fails_loses_nothing(proxied, database, trouble):
    """Connections are reset, or stay open and swallow everything; the writer is spared."""
    with load(proxied, database) as (writer, applications):
        for _ in range(3):
            for proxy in proxied.proxies.values():
                getattr(proxy, trouble)()
            writer.wait_for(100)
            for proxy in proxied.proxies.values():
                proxy.heal()
            go_on(writer, applications)


@pytest.mark.parametrize("size", [7, 0], ids=["small pages", "large pages"])
def test_a_primary_that_dies_between_two_pages_costs_nothing(three, database, size):
    """In the middle of a batch of the server, of which some was handed out already; no call fails."""
    writer, events = Writer(three.client(), database), []
    with connect(ClientConfig("mongo", {"url": url(three)})) as client:
        start = ChangeFeedRequest(ResourceAddress(database, COLLECTION), Now(), max_page_size=size)
        token = client.read_changes(start).continuation_token

        def read():
            request = attrs.evolve(start, start_position=FromContinuationToken(token))
            page = client.read_changes(request, OperationOptions(CALL, 0.2))
            events.extend(page.events)
            return page.continuation_token

        writer.write(300)
        token = read()
        with killed(three):
            writer.write(10)
            until = time.monotonic() + CALL
            while len(events) < len(writer.truth):
                token = read()
            assert time.monotonic() < until
    assert [seen(event) for event in events] == writer.truth
