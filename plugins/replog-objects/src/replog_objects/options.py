"""The contents of a URL: the bucket, the prefix, and the options."""

from __future__ import annotations

import math
import re
from typing import Any

import attrs
from attrs.validators import ge, gt, lt

from replog.errors import ConfigError

PREFIX_BYTES_MAX = 200  # a key of S3 has 1,024 bytes
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#\\]*)(?:/([^?#\\]*))?")
_PREFIX = re.compile(r"[A-Za-z0-9._=-]+(/[A-Za-z0-9._=-]+)*")
_ABOVE_ZERO: Any = [gt(0), lt(math.inf)]
_AT_LEAST_ZERO: Any = [ge(0), lt(math.inf)]


@attrs.frozen(kw_only=True)
class ObjectsOptions:
    """Options of the scheme `objects`. Credentials are none of them: obstore takes them from the environment or the machine.

    `endpoint` and `region`: of an S3 that is not Amazon's, or not where the environment says. `timeout_s`: for one call, with all
    its attempts; each attempt has a third of it. `lease_s`: what a process announced counts as gone after so long a silence; each
    announcement and each candidacy costs four puts in that time. `poll_s`: a wait looks again after a second, and less and less
    often up to this. `requests_max`: requests at a time. `tombstone_s`: a deleted key keeps 70 bytes for at least so long.
    """

    endpoint: str = ""
    region: str = ""
    timeout_s: float = attrs.field(default=10.0, validator=_ABOVE_ZERO)
    lease_s: float = attrs.field(default=30.0, validator=_ABOVE_ZERO)
    poll_s: float = attrs.field(default=60.0, validator=_ABOVE_ZERO)
    requests_max: int = attrs.field(default=16, validator=ge(1))
    tombstone_s: float = attrs.field(default=3600.0, validator=_AT_LEAST_ZERO)

    def __attrs_post_init__(self) -> None:
        _check_endpoint(self.endpoint)


@attrs.frozen(kw_only=True)
class BackupOptions:
    """Options of a back-up in a bucket. `endpoint` and `region`: as of the metastore. `timeout_s`: for one request, with all its
    attempts; a part of a file is 8 MiB."""

    endpoint: str = ""
    region: str = ""
    timeout_s: float = attrs.field(default=60.0, validator=_ABOVE_ZERO)

    def __attrs_post_init__(self) -> None:
        _check_endpoint(self.endpoint)


@attrs.frozen(kw_only=True)
class ArchiveOptions:
    """Options of an archive in a bucket. `endpoint` and `region`: as of the metastore. `timeout_s`: for one request, with all its
    attempts, each of which has a third of it; an object is 64 MiB."""

    endpoint: str = ""
    region: str = ""
    timeout_s: float = attrs.field(default=180.0, validator=_ABOVE_ZERO)

    def __attrs_post_init__(self) -> None:
        _check_endpoint(self.endpoint)


def _check_endpoint(endpoint: str) -> None:
    if endpoint and not re.fullmatch(r"https?://[^/@?#\s]+/?", endpoint):
        # The value is not repeated: it may have a password in it.
        raise ValueError("endpoint must look like https://HOST or http://HOST:PORT, without a user and a path")


@attrs.frozen
class Target:
    """A place in a bucket: the URL that obstore knows it by, without the prefix, and the prefix: "" or words."""

    scheme: str
    bucket: str
    prefix: str = ""

    @classmethod
    def parse(cls, rest: str) -> Target:
        """Reads `s3://BUCKET/PREFIX`, the part behind `objects:`. Raises `ConfigError`."""
        match = _URL.fullmatch(rest)
        if "@" in rest:
            # Not repeated: what is before the "@" may be credentials.
            raise ConfigError(
                "a bucket's URL has no user: credentials come from the environment, as obstore takes them"
            )
        if match is None or not match[2]:
            raise ConfigError(f"{rest!r} names no bucket; write s3://BUCKET/PREFIX")
        prefix = (match[3] or "").rstrip("/")
        words = prefix.split("/")
        if prefix and (not _PREFIX.fullmatch(prefix) or any(not word.strip(".") for word in words)):
            raise ConfigError(f"{rest}: the prefix is words of letters, digits and ._=- joined by '/'")
        if len(prefix) > PREFIX_BYTES_MAX:
            raise ConfigError(f"{rest}: the prefix is longer than {PREFIX_BYTES_MAX} bytes")
        return cls(match[1].lower(), match[2], prefix)

    @property
    def url(self) -> str:
        """The bucket, as obstore takes it."""
        return f"{self.scheme}://{self.bucket}"

    def __str__(self) -> str:
        return f"{self.url}/{self.prefix}" if self.prefix else self.url
