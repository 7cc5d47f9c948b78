"""Tests the bound of an answer over HTTP, with urllib3's own pools and a server that sends what it likes."""

import socket
import threading
from contextlib import nullcontext, suppress

import pytest
import urllib3

from multiclouddb_spi import ProviderFault
from multiclouddb_spi.bounded_pools import AnswerBound, bounded_pools
from multiclouddb_spi.time_limits import Arrival

BOUND = AnswerBound(1 << 20, "a page has at most 1 kB")


@pytest.fixture
def served():
    """Return a function that starts a server of one answer, and returns its URL."""
    threads = []

    def start(*parts):
        listener = socket.create_server(("127.0.0.1", 0))

        def serve():
            with listener, listener.accept()[0] as taken, suppress(OSError):
                taken.recv(65536)
                for part in parts:
                    taken.sendall(part)

        threads.append(threading.Thread(target=serve))
        threads[-1].start()
        return f"http://127.0.0.1:{listener.getsockname()[1]}/"

    yield start
    for thread in threads:
        thread.join()


@pytest.fixture(params=[False, True], ids=["alone", "with an arrival"])
def get(request):
    """Return a function that reads an answer; the second time with limits of time too."""

    def got(url):
        with urllib3.PoolManager() as manager, Arrival() if request.param else nullcontext():
            manager.pool_classes_by_scheme = bounded_pools(manager.pool_classes_by_scheme, BOUND)
            return manager.request("GET", url, retries=False).data

    return got


HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"


def test_an_answer_within_the_bound_is_read_whole(served, get):
    body = bytes(range(256)) * 4000
    assert get(served(HEAD % len(body), body)) == body


@pytest.mark.parametrize(
    "parts",
    [
        (HEAD % (2 << 20), bytes(2 << 20)),
        (b"HTTP/1.1 200 OK\r\n\r\n", *(bytes(1 << 20) for _ in range(64))),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            *(b"1000\r\n%b\r\n" % bytes(4096) for _ in range(9999)),
        ),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 99_999,),
    ],
    ids=["announced", "until the end", "chunked", "continued"],
)
def test_an_answer_beyond_the_bound_is_given_up(served, get, parts):
    with pytest.raises(
        ProviderFault, match="the answer has more than 1 MiB; a page has at most 1 kB"
    ) as refused:
        get(served(*parts))
    assert (refused.value.fault.category, refused.value.fault.retryable) == ("PROVIDER_ERROR", False)


def test_each_answer_is_counted_alone():
    bound = AnswerBound(10, "")
    for _ in range(3):
        assert [*bound.within([b"12345", b"", b"67890"])] == [b"12345", b"", b"67890"]
    taken = bound.within(iter([b"12345", b"67890", b"x", b"never"]))
    assert [next(taken), next(taken)] == [b"12345", b"67890"]
    with pytest.raises(ProviderFault):
        next(taken)
