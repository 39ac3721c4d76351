"""The file that has the secrets of names. Nothing that is raised here shows any of it but names."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Any

import attrs

from replog.abc import Role
from replog.errors import ConfigError

NAME = r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}"
SECRET_BYTES_MIN = 16
_SECRET_BYTES_MAX = 1024
_DISTINCT_MIN = 8  # characters in a secret: with fewer it was typed, not drawn
_FILE_BYTES_MAX = 1 << 20
_FIELDS = {"secret", "previous_secret", "roles"}

MAKE_ONE = "make one with: python3 -c 'import secrets; print(secrets.token_urlsafe(32))'"


@attrs.frozen
class NamedSecret:
    """The secrets of a name: the current one, and an earlier one that a bookie still takes, if there is one."""

    name: str
    secrets: tuple[bytes, ...] = attrs.field(repr=False)
    roles: frozenset[Role]


def read_secrets(path: str) -> dict[str, NamedSecret]:
    """The secrets in a file, by names. Raises `ConfigError`, too, if others than its owner and its group may read it."""
    import tomllib  # here: its patterns take 15 ms to compile, and few bookies have such a file

    try:
        found: Any = tomllib.loads(_read(path)).get("clients")
    except OSError as error:
        raise ConfigError(f"{path}: the secrets can't be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        where = re.search(r"\(at [^()]*\)", str(error))  # the rest of its text may show secrets
        raise ConfigError(f"{path}: is not valid TOML {where[0] if where else ''}".rstrip()) from None
    if not isinstance(found, dict) or not found:
        raise ConfigError(f'{path}: has no names; one looks like: [clients.app], and below it: secret = "..."')
    known = {name: _named(path, name, fields) for name, fields in found.items()}
    owners: dict[bytes, str] = {}
    for name, each in known.items():
        for secret in each.secrets:
            other = owners.setdefault(secret, name)
            if other != name:
                raise ConfigError(f"{path}: {other} and {name} have the same secret: then each can be the other")
    return known


def _read(path: str) -> str:
    with Path(path).open("rb") as opened:
        # Of the open file, not of the path: between two looks at a path the file could be exchanged.
        status = os.fstat(opened.fileno())
        mode = stat.S_IMODE(status.st_mode)
        # The group may read: that is how a service gets secrets that root owns.
        if mode & (stat.S_IRWXO | stat.S_IWGRP):
            raise ConfigError(f"{path}: others may read or change it (its mode is {mode:04o}): chmod 600 {path}")
        if status.st_uid not in (0, os.geteuid()):
            raise ConfigError(f"{path}: belongs to another user, who can change it: change its owner")
        text = opened.read(_FILE_BYTES_MAX + 1)
    if len(text) > _FILE_BYTES_MAX:
        raise ConfigError(f"{path}: is longer than {_FILE_BYTES_MAX} bytes: is it a file of secrets?")
    return text.decode("utf-8")


def _named(path: str, name: str, fields: Any) -> NamedSecret:
    where = f"{path}: clients.{name}"
    if not re.fullmatch(NAME, name):
        raise ConfigError(
            f"{path}: {name!r} is not a valid name: up to 64 letters, digits, and . _ @ - behind the first one"
        )
    if not isinstance(fields, dict) or "secret" not in fields:
        raise ConfigError(f'{where}: has no secret; it looks like: secret = "..."; {MAKE_ONE}')
    unknown = sorted(fields.keys() - _FIELDS)
    if unknown:
        raise ConfigError(f"{where}: no such field: {', '.join(unknown)} (there are: {', '.join(sorted(_FIELDS))})")
    given = [fields[field] for field in ("secret", "previous_secret") if field in fields]
    return NamedSecret(name, tuple(_secret(where, each) for each in given), _roles(where, fields.get("roles")))


def _secret(where: str, value: Any) -> bytes:
    if not isinstance(value, str):
        raise ConfigError(f"{where}: a secret is a text in quotes")
    secret = value.encode()
    if not SECRET_BYTES_MIN <= len(secret) <= _SECRET_BYTES_MAX or len(set(secret)) < _DISTINCT_MIN:
        problem = f"a secret has at least {SECRET_BYTES_MIN} bytes (at most {_SECRET_BYTES_MAX}), drawn at random"
        raise ConfigError(f"{where}: {problem}: {MAKE_ONE}")
    return secret


def _roles(where: str, value: Any) -> frozenset[Role]:
    known = {role.value: role for role in Role}
    if value is None:
        return frozenset({Role.CLIENT})
    if not isinstance(value, list) or not value or not all(isinstance(each, str) and each in known for each in value):
        raise ConfigError(f"{where}: roles is a list of some of: {', '.join(known)}")
    return frozenset(known[each] for each in value)
