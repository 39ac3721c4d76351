"""Requests to a bucket through obstore. Everything here blocks: it is called in worker threads.

Rules: one call makes one attempt; obstore's own retries are off, since a change that is sent twice must be recognised by its
nonce. Every failure is a `RequestFailed`, which says whether the request may have had an effect. The words of obstore's errors
stay here, and so do the errors themselves: they have URLs and the store's answers in them, which may name credentials.
"""

from __future__ import annotations

import enum
import http.client
import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import attrs
import obstore
from obstore import exceptions
from obstore.store import MemoryStore, from_url

from replog.errors import ConfigError
from replog_objects.layout import OBJECT_BYTES_MAX, DamagedError
from replog_objects.options import ArchiveOptions, BackupOptions, ObjectsOptions, Target

Answer = TypeVar("Answer")

_STATUS = re.compile(r"status code: ([0-9]{3})")
_CODE = re.compile(r"<Code>([A-Za-z0-9.]{1,64})</Code>")
_KIND = re.compile(r"HttpError \{\s+kind: ([A-Za-z]{1,30}),")
_METADATA_SERVICE = re.compile(
    r"uri: Some\(\s+http://169\.254\."
)  # of a machine in a cloud, which is asked for credentials
_SYSTEM = re.compile(r'message: "([A-Za-z ]{1,60})"')
_ABSENT_CODES = {"NoSuchKey", "BlobNotFound"}  # of S3 and Google, and of Azure
_PASSING = {408, 409, 425, 429}
_SIGNED_S = 60
_CREDENTIALS = (
    "no credentials were found. They come from the environment (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, with "
    "AWS_SESSION_TOKEN if they are temporary; GOOGLE_APPLICATION_CREDENTIALS; AZURE_STORAGE_ACCOUNT_NAME and "
    "AZURE_STORAGE_ACCOUNT_KEY) or from the machine's own identity"
)
_REMEDIES = {
    "NoSuchBucket": "the bucket does not exist",
    "ContainerNotFound": "the container does not exist",
    "ExpiredToken": "the credentials have expired: renew them, and start again where they come from the environment",
    "InvalidAccessKeyId": "the store does not know these credentials: AWS_ACCESS_KEY_ID",
    "SignatureDoesNotMatch": "the secret does not belong to these credentials: AWS_SECRET_ACCESS_KEY",
    "RequestTimeTooSkewed": "this machine's clock is wrong",
    "AccessDenied": "these credentials may not do that: they must get, put, list and delete below the prefix",
}


class Effect(enum.Enum):
    """The possible effect of a failed request, and whether another attempt may help."""

    NONE_YET = "it was not sent; another attempt may do better"
    UNKNOWN = "it was sent, and may have been done, or may be done yet; another attempt may do better"
    NONE = "the store refuses it, and will again"


class RequestFailed(Exception):
    """A request failed. Never leaves this package."""

    def __init__(self, effect: Effect, words: str) -> None:
        super().__init__(words)
        self.effect = effect


class Conflict(Exception):
    """A put whose condition does not hold, or that met another one. Nothing was written by this request."""


@attrs.frozen
class Tag:
    """A store's mark of one content of an object. `version` is Google's, which has conditions on that alone."""

    e_tag: str | None
    version: str | None

    def as_mode(self) -> Any:
        """The mode of a put that replaces this content."""
        return {name: value for name, value in attrs.asdict(self).items() if value is not None}


@attrs.frozen
class Found:
    """An object's bytes."""

    body: bytes
    tag: Tag


@attrs.frozen
class Listed:
    """An object in a listing."""

    name: str
    size_bytes: int
    modified_at_s: float
    tag: Tag


@attrs.frozen
class Listing:
    """Objects right below a name, and the names that have others below them."""

    objects: Sequence[Listed]
    prefixes: Sequence[str]


class Requests:
    """One bucket. All names are below the prefix."""

    def __init__(self, target: Target, options: ObjectsOptions) -> None:
        self._prefix = f"{target.prefix}/" if target.prefix else ""
        self._timeout_s = options.timeout_s / 3
        self._store = open_store(target, options.endpoint, options.region, self._timeout_s, {"max_retries": 0})

    def get(self, name: str) -> Found | None:
        """The object; None if there is none. Raises `RequestFailed`, `DamagedError`."""
        with failing():
            try:
                result = obstore.get(self._store, self._prefix + name)
                if result.meta["size"] > OBJECT_BYTES_MAX:
                    raise DamagedError(f"it has {result.meta['size']} bytes, which is more than any has")
                return Found(bytes(result.bytes()), tag_of(result.meta))
            except FileNotFoundError as error:
                if is_elsewhere(error):
                    raise
                return None

    def put(self, name: str, body: bytes, expected: Tag | None) -> Tag:
        """Creates the object, or replaces what has this tag. Raises `Conflict`, `RequestFailed`."""
        mode: Any = "create" if expected is None else expected.as_mode()
        with failing():
            try:
                return tag_of(obstore.put(self._store, self._prefix + name, body, mode=mode, use_multipart=False))
            except (exceptions.AlreadyExistsError, exceptions.PreconditionError) as error:
                if is_elsewhere(error):
                    raise
                raise Conflict from None

    def right_below(self, name: str) -> Listing:
        """Lists right below this name: a request for each thousand. Raises `RequestFailed`."""
        with failing():
            found = obstore.list_with_delimiter(self._store, self._prefix + name)
            return Listing(
                [self._listed(each) for each in found["objects"]],
                [each.removeprefix(self._prefix) for each in found["common_prefixes"]],
            )

    def below(self, name: str) -> Iterator[list[Listed]]:
        """All objects below this name, a thousand at a time. Raises `RequestFailed`."""
        with failing():
            for page in obstore.list(self._store, self._prefix + name, chunk_size=1000):
                yield [self._listed(each) for each in page]

    def delete(self, name: str, expected: Tag) -> bool:
        """Removes what has this tag, by a signed request: obstore's own has no condition. False if it is not what is there, or
        the store cannot sign. Raises `RequestFailed`."""
        if isinstance(self._store, MemoryStore) or expected.e_tag is None:
            return False
        with failing():
            url = obstore.sign(self._store, "DELETE", self._prefix + name, timedelta(seconds=_SIGNED_S))
        request = urllib.request.Request(url, method="DELETE", headers={"If-Match": expected.e_tag})
        try:
            with urllib.request.urlopen(request, timeout=self._timeout_s) as answer:
                answer.read()
        except urllib.error.HTTPError as error:
            status = error.code
            error.close()
            if status in (404, 409, 412):
                return False
            effect = Effect.NONE if 400 <= status < 500 and status not in _PASSING else Effect.UNKNOWN
            raise RequestFailed(effect, f"the store answers {status}") from None
        except (OSError, http.client.HTTPException) as error:
            raise RequestFailed(Effect.UNKNOWN, type(error).__name__) from None
        return True

    def _listed(self, meta: Any) -> Listed:
        name = meta["path"].removeprefix(self._prefix)
        return Listed(name, meta["size"], meta["last_modified"].timestamp(), tag_of(meta))


_memories: dict[str, MemoryStore] = {}
_memories_lock = threading.Lock()


def open_store(target: Target, endpoint: str, region: str, timeout_s: float, retries: Mapping[str, Any]) -> Any:
    """obstore's store: a request has `timeout_s`. Raises `ConfigError`."""
    if target.scheme == "memory":
        with _memories_lock:
            return _memories.setdefault(target.bucket, MemoryStore())
    config: dict[str, Any] = {}
    client: dict[str, Any] = {"timeout": timedelta(seconds=timeout_s)}
    if endpoint:
        config["endpoint"] = endpoint.rstrip("/")
        client["allow_http"] = endpoint.startswith("http:")
    if region:
        config["region"] = region
    try:
        make: Any = from_url  # its overloads know each store's settings, and not what a URL names
        return make(target.url, client_options=client, retry_config=dict(retries), **config)
    except (exceptions.BaseError, ValueError, TypeError, OSError):
        problem = "obstore does not open such a URL, or not with these settings of the environment and these options"
        raise ConfigError(f"{target}: {problem}: write s3://BUCKET/PREFIX, gs:// or az://") from None


def open_patient_store(target: Target, options: BackupOptions | ArchiveOptions) -> Any:
    """obstore's store, which makes requests again by itself: for what waits in a thread. Raises `ConfigError`."""
    retries = {"max_retries": 10, "retry_timeout": timedelta(seconds=options.timeout_s)}
    return open_store(target, options.endpoint, options.region, options.timeout_s / 3, retries)


@contextmanager
def failing() -> Iterator[None]:
    try:
        yield
    except (exceptions.BaseError, OSError, ValueError, RuntimeError) as error:
        failure = _failure(error)
    else:
        return
    raise failure  # outside: the store's own words must not come along as its context


def retried(ask: Callable[[], Answer], timeout_s: float) -> Answer:
    """Asks again where obstore does not: after an answer that was cut. Raises `RequestFailed`."""
    end_s, pause_s = time.monotonic() + timeout_s, 0.1
    while True:
        try:
            with failing():
                return ask()
        except RequestFailed as error:
            if error.effect is Effect.NONE or time.monotonic() + pause_s > end_s:
                raise
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 2.0)


def _failure(error: Exception) -> RequestFailed:
    # Names of objects have no blanks, no colons and no angle brackets: none of these patterns matches in one.
    text, code = str(error), _code(str(error))
    status, kind = _STATUS.search(text), _KIND.search(text)
    if status:
        number = int(status[1])
        words = f"the store answers {number} {code}".rstrip()
        if code in _REMEDIES:
            words += f", {_REMEDIES[code]}"
        may_pass = number >= 500 or number in _PASSING or number < 400 or code == "RequestTimeout"
        return RequestFailed(Effect.UNKNOWN if may_pass else Effect.NONE, words)
    if isinstance(error, NotImplementedError):
        return RequestFailed(Effect.NONE, "obstore cannot do that with a store of this kind")
    if _METADATA_SERVICE.search(text):
        return RequestFailed(Effect.NONE_YET, _CREDENTIALS)
    if kind and kind[1] == "Connect":
        reason = _SYSTEM.search(text)
        return RequestFailed(Effect.NONE_YET, f"it cannot be connected to: {reason[1] if reason else 'no connection'}")
    return RequestFailed(Effect.UNKNOWN, f"no answer came: {kind[1] if kind else type(error).__name__}")


def is_elsewhere(error: Exception) -> bool:
    """True if a 404 says that something else than the object is missing: the bucket, or a store at this address."""
    status = _STATUS.search(str(error))
    return status is not None and status[1] == "404" and _code(str(error)) not in _ABSENT_CODES


def _code(text: str) -> str:
    found = _CODE.search(text)
    return found[1] if found else ""


def tag_of(meta: Any) -> Tag:
    return Tag(meta["e_tag"], meta["version"])
