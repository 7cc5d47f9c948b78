"""Asks whether the service of a machine that gives credentials cannot be used just now.

The libraries of AWS and Google treat a metadata service that fails, or is slow, as one that does not exist,
and then say that there are no credentials. The DynamoDB and the Spanner provider and the checkpoint stores
ask here what is true.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable
from typing import Final
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

__all__ = ["NO_GOOGLE_TOKENS", "MachineRole", "aws_fails", "google_fails"]

NO_GOOGLE_TOKENS: Final = re.compile(
    r"Metadata server unavailable|Max retries exceeded|Connection aborted|timed out"
    r"|internal_failure|server_error|temporarily_unavailable|\"(?:code|status)\": ?5\d\d\b",
    re.IGNORECASE,
)
"""What google-auth says if the service that gives tokens cannot be reached or fails.

That is the machine's metadata server, or Google's. If a machine has no account, its metadata server answers,
and this is not said.
"""

_ADDRESS: Final = "169.254.169.254"
_TOKEN: Final = "latest/api/token"
_ROLES: Final = "latest/meta-data/iam/security-credentials/"
_ANSWER_SECONDS: Final = 3.0
_MOST_BYTES: Final = 1 << 16
_KEPT_SECONDS: Final = 1.0
_OK: Final = 200
_TOO_MANY: Final = 429
_FAILS: Final = 500


class MachineRole:
    """The metadata service of the machine, with its last answer. Several threads can share one object.

    Args:
        fails: `aws_fails` or `google_fails`.
    """

    def __init__(self, fails: Callable[[], bool]) -> None:
        self._fails, self._lock = fails, threading.Lock()
        self._asked: tuple[float, bool] | None = None

    def is_down(self) -> bool:
        """Return True if there is a metadata service, and it fails; blocks for ten seconds at most."""
        with self._lock:
            if self._asked is None or time.monotonic() - self._asked[0] > _KEPT_SECONDS:
                found = self._fails()
                self._asked = (time.monotonic(), found)
            return self._asked[1]


def aws_fails() -> bool:
    """Return True if this is a machine of AWS, and its role's credentials cannot be had."""
    if os.environ.get("AWS_EC2_METADATA_DISABLED", "false").lower() == "true":
        return False
    root = (os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or f"http://{_ADDRESS}").rstrip("/")
    asked, headers = [("PUT", _TOKEN), ("GET", _ROLES)], {"x-aws-ec2-metadata-token-ttl-seconds": "60"}
    for method, path in asked:
        found = _answer(f"{root}/{path}", method, headers)
        if found is None:
            return False
        status, text, _ = found
        if _is_failure(status):
            return True
        if path == _TOKEN and status == _OK:
            headers = {"x-aws-ec2-metadata-token": text}
        if path == _ROLES and status == _OK and text:
            asked.append(("GET", f"{_ROLES}{text.splitlines()[0]}"))
    return False


def google_fails() -> bool:
    """Return True if this is a machine of Google, although google-auth has just not noticed it."""
    if os.environ.get("NO_GCE_CHECK", "false").lower() == "true":
        return False
    address = os.environ.get("GCE_METADATA_IP") or _ADDRESS
    found = _answer(f"http://{address}/", "GET", {"Metadata-Flavor": "Google"})
    # If it is well again, the next attempt succeeds.
    return found is not None and (_is_failure(found[0]) or found[2] == "Google")


def _is_failure(status: int) -> bool:
    return status == _TOO_MANY or status >= _FAILS


def _answer(url: str, method: str, headers: dict[str, str]) -> tuple[int, str, str | None] | None:
    """Return the status, the text and the flavor of an answer; None if nobody takes the connection."""
    request = Request(url, method=method, headers=headers)
    try:
        with build_opener(ProxyHandler({})).open(request, timeout=_ANSWER_SECONDS) as answer:
            text = answer.read(_MOST_BYTES).decode(errors="replace").strip()
            return answer.status, text, answer.headers.get("Metadata-Flavor")
    except HTTPError as refusal:
        with refusal:
            return refusal.code, "", refusal.headers.get("Metadata-Flavor")
    except TimeoutError:  # urllib wraps the one of a connection, so this is a server that is slow
        return _FAILS, "", None
    except (OSError, ValueError):
        return None
