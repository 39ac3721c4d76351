"""The token that names this client to etcd: requested once, and again when etcd no longer accepts it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import trio

from replog.errors import ConfigError
from replog_etcd.options import EtcdOptions


class Tokens:
    """The token of one client. etcd forgets one after some minutes, or when a server starts again."""

    def __init__(self, options: EtcdOptions, authenticate: Callable[[Mapping[str, str]], Awaitable[str]]) -> None:
        self._options = options
        self._authenticate = authenticate
        self._token = ""
        self._turn = trio.Lock()

    async def get(self) -> str:
        """The token, "" if no user is configured. Raises `ConfigError`, and what signing in raises."""
        if not self._options.user or self._token:
            return self._token
        async with self._turn:  # one asks, and the others wait for its answer
            if not self._token:
                self._token = await self._authenticate({"name": self._options.user, "password": await self._password()})
        return self._token

    def forget(self, token: str) -> None:
        """etcd no longer accepts this token. A newer one stays."""
        if self._token == token:
            self._token = ""

    async def _password(self) -> str:
        """Read each time, so that a new password needs no new client."""
        path = self._options.password_file
        try:
            text = await trio.Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"etcd: the password of {self._options.user!r} can't be read: {error}") from error
        if not text.strip():
            raise ConfigError(f"etcd: {path} has no password in its first line")
        return text.splitlines()[0]
