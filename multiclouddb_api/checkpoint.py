"""Defines the protocol of a checkpoint store, keeps checkpoints in files, and opens the store of a URL."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Protocol, cast
from urllib.parse import unquote, urlsplit

import attrs
import orjson
from attrs import frozen

from multiclouddb_api.config import SecretText, settled
from multiclouddb_api.errors import (
    ErrorCategory,
    ErrorDetail,
    ErrorReason,
    MulticloudDbError,
    invalid_request,
)
from multiclouddb_api.redaction import shorten
from multiclouddb_api.registry import sole_offer
from multiclouddb_api.steps import Call, Steps
from multiclouddb_api.validators import check_type, is_a, not_blank, path_here, suggestion, type_name

_FORMAT: Final = "multiclouddb.checkpoint"
_VERSION: Final = 1
_SUFFIX: Final = ".checkpoint.json"
_FIELDS: Final = {"format": str, "v": int, "name": str, "version": str, "token": str, "sha256": str}
MOST_BYTES: Final = 128 << 20
"""The largest content of a checkpoint; the largest token takes 85 MiB."""
_MOST_VALUES: Final = 100_000
_COUNT_DIGITS: Final = 19
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)


def _is_writable(_: object, attribute: attrs.Attribute[str], token: str) -> None:
    try:
        token.encode()
    except UnicodeEncodeError as error:
        raise invalid_request(
            attribute.name, f"cannot be written ({error.reason})", "pass a page's continuation_token"
        ) from error
    if len(token) > MOST_BYTES:
        raise invalid_request(
            attribute.name, f"has more than {MOST_BYTES >> 20} MiB", "pass a page's continuation_token"
        )


@frozen
class Checkpoint:
    """A continuation token as a checkpoint store keeps it, with its version."""

    token: str = attrs.field(
        repr=shorten, validator=[is_a(str), not_blank("pass a page's continuation_token"), _is_writable]
    )
    """The `continuation_token` of a page or of a `ChangeFeedIterator`."""
    version: str = attrs.field(validator=[is_a(str), not_blank("pass what the store returned")])
    """The store's opaque version of what it has saved; pass it to the next `save`."""


class CheckpointStore(Protocol):
    """Keeps one checkpoint per name; several threads and processes may call it.

    `FileCheckpointStore` keeps files on one machine; `multiclouddb_checkpoints` has stores that several
    machines share. To write one, implement these two methods.
    """

    def load(self, name: str) -> Checkpoint | None:
        """Return the checkpoint, or None if none exists yet.

        Args:
            name: The name of the checkpoint.

        Raises:
            MulticloudDbError: There is a checkpoint, or there may be one, but it cannot be read. Never return
                None then, because the reader would silently start again at the request's start position.
        """
        ...

    def save(self, name: str, token: str, expected: str | None) -> Checkpoint:
        """Replace the checkpoint if it still has the expected version.

        The new one must be durable when the call returns.

        Args:
            name: The name of the checkpoint.
            token: The token to keep.
            expected: The version that `load` or the last `save` returned; None if there must be no
                checkpoint with this name yet.

        Returns:
            The saved checkpoint, with its new version.

        Raises:
            MulticloudDbError: `CONFLICT` if another worker with the same name has changed the checkpoint.
        """
        ...


class FileCheckpointStore:
    """Keeps one file per checkpoint in a local directory.

    Several threads and processes may share the directory: each file is locked, replaced atomically and
    flushed to disk. Only the owner can read the files, because a token may contain the key of a document.

    Args:
        directory: The folder of the files; the first `save` creates it. A relative path is resolved when the
            store is built, so a later change of the working directory has no effect.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._directory = path_here("directory", directory).absolute()

    def path(self, name: str) -> Path:
        """Return the file of one checkpoint, to look at it or to delete it.

        Args:
            name: The name of the checkpoint.

        Raises:
            MulticloudDbError: `INVALID_REQUEST` if the name cannot be used as a file name.
        """
        check_name(name)
        return self._directory / f"{name}{_SUFFIX}"

    def load(self, name: str) -> Checkpoint | None:
        """Return the checkpoint, or None if its file does not exist.

        Args:
            name: The name of the checkpoint.

        Raises:
            MulticloudDbError: `INVALID_REQUEST` if the file is damaged, has the checkpoint of another name,
                or was written by a newer version; `PERMANENT_FAILURE` if it cannot be read. The message has
                the path of the file.
        """
        path = self.path(name)
        try:
            text = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise broken_disk(path, "read", error) from error
        return decode_checkpoint(path, name, text)

    def save(self, name: str, token: str, expected: str | None) -> Checkpoint:
        """Replace the checkpoint if it still has the expected version.

        Args:
            name: The name of the checkpoint.
            token: The token to keep.
            expected: The version that `load` or the last `save` returned; None if there must be no
                checkpoint with this name yet.

        Raises:
            MulticloudDbError: `CONFLICT` if another worker has changed the checkpoint; `PERMANENT_FAILURE` if
                the disk refuses the write; and the errors of `load`.
        """
        path = self.path(name)
        file = _behind_links(path)
        check_type("token", token, str)
        check_type("expected", expected, str, type(None))
        try:
            make_folder(file.parent)
            with _locked(file.parent / f".{name}.lock"):
                found = self.load(name)
                if (None if found is None else found.version) != expected:
                    raise conflict(path, name, expected, found)
                checkpoint = Checkpoint(token, next_version(found))
                _replace(file, file.parent / f".{name}.tmp", encode_checkpoint(name, checkpoint))
                return checkpoint
        except OSError as error:
            raise broken_disk(path, "written", error) from error

    def __repr__(self) -> str:
        return f"FileCheckpointStore({str(self._directory)!r})"


class CheckpointFile(FileCheckpointStore):
    """A store of one checkpoint, in a file of any name; `follow` and the command line use it."""

    def __init__(self, file: str | os.PathLike[str]) -> None:
        self._file = path_here("checkpoint", file).absolute()
        super().__init__(self._file.parent)
        self.name = self._file.name.removesuffix(_SUFFIX)

    def path(self, name: str) -> Path:
        """The path of the file."""
        super().path(name)
        return self._file

    def check(self) -> None:
        """Raise an error if the file will not be writable; otherwise, create nothing except its lock file."""
        path = self.path(self.name)
        file = _behind_links(path)
        try:
            make_folder(file.parent)
            with _locked(file.parent / f".{self.name}.lock"):
                if file.exists() and not os.access(file, os.W_OK):
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        except OSError as error:
            raise broken_disk(path, "written", error) from error


def _behind_links(path: Path) -> Path:
    """Return the file that a symbolic link names; the link stays, for it may lead to a disk that is kept."""
    return Path(os.path.realpath(path))


def check_name(name: object) -> None:
    """Refuse a checkpoint name that cannot be used as a file name; every store applies this rule."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise invalid_request(
            "name",
            f"{name!r} cannot name a checkpoint"
            if isinstance(name, str)
            else f"must be str, not {type_name(name)}",
            "use 1 to 128 letters, digits, dots, hyphens and underscores, a letter or digit first",
        )


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        try:
            yield
        finally:
            # Closing the file is not enough: if the process forked in the meantime, the child may hold the
            # same lock.
            fcntl.flock(handle, fcntl.LOCK_UN)
    finally:
        os.close(handle)


def _replace(path: Path, draft: Path, text: bytes) -> None:
    """Replace a file atomically."""
    # This process holds the lock, so an existing draft was left by a crash.
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(text)
        file.flush()
        os.fsync(handle)
    draft.replace(path)
    sync_folder(path.parent)


def make_folder(folder: Path) -> None:
    """Create a folder and its missing parents, and flush each new entry to disk."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    with suppress(PermissionError):  # a user may be able to write in a folder but not to open it
        sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Flush the list of a folder's entries to disk."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def next_version(found: Checkpoint | None) -> str:
    """Return the next version: a readable count, and a nonce that differs if the file is recreated."""
    count, _, _ = ("0" if found is None else found.version).partition("-")
    # Python makes no number of more than some thousand digits.
    is_count = count.isdecimal() and len(count) < _COUNT_DIGITS
    return f"{int(count) + 1 if is_count else 1}-{os.urandom(4).hex()}"


def _checksum(fields: dict[str, Any]) -> str:
    rest = {name: value for name, value in fields.items() if name != "sha256"}
    return hashlib.sha256(orjson.dumps(rest, option=orjson.OPT_SORT_KEYS)).hexdigest()


def encode_checkpoint(name: str, checkpoint: Checkpoint) -> bytes:
    """Return the content of a file or an object that keeps a checkpoint; a checksum protects it."""
    fields: dict[str, Any] = {
        "format": _FORMAT,
        "v": _VERSION,
        "name": name,
        "version": checkpoint.version,
        "token": checkpoint.token,
    }
    fields["sha256"] = _checksum(fields)
    return orjson.dumps(fields) + b"\n"


def decode_checkpoint(path: Path | str, name: str, text: bytes) -> Checkpoint:
    """Return the checkpoint that a content keeps; refuse a damaged one and that of another name."""
    if len(text) > MOST_BYTES:
        raise unusable(path, f"has more than {MOST_BYTES >> 20} MiB")
    # A checkpoint has six values. Millions of lists, which a compressed item of 58 kB can contain, would take
    # gigabytes of memory.
    if sum(map(text.count, (b",", b"[", b"{"))) > _MOST_VALUES:
        raise unusable(path, "is not a checkpoint of multiclouddb")
    try:
        fields = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise unusable(path, f"is truncated or damaged ({error})") from error
    if not isinstance(fields, dict) or fields.get("format") != _FORMAT:
        raise unusable(path, "is not a checkpoint of multiclouddb")
    version = fields.get("v")
    if isinstance(version, int) and version > _VERSION:
        raise newer(path, version, _VERSION, "multiclouddb")
    if fields.keys() != _FIELDS.keys() or any(type(fields[field]) is not _FIELDS[field] for field in _FIELDS):
        raise unusable(path, "has missing, unknown or wrongly typed fields")
    if fields["sha256"] != _checksum(fields):
        raise unusable(path, "does not match its checksum: it was changed or damaged")
    if fields["name"] != name:
        raise unusable(path, f"is the checkpoint of {fields['name']!r}, not of {name!r}")
    return Checkpoint(fields["token"], fields["version"])


def _named(place: Path | str) -> str:
    return f"checkpoint {place}" if isinstance(place, str) else f"checkpoint file {place}"


def unusable(path: Path | str, problem: str, way_out: str = "restore it from a backup") -> MulticloudDbError:
    """Make the error for a file, or the URL of an object, without a whole checkpoint."""
    return invalid_request(
        _named(path),
        problem,
        f"{way_out}, or delete it to begin again at the request's start_position",
        ErrorReason.MALFORMED,
    )


def newer(path: Path | str, version: int, known: int, distribution: str) -> MulticloudDbError:
    """Make the error for a file whose format is newer than this version supports."""
    return invalid_request(
        _named(path),
        f"has format version {version}, newer than {known}",
        f"read it with the {distribution} version that wrote it, or a later one",
        ErrorReason.UNKNOWN_VERSION,
    )


def broken(
    path: Path, verb: str, error: Exception, text: str, code: str | None, *, busy: bool = False
) -> MulticloudDbError:
    """Make the error for a file that cannot be read or written."""
    advice = (
        "try again"
        if busy
        else "correct what the system says (the disk, the permissions, a limit) and continue"
    )
    return MulticloudDbError(
        f"checkpoint file {path}: cannot be {verb} ({text}); {advice}: the previous position stays valid",
        ErrorDetail(
            ErrorCategory.TRANSIENT_FAILURE if busy else ErrorCategory.PERMANENT_FAILURE,
            operation="checkpoint",
            retryable=busy,
            native_class=f"{type(error).__module__}.{type(error).__qualname__}",
            native_code=code,
            native_text=str(error),
        ),
    )


def broken_disk(path: Path, verb: str, error: OSError) -> MulticloudDbError:
    """Make the error for a file that the operating system refuses to read or write."""
    code = None if error.errno is None else str(error.errno)
    return broken(path, verb, error, error.strerror or str(error), code)


def conflict(
    path: Path | str, name: str, expected: str | None, found: Checkpoint | None
) -> MulticloudDbError:
    """Make the error for a checkpoint that was changed or deleted since it was loaded."""
    before = "there should be none yet" if expected is None else f"version {expected} was expected"
    if found is None and expected is not None:
        problem, reason = f"{name!r} was deleted ({before}, it is gone)", ErrorReason.DELETED
        way_out = "restore it, or start again, which begins as with a new name"
    else:
        now = "it was gone a moment later" if found is None else f"it is version {found.version} now"
        problem, reason = f"another worker has written {name!r} ({before}, {now})", ErrorReason.OTHER_WRITER
        way_out = "let one worker use this name, and start again, which resumes from the stored position"
    return MulticloudDbError(
        f"{_named(path)}: {problem}; {way_out}",
        ErrorDetail(ErrorCategory.CONFLICT, operation="checkpoint", reason=reason),
    )


class Checkpointer:
    """Saves the tokens of pages that the caller has handled; if there is no store, nothing is saved."""

    def __init__(
        self, store: CheckpointStore | None, name: str, interval_seconds: float, now: Callable[[], float]
    ) -> None:
        self._store = store
        self._name = name
        self._interval = interval_seconds
        self._now = now
        self._version: str | None = None
        self._saved: str | None = None
        self._saved_at = now()
        self._pending: str | None = None
        # The tokens of saves that raised an error; each may have been stored, or may still be stored.
        self._attempted: set[str] = set()

    def load(self) -> Steps[str | None]:
        """Return the stored token to resume from, or None."""
        if self._store is None:
            return None
        checkpoint = yield Call(self._store.load, self._name)
        if checkpoint is None:
            return None
        _check_answer("load", checkpoint)
        self._version, self._saved = checkpoint.version, checkpoint.token
        return str(checkpoint.token)

    def done(self, token: str, *, at_once: bool) -> Steps[None]:
        """Record that the caller has handled everything up to the token."""
        self._pending = None if token == self._saved else token
        # The first token is saved at once, because a start position such as `Now` is durable only as a token.
        if at_once or self._saved is None or self._now() - self._saved_at >= self._interval:
            yield from self.flush()

    def flush(self) -> Steps[None]:
        """Save the last position if it has not been saved yet."""
        if self._store is None or self._pending is None:
            return
        token = self._pending
        yield from self._settle(self._store)
        while True:
            repeated = bool(self._attempted)
            self._attempted.add(token)
            try:
                checkpoint = yield Call(self._store.save, self._name, token, self._version)
                _check_answer("save", checkpoint)
                break
            except MulticloudDbError as error:
                if error.category != ErrorCategory.CONFLICT:
                    raise
                # An earlier save may have arrived only now. No later one can, once this one has succeeded.
                if not (repeated and (yield from self._settle(self._store))):
                    self._attempted.clear()
                    raise
        self._version, self._saved = checkpoint.version, token
        self._pending, self._saved_at = None, self._now()
        self._attempted.clear()  # last: after an interrupt before this, the next save looks what is stored

    def _settle(self, store: CheckpointStore) -> Steps[bool]:
        """Return True if a save succeeded although it raised an error, and if that is new."""
        if not self._attempted:
            return False
        checkpoint = yield Call(store.load, self._name)
        if checkpoint is None or checkpoint.token not in self._attempted:
            return False
        is_new: bool = checkpoint.version != self._version
        self._version, self._saved = checkpoint.version, checkpoint.token
        return is_new


def _check_answer(method: str, checkpoint: object) -> None:
    if not isinstance(checkpoint, Checkpoint):
        raise invalid_request(
            f"checkpoint_store.{method}",
            f"returned {type_name(checkpoint)}",
            "return a Checkpoint; for an asyncio client, the method may be an async def",
        )


GROUP: Final = "multiclouddb.checkpoint_stores"
_EXTRAS: Final = {
    "azblob": "checkpoints-azure-blob",
    "dynamodb": "checkpoints-dynamo",
    "gs": "checkpoints-gcs",
    "postgresql": "postgres",
    "s3": "checkpoints-s3",
    "sqlite": "embedded",
}
_FORM: Final = 'write "s3://bucket/prefix", "file:///folder", or pass FileCheckpointStore("checkpoints")'


def open_checkpoint_store(url: str) -> CheckpointStore:
    """Make the checkpoint store of a URL; nothing is read or written yet.

    Args:
        url: `file:///folder`, `sqlite:///path/checkpoints.db`, `s3://bucket/prefix`, `gs://bucket/prefix`,
            `azblob://account/container/prefix`, `dynamodb://table/prefix` or
            `postgresql://user@host/database`, as on the page *Checkpoint stores*. It never contains a
            password or a key: these come from the environment.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` if the text is no such URL, or if the package of this store is
            not installed; the message then has the command to install it.
    """
    check_type("url", url, str)
    # Credentials have no place in it, but a person may have put them there.
    url = SecretText(url)
    scheme = url.split("://", 1)[0]
    if scheme == url:
        raise invalid_request("checkpoint_store", "is text without a scheme", _FORM)
    if scheme == "file":
        return FileCheckpointStore(local_path_of(url))
    point = sole_offer(scheme, GROUP, "checkpoint_store")
    if point is None and scheme not in _EXTRAS:
        known = suggestion(scheme, {"file", *_EXTRAS})
        raise invalid_request("checkpoint_store", f"has the unknown scheme {scheme!r}", known)
    advice = f'run: pip install "multiclouddb[{_EXTRAS.get(scheme, scheme)}]"'
    if point is None:
        problem = f"the store for {scheme}:// is not installed"
        raise invalid_request("checkpoint_store", problem, advice, ErrorReason.NOT_INSTALLED)
    try:
        return cast("Callable[[str], CheckpointStore]", point.load())(url)
    except ImportError as error:
        raise MulticloudDbError(
            f"checkpoint_store: the store for {scheme}:// cannot be imported ({error}); {advice}",
            ErrorDetail(ErrorCategory.INVALID_REQUEST, reason=ErrorReason.NOT_INSTALLED),
        ) from error


def local_path_of(url: str) -> str:
    """Return the path in a URL of a local store, which names no host and no options."""
    return settled(_local_path_of, SecretText(url))


def _local_path_of(url: str) -> str:
    try:
        parts = urlsplit(url)
    except ValueError:  # a [ in the place of a host
        parts = None
    if parts is None or parts.netloc or parts.query or parts.fragment or len(parts.path) < 2:
        form = f"write {url.partition(':')[0]}:///path with three slashes"
        raise invalid_request("checkpoint_store", "must name a path on this machine, and nothing else", form)
    return unquote(parts.path)


def to_store(store: CheckpointStore | str | None) -> CheckpointStore | None:
    """Open a store that is named by its URL; return any other value unchanged."""
    return open_checkpoint_store(store) if isinstance(store, str) else store


def checkpoint_at(where: str | os.PathLike[str]) -> tuple[CheckpointStore, str]:
    """Return the store and the name of one checkpoint: of a file, or of the last part of a URL's path."""
    if not isinstance(where, str) or "://" not in where:
        file = CheckpointFile(where)
        return file, file.name
    where = SecretText(where)
    place, mark, options = map(SecretText, where.partition("?"))
    parts = [SecretText(each) for each in place.rpartition("/")]
    if not parts[2].removesuffix(_SUFFIX) or parts[0].endswith("/"):
        raise invalid_request(
            "checkpoint", "is a URL that names no checkpoint", 'write "s3://bucket/prefix/NAME"'
        )
    store = open_checkpoint_store(parts[0] + mark + options)
    return store, parts[2].removesuffix(_SUFFIX)
