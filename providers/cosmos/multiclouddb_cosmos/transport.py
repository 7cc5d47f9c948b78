"""azure-cosmos as we use it: our client of it, what its transport tells us, and one-range continuations.

azure-cosmos retries a page inside of retries, and some of its retries have no bound. Its own continuations
cannot always be resumed, and a range that reaches over several partitions is widened in silence. So it gets
one range per call, and a transport that ends a call with the first answer that only we can treat rightly.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
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
_SPARE_CONNECTIONS: Final = 8
_CONNECT_SECONDS: Final = 5
_READ_SECONDS: Final = 10
_EARLY_SECONDS: Final = 10
_NO_ITEMS: Final = b'{"Documents":[]}'
_THREAD: Final = "cosmos-endpoint-refresh"


class MovedError(Exception):
    """The range lies in several partitions by now: azure-cosmos would read another one."""


class _EndedError(Exception):
    """Ends a call of azure-cosmos, which would retry it: no retry of it catches this class.

    Args:
        answer: What the service answered.
    """

    def __init__(self, answer: CosmosHttpResponseError) -> None:
        super().__init__(answer)
        self.answer = answer


@attrs.define
class Watch:
    """What the transport saw of one call.

    Attributes:
        body: The page as it came; None while there is none.
        answered: True once a page, or "nothing new", came.
        requests: How many requests were made.
    """

    body: bytes | None = None
    answered: bool = False
    requests: int = 0


class _Session(requests.Session):
    """A session that reads the environment once for each host, and never a `.netrc`.

    For each request, requests looks through all variables for a proxy and asks `.netrc` for another
    authorization than the one that azure-cosmos has made.
    """

    def __init__(self) -> None:
        super().__init__()
        self.auth = _unchanged
        self._settings: dict[tuple[Any, ...], Any] = {}

    def merge_environment_settings(self, url: Any, proxies: Any, stream: Any, verify: Any, cert: Any) -> Any:
        """As in requests, but remembered."""
        asked = (urlsplit(str(url))[:2], str(proxies), stream, verify, cert)
        if asked not in self._settings:
            self._settings[asked] = super().merge_environment_settings(url, proxies, stream, verify, cert)
        return dict(self._settings[asked])


def _unchanged(request: Any) -> Any:
    return request


class Transport(RequestsTransport):  # type: ignore[misc]
    """The transport of our client: it watches the requests of a page. For several threads.

    Args:
        connections: How many connections are kept open.
    """

    def __init__(self, connections: int) -> None:
        session = _Session()
        adapter = HTTPAdapter(
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
        """Watch the calls of this thread.

        Raises:
            CosmosHttpResponseError: An answer that azure-cosmos must not retry.
            MovedError: A second page was asked for.
        """
        self._local.watch = watch = Watch()
        try:
            yield watch
        except _EndedError as ended:
            raise ended.answer from None
        finally:
            self._local.watch = None

    def send(self, request: Any, **kwargs: Any) -> Any:
        """Send a request; for a page, look at the answer first."""
        watch = getattr(self._local, "watch", None)
        if watch is None or not _is_page(request):
            return super().send(request, **kwargs)
        if watch.answered:
            raise MovedError
        watch.requests += 1
        answer = super().send(request, **kwargs)
        status = answer.status_code
        if status in (GONE, TOO_MANY) or (status == BAD_REQUEST and _substatus(answer) == RECREATED):
            text = answer.body().decode("utf-8", "replace")
            refusal = CosmosHttpResponseError(status_code=status, message=text, response=answer)  # type: ignore[no-untyped-call]
            raise _EndedError(refusal)
        if status < BAD_REQUEST:
            watch.answered = True
        if status == _OK:
            # orjson parses it later in a fifth of the time.
            watch.body = answer.body()
            answer.internal_response._content = _NO_ITEMS
        return answer


def _is_page(request: Any) -> bool:
    return bool(request.method == "GET") and urlsplit(str(request.url)).path.rstrip("/").endswith("/docs")


def _substatus(answer: Any) -> int:
    text = str(answer.headers.get("x-ms-substatus", "0"))
    return int(text) if text.isdecimal() else 0


def make_client(config: CosmosConfig, concurrency: int) -> tuple[CosmosClient, Transport]:
    """Make a client; azure-cosmos asks for the account's regions here.

    It retries nothing by itself, except in another region of the account.

    Args:
        config: The account.
        concurrency: How many calls run at a time.
    """
    transport = Transport(concurrency + _SPARE_CONNECTIONS)
    policy = ConnectionPolicy()
    retries = _no_retries()
    settings: dict[str, Any] = {"retry_throttle_total": 1}
    if retries is not None:
        policy.RetryOptions = retries
        settings = {}
    client = CosmosClient(
        config.endpoint,
        config.find_credential(),
        # It sends no session tokens, of which a client with many partitions has many.
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
    """The options without a retry of 429; None where azure-cosmos has moved their class."""
    try:
        from azure.cosmos._retry_options import RetryOptions
    except ImportError:  # pragma: no cover - a later version
        return None
    return RetryOptions(0)


def close_client(client: CosmosClient) -> None:
    """Close a client that we made, after its thread that looks at the account's regions has ended."""
    for thread in threading.enumerate():
        if thread.name == _THREAD:
            thread.join(0.5)
    client.close()


def continuation_of(rid: str, place: KeyRange, etag: int | None, mode: str, start: dict[str, Any]) -> str:
    """The continuation of azure-cosmos for one range.

    Args:
        rid: The container's resource id.
        place: The range.
        etag: The LSN to read after; None for nothing read yet.
        mode: `ALL_VERSIONS` or `LATEST`.
        start: Where reading began, in the form of azure-cosmos.
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
    """Where the feed of latest versions begins, in the form of azure-cosmos.

    The service keeps times to a few seconds: what is earlier has to be left out by the caller.

    Args:
        since: Seconds since 1970; None for its beginning.
    """
    if since is None:
        return {"Type": "Beginning"}
    early = max(0, since - _EARLY_SECONDS)
    return {"Type": "PointInTime", "PointInTimeMs": early * 1000 if _takes_milliseconds() else early}


@cache
def _takes_milliseconds() -> bool:
    """Whether this azure-cosmos reads a time in milliseconds, as it writes it; some versions want seconds."""
    from azure.cosmos._change_feed.change_feed_start_from import ChangeFeedStartFromPointInTime

    try:
        ChangeFeedStartFromPointInTime.from_json({"PointInTimeMs": 1_700_000_000_000})
    except ValueError:
        return False
    return True


def ranges_in(continuation: str) -> list[KeyRange]:
    """The ranges that a continuation of azure-cosmos goes on with."""
    queue = json.loads(base64.b64decode(continuation))["continuation"]["continuation"]
    return [KeyRange(each["range"]["min"], each["range"]["max"]) for each in queue]
