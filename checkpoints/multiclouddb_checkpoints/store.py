"""The base of the stores that keep checkpoints in a service, with writes on a condition."""

from __future__ import annotations

import logging
import os
import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, ClassVar, Final, TypeVar
from urllib.parse import urlsplit

import attrs

from multiclouddb_api import (
    Checkpoint,
    ErrorCategory,
    ErrorDetail,
    ErrorReason,
    MulticloudDbError,
    invalid_request,
)
from multiclouddb_api.checkpoint import (
    check_name,
    conflict,
    decode_checkpoint,
    encode_checkpoint,
    next_version,
    unusable,
)
from multiclouddb_api.config import SecretText, settled, without_frames
from multiclouddb_api.process import Home
from multiclouddb_api.validators import check_type
from multiclouddb_spi.connection import Location, check_plaintext, parse_location
from multiclouddb_spi.errors import cause_of, to_error
from multiclouddb_spi.faults import UNAVAILABLE, Fault, FaultRule, one_line, row_of_connection, unexpected

T = TypeVar("T")
_LOG: Final = logging.getLogger("multiclouddb.checkpoints")

CONNECT_SECONDS: Final = 5
READ_SECONDS: Final = 10
ATTEMPTS: Final = 4
"""How often a vendor's client makes a call at most, the first time included."""

_WRITES: Final = 3
_WRITERS: Final = 4
_SAFE: Final = re.compile(r"[A-Za-z0-9._=-]+(?:/[A-Za-z0-9._=-]+)*", re.ASCII)
_NETWORK: Final = FaultRule(
    ErrorCategory.TRANSIENT_FAILURE, "check the network and the endpoint, and try again"
)
_OVERLOADED: Final = FaultRule(
    ErrorCategory.THROTTLED, "save less often (checkpoint_interval_seconds), or use more names"
)
_REFUSES: Final = FaultRule(
    ErrorCategory.INVALID_REQUEST,
    "the service does not take such a request; look its code up in the service's documentation",
)
FOREIGN: Final = FaultRule(
    ErrorCategory.TRANSIENT_FAILURE,
    "another program, such as a proxy or a page to sign in, seems to answer in place of the service; check "
    "the network and the endpoint, and try again",
)
"""The row for an answer of success that the service does not give."""
MET: Final = FaultRule(ErrorCategory.TRANSIENT_FAILURE, "others write at the same time; try again")
"""The row for a write that met another one."""
_NOT_OFFERED: Final = FaultRule(
    ErrorCategory.UNSUPPORTED_CAPABILITY,
    "the service does not offer this call, which a checkpoint needs (conditional writes among others); use "
    "another service, or FileCheckpointStore on one machine",
    reason=ErrorReason.NOT_OFFERED,
)
UNCONDITIONAL: Final = FaultRule(
    ErrorCategory.UNSUPPORTED_CAPABILITY,
    "use a service that takes conditional writes, or FileCheckpointStore on one machine",
    reason=ErrorReason.NOT_OFFERED,
)
"""The row for a service that ignores the condition of a write."""


class RefusedError(Exception):
    """Raised from the service's error by a write whose condition did not hold, or that met another write."""


class MetError(RefusedError):
    """Raised if a write met another one, whatever its condition is."""


class ForeignError(Exception):
    """Raised for an answer that says that a call has succeeded, but that the service does not give."""


@attrs.frozen
class Refusal:
    """What a service answered to a call that failed.

    Attributes:
        status: The HTTP status.
        code: The error code of the service, or the status as text.
        text: The message of the service; it is not shown if it may quote a signed request.
    """

    status: int
    code: str
    text: str


@attrs.frozen
class Advice:
    """What the user of one service can do about an error.

    Attributes:
        who: What to check if the credentials are missing or not accepted.
        grant: The permissions that a store needs.
        missing: What to check if the bucket, container or table does not exist.
    """

    who: str
    grant: str
    missing: str

    def rows(self) -> dict[int, FaultRule]:
        """Return the meaning of each HTTP status; for those with many, the service's text has the word."""
        return {
            # The messages of a 401 may quote the signed request.
            401: FaultRule(ErrorCategory.AUTHENTICATION_FAILED, self.who, confidential=True, renewable=True),
            403: FaultRule(
                ErrorCategory.AUTHORIZATION_FAILED,
                f"if the service names no other reason, {self.grant}",
                renewable=True,
            ),
            404: FaultRule(
                ErrorCategory.NOT_FOUND, f"if the service names nothing else that is missing, {self.missing}"
            ),
            408: _NETWORK,
            429: _OVERLOADED,
            501: _NOT_OFFERED,
        }


class SharedCheckpointStore(ABC):
    """Keeps checkpoints in a service that several machines reach; it implements `CheckpointStore`.

    A save is one conditional write, which succeeds only if the stored checkpoint still has the version that
    the writer knows. Several threads and processes may share a store. It can be pickled unless it was given a
    client. The first call loads the vendor's library and connects.

    Args:
        url: The URL of the store. It never contains credentials; the vendor's library finds them.
        client: The application's own client of the vendor's library, which is used as it is; None, the
            default, to make one.
    """

    scheme: ClassVar[str]
    """The scheme of the URL."""
    form: ClassVar[str]
    """The text that describes a valid URL in messages."""
    extra: ClassVar[str]
    """What pip installs for the vendor's library."""
    options: ClassVar[Sequence[str]] = ()
    """The options that a URL may have."""
    advice: ClassVar[Advice]
    """What the user can do about an error of this service."""
    other_tag: ClassVar[str]
    """A tag that no content has."""
    meanings: ClassVar[Mapping[str, FaultRule]] = {}
    """The error codes of the service whose meaning differs from that of their status."""
    large_from: ClassVar[int | None] = None
    """The size from which on the library writes with other requests; a server may ignore their conditions."""
    keeps_conditions: ClassVar[re.Pattern[str] | None] = None
    """The hosts that are known to keep the condition of a write, so that nobody has to try."""

    def __init__(self, url: str, client: Any = None) -> None:
        check_type("url", url, str)
        # Credentials have no place in it, but a person may have put them there.
        self._url = url = SecretText(url)
        self._location, self._path = settled(self._parsed, url)
        self._given = client
        self._home = Home(self, "client", "give a client of this process to a store of this process")
        self._made: dict[int, Any] = {}
        self._proved = set[tuple[int, bool]]()
        """The processes in which the service was seen to keep conditions, of small and of large contents."""
        self._takes_other_form = False
        self._check(self._location)

    def _parsed(self, url: str) -> tuple[Location, str]:
        """Return the parts of the URL, and its path without slashes at both ends."""
        location = parse_location(
            url,
            self.scheme,
            options=self.options,
            form=self.form,
            credentials="credentials come from the environment",
            field="checkpoint_store",
        )
        path = location.path.strip("/")
        if not location.host or (path and not _SAFE.fullmatch(path)):
            raise invalid_request("checkpoint_store", "has no name, or one with other characters", self.form)
        # HTTP clients take such a part for a folder above, so that the objects would be in another place.
        if not {".", ".."}.isdisjoint([location.host, *path.split("/")]):
            raise invalid_request("checkpoint_store", "has a part . or ..", self.form)
        endpoint = location.options.get("endpoint_url", "")
        if "@" in endpoint:
            raise invalid_request("checkpoint_store", "has an endpoint_url with an @", self.form)
        if endpoint.startswith("http:"):
            check_plaintext("endpoint_url", endpoint, location.options, place="checkpoint_store")
        return location, path

    @property
    def place(self) -> str:
        """The URL of the store without its options."""
        return f"{self.scheme}://{self._location.host}" + (f"/{self._path}" if self._path else "")

    def load(self, name: str) -> Checkpoint | None:
        """Return the checkpoint, or None if none exists yet.

        Args:
            name: The name of the checkpoint.

        Raises:
            MulticloudDbError: `INVALID_REQUEST` if the checkpoint is damaged, or is that of another name; the
                category of the service's error otherwise. The message names the checkpoint.
        """
        check_name(name)
        found = self._called(name, lambda: self._read(self._key(name)))
        if found is None:
            return None
        body, tag = found
        if body.lstrip()[:1] == b"<":
            raise unusable(
                self._named(name),
                "is HTML or XML",
                "if a proxy or a page to sign in answers in place of the service, check the network and the "
                "endpoint, and try again; if this is really stored there, restore it from a backup",
            )
        return _tagged(decode_checkpoint(self._named(name), name, body), tag)

    def save(self, name: str, token: str, expected: str | None) -> Checkpoint:
        """Replace the checkpoint if it still has the expected version.

        Args:
            name: The name of the checkpoint.
            token: The token to keep.
            expected: The version that `load` or the last `save` returned; None if there must be no
                checkpoint with this name yet.

        Raises:
            MulticloudDbError: `CONFLICT` if another worker has changed the checkpoint, or holds a lease on
                it; `UNSUPPORTED_CAPABILITY` if the service ignores the condition of a write, or refuses it;
                and the errors of `load`. After any error but the first two the checkpoint may have been
                saved: `load` shows it.

        Portability:
            Some servers with the API of a cloud ignore the condition of a write, and would let two workers
            share a checkpoint unnoticed; others keep it only if no other write comes at the same time. So the
            first save in each process tests this, one after the other and with four writes at once, with two
            objects or items `NAME.probe-….checkpoint.json` that it writes and deletes. A service that fails
            only now and then may pass. If the identity may not write those names, it stays unknown whether
            the service keeps conditions, and a warning is logged. Amazon S3, Azure Blob Storage, Google Cloud
            Storage and DynamoDB keep them; at the hosts of the last two, nothing is tested.
        """
        check_name(name)
        check_type("expected", expected, str, type(None))
        before, _, tag = (expected or "0").partition("@")
        said = ""
        draft = Checkpoint(token, next_version(Checkpoint("-", before)))
        body = encode_checkpoint(name, draft)
        # In each process, because another one may reach the name through another service or proxy.
        large = self.large_from is not None and len(body) >= self.large_from
        if (os.getpid(), large) not in self._proved:
            self._prove(name, large=large)
        for _ in range(_WRITES):
            try:
                # A version of another store has no tag, and an empty condition would be none at all.
                if expected is not None and not tag:
                    raise RefusedError
                condition = None if expected is None else self._form(tag)
                written = self._called(name, partial(self._write, self._key(name), body, condition))
                return _tagged(draft, written)
            except RefusedError as refused:
                said = one_line(str(refused.__cause__ or ""))
                found = self.load(name)
                # The write had succeeded, but its answer was lost, and the vendor's client repeated it.
                if found is not None and found.version.startswith(f"{draft.version}@"):
                    return found
                if (None if found is None else found.version) != expected:
                    raise conflict(self._named(name), name, expected, found) from None
                # Two writes met, and the service took neither.
        if tag and self._finds_form(name):
            return self.save(name, token, expected)
        raise MulticloudDbError(
            f"checkpoint {self._named(name)}: the service took no write, although the checkpoint has the "
            f"expected version ({said}); try again, because others may write at the same time: the previous "
            "position stays valid",
            ErrorDetail(ErrorCategory.TRANSIENT_FAILURE, self.scheme, "checkpoint", retryable=True),
        )

    def delete(self, name: str) -> None:
        """Delete a checkpoint, even a damaged one; a later `save` that expects it gets `CONFLICT`.

        Args:
            name: The name of the checkpoint.

        Raises:
            MulticloudDbError: The category of the service's error.
        """
        check_name(name)
        self._called(name, lambda: self._delete(self._key(name)))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.place!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_made": {}, "_proved": set(), "_takes_other_form": False}

    @abstractmethod
    def _connect(self) -> Any:
        """Make a client of the vendor's library."""

    @abstractmethod
    def _read(self, key: str) -> tuple[bytes, str] | None:
        """Return the content and the tag of one version of it, or None if there is nothing."""

    @abstractmethod
    def _write(self, key: str, body: bytes, tag: str | None) -> str:
        """Write if the tag is still that of the content, or if there is nothing yet; return the new tag."""

    @abstractmethod
    def _delete(self, key: str) -> None:
        """Delete the content."""

    @abstractmethod
    def _answer(self, error: Exception) -> Refusal | FaultRule | None:
        """Return what the service answered, or a row for an error without an answer, or None for another."""

    def _host(self) -> str:
        """Return the host that is asked; empty if the library does not tell."""
        return ""

    def _check(self, location: Location) -> None:  # noqa: B027 - not every URL needs it
        """Refuse a URL that is not one of this service."""

    def _key(self, name: str) -> str:
        return (f"{self._path}/" if self._path else "") + f"{name}.checkpoint.json"

    def _named(self, name: str) -> str:
        return f"{self.scheme}://{self._location.host}/{self._key(name)}"

    @property
    def _client(self) -> Any:
        if self._given is not None:
            self._home.check()
            return self._given
        # A store that makes its own clients is not refused after a fork, as a client of a database is: it
        # keeps nothing but its URL, and each process makes a client when it needs one. The inherited client
        # is neither used nor freed.
        process = os.getpid()
        if process not in self._made:
            try:
                made = self._connect()
            except ImportError as error:
                raise invalid_request(
                    "checkpoint_store",
                    f"the library for {self.scheme}:// is not installed ({error})",
                    f'run: pip install "{self.extra}"',
                    ErrorReason.NOT_INSTALLED,
                ) from error
            except Exception as error:  # noqa: BLE001 - raised again
                # What the library has read, such as a file of credentials, is in its frames.
                raise without_frames(error) from error.__cause__
            self._made.setdefault(process, made)
        return self._made[process]

    def _called(self, name: str, call: Callable[[], T]) -> T:
        """Make a call, and raise the user's error for its failure.

        A refusal of this machine's identity is tried once more with a new client, which looks for credentials
        again: a file of credentials may have been renewed, and a request that waited is signed anew. The
        client that a call has just made has the newest ones already.
        """
        process = os.getpid()
        used = self._made.get(process)
        try:
            try:
                return call()
            except Exception as error:
                is_refusal = isinstance(error, RefusedError | MulticloudDbError)
                if used is None or is_refusal or not self._fault(error).renewable:
                    raise
                # Of several threads whose calls fail together, the first one leaves the client.
                if self._made.get(process) is used:
                    del self._made[process]
            return call()
        except (RefusedError, MulticloudDbError):
            raise
        except Exception as error:  # noqa: BLE001 - raised again, classified
            fault = self._fault(error)
            if fault.renewable and fault.retryable:  # the client of an outage may have found no credentials
                self._made.pop(process, None)
            message = f"checkpoint {self._named(name)}: {fault.message}; the previous position stays valid"
            fault = attrs.evolve(fault, message=message)
            raise to_error(self.scheme, "checkpoint", fault, error) from cause_of(fault, error)

    def _fault(self, error: Exception) -> Fault:
        answer = FOREIGN if isinstance(error, ForeignError) else self._answer(error)
        if isinstance(answer, Refusal):
            statuses = self.advice.rows()
            row = self.meanings.get(answer.code) or statuses.get(answer.status)
            # Two writes meet, or the service has named another reason, such as a policy that allows no write.
            row = MET if row is None and answer.code == "409" else row
            row = row or (UNAVAILABLE if answer.status >= 500 else _REFUSES)
            said = f"{answer.status} {answer.code}"
            text = "" if row.confidential else one_line(answer.text)
            return row.fault(f"{said} ({text})" if text else said, answer.code, vendor_retried=True)
        row_found = answer or row_of_connection(error)
        if row_found is None and isinstance(error, OSError):
            row_found = _NETWORK
        if row_found is None:
            return unexpected(error)
        said = (
            type(error).__name__ if row_found.confidential else one_line(f"{type(error).__name__}: {error}")
        )
        return row_found.fault(said, type(error).__name__, vendor_retried=True)

    def _prove(self, name: str, *, large: bool) -> None:
        """Refuse a service that ignores conditions: two workers would overwrite each other's positions.

        An object of its own is written, because a proof on the name itself could overwrite the position of
        another worker.
        """
        if self.keeps_conditions is not None:
            host = self._called(name, self._host)
            if self.keeps_conditions.fullmatch(host):
                self._proved.add((os.getpid(), large))
                return
        probe, met = (f"{name}.probe-{secrets.token_hex(8)}" for _ in range(2))

        def write(probe: str, tag: str | None) -> str | None:
            """Return the new tag, or None if the service refuses the write."""
            # Each content is another one, because the ETag of S3 is that of the content.
            body = secrets.token_hex(8).encode().ljust(self.large_from or 0 if large else 0)
            try:
                return self._called(name, lambda: self._write(self._key(probe), body, tag))
            except RefusedError:
                return None

        def succeeds(probe: str, tag: str | None) -> bool:
            try:
                return write(probe, tag) is not None
            except MulticloudDbError:
                return False  # some services allow one write of an object a second

        def succeed(probe: str, tag: str | None) -> int:
            """Write several times at once, and return how many writes are known to succeed; one may."""
            with ThreadPoolExecutor(_WRITERS) as pool:
                return sum(pool.map(partial(succeeds, probe), [tag] * _WRITERS))

        try:
            tag = write(probe, None)
        except MulticloudDbError as error:
            if error.category != ErrorCategory.AUTHORIZATION_FAILED:
                raise
            _LOG.warning(
                "checkpoint %s: it is not known whether the service keeps the condition of a write, because "
                "the identity may not write %s beside it; if it does not, two workers can overwrite each "
                "other's position",
                self._named(name), self._key(f"{name}.probe-…"),
            )  # fmt: skip
            self._proved.add((os.getpid(), large))
            return
        if tag is None:
            return  # the service knows conditions, and has met another write; the next save tries again
        problem = ""
        try:
            if any(write(probe, other) for other in (None, self.other_tag)):
                problem = f"ignores the condition of a write{' of this size' if large else ''}"
            elif not large and succeed(probe, tag) > 1:
                problem = "lets several writes succeed at once whose condition only one of them can meet"
        finally:
            self._forget(probe)
        if not problem and not large:
            try:
                if succeed(met, None) > 1:
                    problem = "lets several writes at once create one object"
            finally:
                self._forget(met)
        if problem:
            raise MulticloudDbError(
                f"checkpoint {self._named(name)}: this service {problem}, so that a position could go back; "
                f"{UNCONDITIONAL.way_out}",
                ErrorDetail(UNCONDITIONAL.category, self.scheme, "checkpoint", reason=UNCONDITIONAL.reason),
            )
        self._proved.add((os.getpid(), large))

    def _finds_form(self, name: str) -> bool:
        """Return True if the service takes tags in the other form only, and keeps conditions on that.

        Raises:
            MulticloudDbError: `UNSUPPORTED_CAPABILITY` if it refuses the right tag of an object that nobody
                else writes.
        """
        probe = f"{name}.probe-{secrets.token_hex(8)}"
        key = self._key(probe)

        def takes(tag: str | None) -> bool:
            try:
                self._called(name, lambda: self._write(key, b"{}", tag))
            except MetError:
                raise
            except RefusedError:
                return False
            return True

        def takes_right(form: Callable[[str], str]) -> bool:
            found = self._called(name, lambda: self._read(key))
            if found is None or takes(form(found[1])):
                return True
            # The write had succeeded, but its answer was lost, and the vendor's client repeated it.
            return self._called(name, lambda: self._read(key)) != found

        other = self._other_form
        try:
            if not takes(None) or takes_right(self._form):
                return False
            is_new = not self._takes_other_form and other(self.other_tag) != self.other_tag
            if is_new and not takes(other(self.other_tag)) and takes_right(other):
                self._takes_other_form = True
                return True
        except MetError:
            return False
        finally:
            self._forget(probe)
        raise MulticloudDbError(
            f"checkpoint {self._named(name)}: this service refuses a write whose condition holds, so that no "
            f"position can be replaced; {UNCONDITIONAL.way_out}",
            ErrorDetail(UNCONDITIONAL.category, self.scheme, "checkpoint", reason=UNCONDITIONAL.reason),
        )

    def _form(self, tag: str) -> str:
        """Return a tag in the form that the service takes."""
        return self._other_form(tag) if self._takes_other_form else tag

    def _other_form(self, tag: str) -> str:
        """Return a tag in a form that is not the right one, but the only one that some servers take."""
        return tag

    def _forget(self, probe: str) -> None:
        """Delete the object of a proof; one that is left does no harm."""
        try:
            self._called(probe, partial(self._delete, self._key(probe)))
        except MulticloudDbError as error:
            _LOG.warning("%s was left behind and may be deleted: %s", self._named(probe), error.message)


def host_of(url: str) -> str:
    """Return the host of an endpoint; empty if it has none."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _tagged(checkpoint: Checkpoint, tag: str) -> Checkpoint:
    # A proxy that compresses marks the service's tag as weak, and then no condition accepts it.
    return attrs.evolve(checkpoint, version=f"{checkpoint.version}@{tag.removeprefix('W/')}")


NO_ANSWER: Final = _NETWORK
"""The row for a call that got no answer."""
