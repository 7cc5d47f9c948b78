"""Makes a client of azure-cosmos whose transport observes requests, and asks for a page of one range.

azure-cosmos nests retries of a page inside other retries, and some of its retries have no limit.
azure-cosmos cannot always resume from its own continuations, and it silently widens a range that spans
several partitions. Therefore this provider passes only one range per call. Some answers can be handled
correctly only by the provider; at the first such answer, the transport ends the call.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError, Executor, Future
from contextlib import contextmanager, suppress
from email.utils import formatdate
from typing import Any, Final
from urllib.parse import urlsplit

import requests
from attrs import define
from azure.core.pipeline.transport import RequestsTransport
from azure.cosmos import CosmosClient
from azure.cosmos.exceptions import CosmosClientTimeoutError, CosmosHttpResponseError
from requests.adapters import HTTPAdapter
from requests.structures import CaseInsensitiveDict
from requests.utils import default_headers, get_encoding_from_headers
from urllib3.util.retry import Retry

from multiclouddb_api import ErrorCategory
from multiclouddb_cosmos.config import CosmosConfig
from multiclouddb_cosmos.credentials import RenewableCredential
from multiclouddb_cosmos.errors import BAD_REQUEST, GONE, RECREATED, TOO_MANY, retry_after
from multiclouddb_cosmos.position import KeyRange
from multiclouddb_spi import Deadline, ProviderFault
from multiclouddb_spi.bounded_pools import AnswerBound, bounded_pools

_PLAIN: Final = frozenset(
    {"headers", "data", "files", "verify", "timeout", "cert", "allow_redirects", "proxies"}
)
"""The arguments of the requests that azure-cosmos makes."""
_BOUND: Final = AnswerBound(
    32 << 20, "a page of Cosmos DB has at most 4 MB, which JSON's escapes make at most six times as long"
)
# https://learn.microsoft.com/azure/cosmos-db/concepts-limits#sql-query-limits: the maximum size of a response
_STEP_BYTES: Final = _BOUND.nbytes + 1
"""How much is decompressed at once. In smaller steps, urllib3 would copy what is left at each of them."""
_USUAL: Final = {name: default_headers()[name] for name in ("Accept-Encoding", "Connection")}


class Headers(CaseInsensitiveDict[str]):
    """The headers of an answer, which other threads can extend while one thread reads them."""

    # azure-cosmos keeps the headers of the client's last answer in a field that all threads share, and adds
    # entries to the headers there. Meanwhile, the thread that received the answer copies the headers.

    def __iter__(self) -> Iterator[str]:
        """Return the names that exist at the time of the call."""
        while True:
            try:
                return iter(list(super().__iter__()))
            except RuntimeError:  # another thread has just extended them
                continue


class HttpSession(requests.Session):
    """A requests session that reads the environment only once per host, and never reads a `.netrc` file."""

    # The `requests` library also reads `.netrc`. An authorization from `.netrc` would replace the
    # authorization that azure-cosmos has made.

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
        """Send a request like the `requests` library, but with fewer steps for a plain read."""
        if method != "GET" or args or kwargs.keys() != _PLAIN or kwargs["data"] or kwargs["files"]:
            return super().request(method, url, *args, **kwargs)
        settings = self.merge_environment_settings(
            url, kwargs["proxies"] or {}, False, kwargs["verify"], kwargs["cert"]
        )
        asked = requests.PreparedRequest()
        asked.method, asked.url = method, self._prepared(url)
        asked.headers = {**_USUAL, **kwargs["headers"]}  # type: ignore[assignment]
        answer = self.get_adapter(asked.url).send(asked, timeout=kwargs["timeout"], **settings)
        _ = answer.content  # from here on, the connection can serve other requests
        return answer

    def _prepared(self, url: str) -> str:
        """Return the URL in the form that the `requests` library uses."""
        # The result is remembered, because each container has only one URL.
        found = self._urls.get(url)
        if found is None:
            asked = requests.PreparedRequest()
            asked.prepare_url(url, None)
            found = self._urls[url] = str(asked.url)
        return found


class FeedResponse(requests.Response):
    """An answer whose body is bounded while it is decompressed, and can be replaced."""

    body: bytes | None = None
    """The body, once it was read."""

    @property
    def content(self) -> bytes:
        """Return the whole body."""
        # The `requests` library would read it in steps of 10 KB, which takes as long as parsing the page.
        if self.body is None:
            self.body = b"".join(self.iter_content(_STEP_BYTES))
        return self.body

    def iter_content(self, chunk_size: int | None = 1, decode_unicode: Any = False) -> Iterator[Any]:
        """Return the chunks of the body."""
        try:
            yield from _BOUND.within(super().iter_content(chunk_size or _STEP_BYTES, decode_unicode))
        except ProviderFault:
            self.close()
            raise


class Adapter(HTTPAdapter):
    """An adapter that reads no cookies from answers, and gives up answers that do not arrive."""

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        """Make the pools of connections."""
        super().init_poolmanager(*args, **kwargs)
        _bound(self.poolmanager)

    def proxy_manager_for(self, proxy: Any, **kwargs: Any) -> Any:
        """Return the pools of connections to a proxy."""
        known = proxy in self.proxy_manager
        found: Any = super().proxy_manager_for(proxy, **kwargs)
        if not known:
            _bound(found)
        return found

    def build_response(self, req: Any, resp: Any) -> requests.Response:
        """Return the answer before its body is read."""
        answer = FeedResponse()
        answer.status_code, answer.reason = resp.status, resp.reason
        answer.headers = Headers(resp.headers)
        answer.encoding = get_encoding_from_headers(answer.headers)
        answer.raw, answer.url, answer.request = resp, req.url, req
        return answer


def _bound(manager: Any) -> None:
    manager.pool_classes_by_scheme = bounded_pools(manager.pool_classes_by_scheme, _BOUND)


def _unchanged(request: Any) -> Any:
    return request


class SameThread(Executor):
    """Runs the requests of an account with per-partition automatic failover in the calling thread."""

    # A `Watch` does not observe other threads. Therefore this class runs the first request in the calling
    # thread, and does not send the other requests.

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


def separate_locks(client: CosmosClient) -> None:
    """Give a client its own locks for listings, if azure-cosmos has them where they were seen."""
    # azure-cosmos makes the lock of a container when it needs it.
    cache: Any = getattr(client.client_connection, "_routing_map_provider", None)
    if hasattr(cache, "_collection_locks") and hasattr(cache, "_locks_lock"):
        cache._collection_locks, cache._locks_lock = {}, threading.Lock()


ALL_VERSIONS: Final = "AllVersionsAndDeletes"
LATEST: Final = "LatestVersion"
NOW: Final = "Now"
BEGINNING: Final = "Beginning"
_OK: Final = 200
_NOT_MODIFIED: Final = 304
_PAGE_PARTS: Final = 5
_ITEM_PARTS: Final = 6
_SPARE_CONNECTIONS: Final = 8
_CONNECT_SECONDS: Final = 5
_READ_SECONDS: Final = 10
_LEAST_SECONDS: Final = 0.1
_CLOSE_SECONDS: Final = 0.5
_LATEST_SECONDS: Final = 0.1
_EARLY_SECONDS: Final = 10
_NO_ITEMS: Final = b'{"Documents":[]}'
_THREAD: Final = "cosmos-endpoint-refresh"
_INTENDED: Final = "x-ms-cosmos-intended-collection-rid"
_PAST_CACHES: Final = "x-ms-dedicatedgateway-bypass-cache"
_VERSION: Final = "v2"


class MovedError(Exception):
    """Raised if a range now spans several partitions."""

    # If the call continued, azure-cosmos would read a wrong range.


class DamagedTextError(Exception):
    """Raised if the answer to a look-up is no UTF-8."""


class _EndedError(Exception):
    """Ends a call that azure-cosmos would otherwise retry."""

    def __init__(self, reason: Exception) -> None:
        super().__init__(reason)
        self.reason = reason


@contextmanager
def unwrapped() -> Iterator[None]:
    """Raise the reason for which a call was ended."""
    try:
        yield
    except _EndedError as ended:
        raise ended.reason from None


def end_if_throttled(deadline: Deadline, seen: dict[str, Any] | None = None) -> Callable[[Any], None]:
    """Return a hook for each answer that the application's own client gets.

    The texts of pages are kept in `seen`, each with its position: of several requests for one page, which go
    to several regions, azure-cosmos takes the answer to one.
    """
    # The hook ends the call if the service asks the client to wait until after the deadline. Otherwise azure-
    # cosmos would still be waiting at the deadline, and the caller would not learn the reason.

    def hook(response: Any) -> None:
        if response.http_response.status_code == TOO_MANY:
            refusal = _refusal(response.http_response)
            if (retry_after(refusal) or 0.0) + _LATEST_SECONDS >= deadline.remaining():
                raise _EndedError(refusal)
        elif (
            seen is not None and response.http_response.status_code == _OK and _is_page(response.http_request)
        ):
            answer = response.http_response
            seen.setdefault("texts", {})[answer.headers.get("etag")] = answer.body()

    return hook


def end_if_damaged(also: Callable[[Any], None] | None) -> Callable[[Any], None]:
    """Return a hook for each answer of a look-up, which ends the call if an answer is no UTF-8."""
    # Whether azure-cosmos decodes such an answer, and how, is for a variable of the environment to say:
    # AZURE_COSMOS_CHARSET_DECODER_ERROR_ACTION_ON_MALFORMED_INPUT.

    def hook(response: Any) -> None:
        if also is not None:
            also(response)
        if response.http_response.status_code == _OK and not is_text(response.http_response.body()):
            raise _EndedError(DamagedTextError())

    return hook


def is_text(body: bytes) -> bool:
    """Return True if an answer is UTF-8."""
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


@define
class Watch:
    """The observations of the transport during one call."""

    deadline: Deadline  # the time limit of the call
    body: bytes | None = None  # the page as the service sent it
    answered: bool = False  # true after the service has sent a page or the answer "nothing new"
    requests: int = 0  # the number of requests that were made


class Transport(RequestsTransport):  # type: ignore[misc]
    """HTTP transport of the provider's own client. It records the requests for pages."""

    def __init__(self, connections: int) -> None:
        session = HttpSession()
        adapter = Adapter(
            pool_connections=connections,
            pool_maxsize=connections,
            max_retries=Retry(total=False, redirect=False, raise_on_status=False),
        )
        for scheme in ("http://", "https://"):
            session.mount(scheme, adapter)
        super().__init__(session=session)
        self._local = threading.local()

    @contextmanager
    def watching(self, deadline: Deadline) -> Iterator[Watch]:
        """Observe the calls of this thread."""
        self._local.watch = watch = Watch(deadline)
        try:
            with unwrapped():
                yield watch
        finally:
            self._local.watch = None

    def send(self, request: Any, **kwargs: Any) -> Any:
        """Send a request. If the request asks for a page, examine the answer."""
        watch = getattr(self._local, "watch", None)
        if watch is not None:
            if watch.deadline.passed():
                raise _EndedError(CosmosClientTimeoutError())  # type: ignore[no-untyped-call]
            # An answer may arrive after the deadline of its call; then it belongs to the next call.
            # Of other answers only this call has a use.
            left = _READ_SECONDS if _is_page(request) else max(_LEAST_SECONDS, watch.deadline.remaining())
            kwargs["read_timeout"] = min(kwargs.get("read_timeout", _READ_SECONDS), _READ_SECONDS, left)
        if watch is None or not _is_page(request):
            # azure-cosmos leaves out the hook of a query that it has to send to each partition.
            request.headers[_PAST_CACHES] = "true"
            answer = super().send(request, **kwargs)
            if _is_foreign(answer.status_code):
                raise _refusal(answer)
            if answer.status_code in (GONE, TOO_MANY) and watch is not None:
                # azure-cosmos would repeat a throttled request nine times. To handle the other answer, it
                # would list the partitions. If it lists them already, it would wait forever for a lock that
                # the same thread holds.
                raise _EndedError(_refusal(answer))
            return answer
        if watch.answered:
            raise MovedError
        watch.requests += 1
        answer = super().send(request, **kwargs)
        status = answer.status_code
        recreated = status == BAD_REQUEST and _substatus(answer) == RECREATED
        if recreated or status in (GONE, TOO_MANY) or _is_foreign(status):
            raise _EndedError(_refusal(answer))
        if status < BAD_REQUEST:
            watch.answered = True
        if status == _OK:
            # orjson parses the page later, in a fifth of the time.
            watch.body = answer.body()
            answer.internal_response.body = _NO_ITEMS
        return answer


def _is_page(request: Any) -> bool:
    """Return True if the path is `/dbs/DATABASE/colls/CONTAINER/docs/`; a container may be called `docs`."""
    parts = urlsplit(str(request.url)).path.strip("/").split("/")
    return request.method == "GET" and len(parts) == _PAGE_PARTS and parts[-1] == "docs"


def _is_foreign(status: int) -> bool:
    """Return True if only a proxy can have sent this status, because Cosmos DB never sends it to a read."""
    return status < BAD_REQUEST and status not in (_OK, _NOT_MODIFIED)


def _refusal(answer: Any) -> CosmosHttpResponseError:
    text = answer.body().decode("utf-8", "replace")
    return CosmosHttpResponseError(status_code=answer.status_code, message=text, response=answer)  # type: ignore[no-untyped-call]


def _substatus(answer: Any) -> int:
    text = str(answer.headers.get("x-ms-substatus", "0"))
    return int(text) if text.isdecimal() else 0


def make_client(
    config: CosmosConfig, concurrency: int
) -> tuple[CosmosClient, Transport, RenewableCredential | None]:
    """Make a client; azure-cosmos asks the service for the account's regions during this call."""
    # The client retries only in another region of the account.
    transport = Transport(concurrency + _SPARE_CONNECTIONS)
    credential = config.find_credential()
    renewable = None if isinstance(credential, str) else RenewableCredential(credential)
    client = CosmosClient(
        config.endpoint,
        renewable or credential,
        # The client sends no session tokens. With many partitions, each request would contain many session
        # tokens.
        consistency_level="Eventual",
        transport=transport,
        retry_total=0,
        retry_read=0,
        retry_connect=0,
        connection_timeout=_CONNECT_SECONDS,
        read_timeout=_READ_SECONDS,
        enable_endpoint_discovery=not config.is_local,
        user_agent_suffix="multiclouddb",
        availability_strategy_executor=SameThread(),
    )
    separate_locks(client)
    return client, transport, renewable


def close_client(client: CosmosClient) -> None:
    """Close the library's own client."""
    patience = Deadline.after(_CLOSE_SECONDS)
    for thread in threading.enumerate():
        if thread.name == _THREAD:
            with suppress(RuntimeError):  # it is just being started
                thread.join(patience.remaining())
    client.close()


def feed_range_of(place: KeyRange) -> dict[str, Any]:
    """Return a range in the form in which azure-cosmos lists the ranges of partitions."""
    return {"Range": {"min": place.low, "max": place.high, "isMinInclusive": True, "isMaxInclusive": False}}


def position_headers(etag: int | None, since: int | None) -> dict[str, str]:
    """Return the headers with which a page begins after an LSN, and has no items from long before a time."""
    # https://learn.microsoft.com/rest/api/cosmos-db/list-documents names them. A continuation of azure-cosmos
    # would say the same, but its format is private, and it would repeat the first request after a time.
    headers = {} if etag is None else {"If-None-Match": f'"{etag}"'}
    if since is not None:
        # The service's times are only precise to a few seconds, so the caller must filter out earlier items.
        headers["If-Modified-Since"] = formatdate(max(0, since - _EARLY_SECONDS), usegmt=True)
    return headers


def begin_at(headers: Mapping[str, str], rid: str, recreated: Exception) -> Callable[[Any], None]:
    """Return a hook that adds headers to a request for a page of the container with a resource id."""
    # azure-cosmos finds the container by its name. It asks again with the new resource id if it changes.

    def hook(asked: Any) -> None:
        request = asked.http_request
        if _is_page(request):
            if request.headers.get(_INTENDED, rid) != rid:
                raise _EndedError(recreated)
            request.headers.update(headers)

    return hook


def uncached(asked: Any) -> None:
    """Let a dedicated gateway answer a look-up from the container, and not from its cache.

    With Session consistency and weaker, its integrated cache answers with items that may be minutes old:
    https://learn.microsoft.com/azure/cosmos-db/integrated-cache
    """
    asked.http_request.headers[_PAST_CACHES] = "true"


def is_own(headers: Mapping[str, Any]) -> bool:
    """Return True if the headers are those of an answer of the service, and not of a proxy."""
    return any(str(name).lower().startswith("x-ms-") for name in headers)


def is_of_item(error: CosmosHttpResponseError) -> bool:
    """Return True if it is the service that refused a request, and the request asked for an item."""
    # During a call for an item, azure-cosmos may also ask for the account, the container and its partitions.
    answer: Any = error.response
    if not is_own(getattr(answer, "headers", None) or {}):
        return False
    parts = urlsplit(str(answer.request.url)).path.strip("/").split("/")
    return len(parts) == _ITEM_PARTS and parts[-2] == "docs"


def ranges_in(continuation: str) -> list[KeyRange]:
    """Return the ranges that a continuation of azure-cosmos contains."""
    version: object = None
    with suppress(ValueError, KeyError, TypeError, AttributeError):
        found = json.loads(base64.b64decode(continuation))
        version = found.get("v")
        if version == _VERSION:
            queue = found["continuation"]["continuation"]
            return [KeyRange(each["range"]["min"], each["range"]["max"]) for each in queue]
    raise ProviderFault.of(
        ErrorCategory.PROVIDER_ERROR,
        f"this azure-cosmos writes continuations of the version {version!r}, which do not say in a known way "
        f"which partition was read; install azure-cosmos 4.17, which writes {_VERSION!r}, and report this",
    )
