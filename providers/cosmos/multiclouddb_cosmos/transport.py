"""Makes a client of azure-cosmos whose transport observes requests, and makes continuations of one range.

azure-cosmos nests retries of a page inside other retries, and some of its retries have no limit.
azure-cosmos cannot always resume from its own continuations, and it silently widens a range that spans
several partitions. Therefore this provider passes only one range per call. Some answers can be handled
correctly only by the provider; at the first such answer, the transport ends the call.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Executor, Future
from contextlib import contextmanager
from functools import cache
from typing import Any, Final
from urllib.parse import urlsplit

import attrs
import orjson
import requests
from azure.core.pipeline.transport import RequestsTransport
from azure.cosmos import CosmosClient
from azure.cosmos.documents import ConnectionPolicy
from azure.cosmos.exceptions import CosmosHttpResponseError
from requests.adapters import HTTPAdapter
from requests.structures import CaseInsensitiveDict
from requests.utils import default_headers, get_encoding_from_headers
from urllib3.util.retry import Retry

from multiclouddb_cosmos.config import CosmosConfig
from multiclouddb_cosmos.errors import BAD_REQUEST, GONE, RECREATED, TOO_MANY
from multiclouddb_cosmos.ranges import KeyRange

__all__ = [
    "ALL_VERSIONS",
    "LATEST",
    "MovedError",
    "Transport",
    "Watch",
    "close_client",
    "continuation_of",
    "make_client",
    "ranges_in",
    "start_of",
]

ALL_VERSIONS: Final = "AllVersionsAndDeletes"
LATEST: Final = "LatestVersion"
_OK: Final = 200
_MULTIPLE_CHOICES: Final = 300
_NOT_MODIFIED: Final = 304
_SPARE_CONNECTIONS: Final = 8
_CONNECT_SECONDS: Final = 5
_READ_SECONDS: Final = 10
_EARLY_SECONDS: Final = 10
_NO_ITEMS: Final = b'{"Documents":[]}'
_PLAIN: Final = frozenset(
    {"headers", "data", "files", "verify", "timeout", "cert", "allow_redirects", "proxies"}
)
"""The arguments of the requests that azure-cosmos makes."""
_USUAL: Final = {name: default_headers()[name] for name in ("Accept-Encoding", "Connection")}
_THREAD: Final = "cosmos-endpoint-refresh"


class MovedError(Exception):
    """Raised if a range now spans several partitions.

    If the call continued, azure-cosmos would read a wrong range.
    """


class _EndedError(Exception):
    """Ends a call that azure-cosmos would otherwise retry.

    The retry code of azure-cosmos does not catch this class.

    Args:
        answer: The answer that the service sent.
    """

    def __init__(self, answer: CosmosHttpResponseError) -> None:
        super().__init__(answer)
        self.answer = answer


@attrs.define
class Watch:
    """The observations of the transport during one call.

    Attributes:
        body: The page as the service sent it; None until a page is received.
        answered: True after the service has sent a page or the answer "nothing new".
        requests: The number of requests that were made.
    """

    body: bytes | None = None
    answered: bool = False
    requests: int = 0


class _Session(requests.Session):
    """A requests session that reads the environment only once per host, and never reads a `.netrc` file.

    By default, the library requests searches all environment variables for a proxy before each request. The
    library requests also reads `.netrc`. An authorization from `.netrc` would replace the authorization that
    azure-cosmos has made.
    """

    def __init__(self) -> None:
        super().__init__()
        self.auth = _unchanged
        self._settings: dict[tuple[Any, ...], Any] = {}
        self._urls: dict[str, str] = {}

    def merge_environment_settings(self, url: Any, proxies: Any, stream: Any, verify: Any, cert: Any) -> Any:
        """Merge the settings in the same way as the `requests` library, and remember the result."""
        asked = (urlsplit(str(url))[:2], str(proxies), stream, verify, cert)
        if asked not in self._settings:
            self._settings[asked] = super().merge_environment_settings(url, proxies, stream, verify, cert)
        return dict(self._settings[asked])

    def request(self, method: Any, url: Any, *args: Any, **kwargs: Any) -> requests.Response:
        """Send a request like the `requests` library, but with fewer steps for a plain read.

        For each request, the `requests` library merges and checks settings, headers and cookies. These steps
        take a quarter of the CPU time of a call. A read of azure-cosmos needs none of these steps: the
        headers are complete, and the service sets no cookies. All other requests are sent in the usual way.
        """
        if method != "GET" or args or kwargs.keys() != _PLAIN or kwargs["data"] or kwargs["files"]:
            return super().request(method, url, *args, **kwargs)
        settings = self.merge_environment_settings(
            url, kwargs["proxies"] or {}, False, kwargs["verify"], kwargs["cert"]
        )
        asked = requests.PreparedRequest()
        asked.method, asked.url = method, self._prepared(url)
        asked.headers = {**_USUAL, **kwargs["headers"]}  # type: ignore[assignment]
        answer = self.get_adapter(asked.url).send(asked, timeout=kwargs["timeout"], **settings)
        # The whole body is read at once. The `requests` library would read the body in steps of 10 KB, which
        # takes as long as parsing the page.
        answer._content = b"".join(answer.iter_content(None))
        return answer

    def _prepared(self, url: str) -> str:
        """Return the URL in the form that the `requests` library uses.

        The result is remembered, because each container has only one URL.
        """
        found = self._urls.get(url)
        if found is None:
            asked = requests.PreparedRequest()
            asked.prepare_url(url, None)
            found = self._urls[url] = str(asked.url)
        return found


class _Adapter(HTTPAdapter):
    """An adapter that reads no cookies from answers."""

    def build_response(self, req: Any, resp: Any) -> requests.Response:
        """Return the answer before its body is read."""
        answer = requests.Response()
        answer.status_code, answer.reason = resp.status, resp.reason
        answer.headers = CaseInsensitiveDict(resp.headers)
        answer.encoding = get_encoding_from_headers(answer.headers)
        answer.raw, answer.url, answer.request = resp, req.url, req
        return answer


def _unchanged(request: Any) -> Any:
    return request


class _SameThread(Executor):
    """Runs the requests of an account with per-partition automatic failover in the calling thread.

    For an account with per-partition automatic failover, azure-cosmos sends each read in a separate thread,
    and sends a second read to another region if the first read is slow. A `Watch` does not observe other
    threads. Therefore this class runs the first request in the calling thread, and does not send the other
    requests.
    """

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run the request to the first region, and cancel the requests to other regions."""
        future: Future[Any] = Future()
        try:
            if kwargs.get("location_index"):
                raise CancelledError
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 - the caller of the future gets it
            future.set_exception(error)
        return future


class Transport(RequestsTransport):  # type: ignore[misc]
    """The transport of the provider's own client; it observes the requests for pages.

    Several threads can use this object.

    Args:
        connections: The number of connections that are kept open.
    """

    def __init__(self, connections: int) -> None:
        session = _Session()
        adapter = _Adapter(
            pool_connections=connections,
            pool_maxsize=connections,
            max_retries=Retry(total=False, redirect=False, raise_on_status=False),
        )
        for scheme in ("http://", "https://"):
            session.mount(scheme, adapter)
        super().__init__(session=session)
        self._local = threading.local()

    @contextmanager
    def watching(self) -> Iterator[Watch]:
        """Observe the calls of this thread.

        Raises:
            CosmosHttpResponseError: Raised if the service sends an answer that azure-cosmos must not retry.
            MovedError: Raised if a second page was requested.
        """
        self._local.watch = watch = Watch()
        try:
            yield watch
        except _EndedError as ended:
            raise ended.answer from None
        finally:
            self._local.watch = None

    def send(self, request: Any, **kwargs: Any) -> Any:
        """Send a request. If the request asks for a page, examine the answer."""
        watch = getattr(self._local, "watch", None)
        if watch is None or not _is_page(request):
            answer = super().send(request, **kwargs)
            if _is_foreign(answer.status_code):
                raise _refusal(answer)
            return answer
        if watch.answered:
            raise MovedError
        watch.requests += 1
        answer = super().send(request, **kwargs)
        status = answer.status_code
        recreated = status == BAD_REQUEST and _substatus(answer) == RECREATED
        if (
            recreated
            or status in (GONE, TOO_MANY)
            or (_OK < status < BAD_REQUEST and status != _NOT_MODIFIED)
        ):
            raise _EndedError(_refusal(answer))
        if status < BAD_REQUEST:
            watch.answered = True
        if status == _OK:
            # orjson parses the page later, in a fifth of the time.
            watch.body = answer.body()
            answer.internal_response._content = _NO_ITEMS
        return answer


def _is_page(request: Any) -> bool:
    return bool(request.method == "GET") and urlsplit(str(request.url)).path.rstrip("/").endswith("/docs")


def _is_foreign(status: int) -> bool:
    """Return True if only a proxy can have sent this status, because Cosmos DB never does."""
    return status < _OK or (_MULTIPLE_CHOICES <= status < BAD_REQUEST and status != _NOT_MODIFIED)


def _refusal(answer: Any) -> CosmosHttpResponseError:
    text = answer.body().decode("utf-8", "replace")
    return CosmosHttpResponseError(status_code=answer.status_code, message=text, response=answer)  # type: ignore[no-untyped-call]


def _substatus(answer: Any) -> int:
    text = str(answer.headers.get("x-ms-substatus", "0"))
    return int(text) if text.isdecimal() else 0


def make_client(config: CosmosConfig, concurrency: int) -> tuple[CosmosClient, Transport]:
    """Make a client; azure-cosmos asks the service for the account's regions during this call.

    The client retries only in another region of the account.

    Args:
        config: The account.
        concurrency: The number of calls that run at the same time.
    """
    transport = Transport(concurrency + _SPARE_CONNECTIONS)
    policy = ConnectionPolicy()
    retries = _no_retries()
    settings: dict[str, Any] = {"availability_strategy_executor": _SameThread()}
    if retries is not None:
        policy.RetryOptions = retries
    else:
        settings["retry_throttle_total"] = 1
    client = CosmosClient(
        config.endpoint,
        config.find_credential(),
        # The client sends no session tokens. With many partitions, each request would contain many session
        # tokens.
        consistency_level="Eventual",
        connection_policy=policy,
        transport=transport,
        retry_total=0,
        retry_read=0,
        retry_connect=0,
        connection_timeout=_CONNECT_SECONDS,
        read_timeout=_READ_SECONDS,
        enable_endpoint_discovery=not config.is_local,
        user_agent_suffix="multiclouddb",
        **settings,
    )
    return client, transport


def _no_retries() -> Any:
    """Return the options that disable the retry of a 429 answer.

    Return None if the class of these options is not found in azure-cosmos.
    """
    try:
        from azure.cosmos._retry_options import RetryOptions
    except ImportError:  # pragma: no cover - a later version
        return None
    return RetryOptions(0)


def close_client(client: CosmosClient) -> None:
    """Close the library's own client.

    First wait, for about half a second at most, until the thread that checks the account's regions has ended.
    """
    for thread in threading.enumerate():
        if thread.name == _THREAD:
            thread.join(0.5)
    client.close()


def continuation_of(rid: str, place: KeyRange, etag: int | None, mode: str, start: dict[str, Any]) -> str:
    """Return the continuation for one range, in the format of azure-cosmos.

    Args:
        rid: The resource id of the container.
        place: The range.
        etag: The LSN after which to read; None if nothing was read yet.
        mode: `ALL_VERSIONS` or `LATEST`.
        start: The start of the read, in the format of azure-cosmos.
    """
    span = {"min": place.low, "max": place.high, "isMinInclusive": True, "isMaxInclusive": False}
    body = {
        "v": "v2",
        "containerRid": rid,
        "mode": mode,
        "startFrom": start,
        "continuation": {
            "v": "v2",
            "rid": rid,
            "Range": span,
            "continuation": [{"token": "" if etag is None else f'"{etag}"', "range": span}],
        },
    }
    return base64.b64encode(orjson.dumps(body)).decode("ascii")


def start_of(since: int | None) -> dict[str, Any]:
    """Return the start of the feed of latest versions, in the format of azure-cosmos.

    The service's times are only precise to a few seconds, so the caller must filter out earlier items.

    Args:
        since: Seconds since 1970; None for the beginning of the feed.
    """
    if since is None:
        return {"Type": "Beginning"}
    early = max(0, since - _EARLY_SECONDS)
    return {"Type": "PointInTime", "PointInTimeMs": early * 1000 if _takes_milliseconds() else early}


@cache
def _takes_milliseconds() -> bool:
    """Return True if this version of azure-cosmos expects times in milliseconds.

    Some versions of azure-cosmos expect seconds.
    """
    from azure.cosmos._change_feed.change_feed_start_from import ChangeFeedStartFromPointInTime

    try:
        ChangeFeedStartFromPointInTime.from_json({"PointInTimeMs": 1_700_000_000_000})
    except ValueError:
        return False
    return True


def ranges_in(continuation: str) -> list[KeyRange]:
    """Return the ranges that a continuation of azure-cosmos contains."""
    queue = json.loads(base64.b64decode(continuation))["continuation"]["continuation"]
    return [KeyRange(each["range"]["min"], each["range"]["max"]) for each in queue]
