"""The HTTP session below azure-cosmos, and the executor of its requests to several regions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Executor, Future
from typing import Any, Final
from urllib.parse import urlsplit

import requests
from requests.adapters import HTTPAdapter
from requests.structures import CaseInsensitiveDict
from requests.utils import default_headers, get_encoding_from_headers

from multiclouddb_spi.bounded_pools import bounded_pools

_PLAIN: Final = frozenset(
    {"headers", "data", "files", "verify", "timeout", "cert", "allow_redirects", "proxies"}
)
"""The arguments of the requests that azure-cosmos makes."""
_USUAL: Final = {name: default_headers()[name] for name in ("Accept-Encoding", "Connection")}


class Headers(CaseInsensitiveDict[str]):
    """The headers of an answer, which other threads can extend while one thread reads them."""

    # azure-cosmos keeps the headers of the client's last answer in a field that all threads share, and adds
    # entries to the headers there. Meanwhile, the thread that received the answer copies the headers.

    def __iter__(self) -> Iterator[str]:
        """Return the names that exist at the time of the call."""
        stored: Any = self._store
        return iter([name for name, _ in list(stored.values())])


class Session(requests.Session):
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
        # The whole body is read at once. The `requests` library would read the body in steps of 10 KB, which
        # takes as long as parsing the page.
        answer._content = b"".join(answer.iter_content(None))
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
        answer = requests.Response()
        answer.status_code, answer.reason = resp.status, resp.reason
        answer.headers = Headers(resp.headers)
        answer.encoding = get_encoding_from_headers(answer.headers)
        answer.raw, answer.url, answer.request = resp, req.url, req
        return answer


def _bound(manager: Any) -> None:
    manager.pool_classes_by_scheme = bounded_pools(manager.pool_classes_by_scheme)


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
