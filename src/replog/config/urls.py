"""URLs of backends: `scheme:rest?option=value`, `scheme://rest` or only `scheme`; rest and values are percent-decoded."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import parse_qsl, quote, unquote

import attrs

from replog.errors import ConfigError

_URL = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*)(?::(?://)?(?P<rest>[^?]*))?(?:\?(?P<options>.*))?", re.DOTALL)
_SECRET = re.compile(r"password|secret|token|credential", re.IGNORECASE)
_SECRET_OPTION = re.compile(rf"((?:^|[?&])[^=&?]*(?:{_SECRET.pattern})[^=&]*=).*", re.IGNORECASE | re.DOTALL)
_PASSWORD = re.compile(r"(?<=:)[^:/@]+(?=@)")  # as in `user:password@host`


@attrs.frozen
class BackendURL:
    """The name of a plugin's backend: `scheme`, `rest` and `options`. Printing it hides secrets."""

    scheme: str
    rest: str = ""
    options: Mapping[str, str] = attrs.field(factory=dict)

    @classmethod
    def parse(cls, text: str | BackendURL) -> BackendURL:
        """Reads `scheme:rest?option=value`. Raises `ConfigError`."""
        if isinstance(text, BackendURL):
            return text
        match = _URL.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            shown = _without_secrets(text) if isinstance(text, str) else text
            raise ConfigError(f"invalid URL of a backend {shown!r}: expected scheme:rest?option=value, as lmdb:./wal")
        try:
            # Blank values are kept: `?option=` must reach the option's own check, and not mean its default.
            pairs = parse_qsl(match["options"] or "", keep_blank_values=True, strict_parsing=bool(match["options"]))
        except ValueError:  # what it says may be a piece of a password
            raise ConfigError(f"{_without_secrets(text)!r}: its options must be option=value&option=value") from None
        options = dict(pairs)
        # A dictionary keeps the last of two values; which one was meant is not for us to guess.
        if len(options) != len(pairs):
            raise ConfigError(f"{_without_secrets(text)!r}: an option is given twice")
        return cls(match["scheme"], unquote(match["rest"] or ""), options)

    def __str__(self) -> str:
        """The text that `parse` reads, with *** in place of secrets."""
        # Errors and logs print URLs, even those that are refused.
        rest = quote(_PASSWORD.sub("***", self.rest), safe="/:,@*~")
        shown = {
            name: "***" if _SECRET.search(name) else quote(_PASSWORD.sub("***", value), safe="/:@*")
            for name, value in self.options.items()
        }
        return f"{self.scheme}:{rest}" + ("?" if shown else "") + "&".join(f"{name}={shown[name]}" for name in shown)

    def with_secrets(self) -> str:
        """The text that `parse` reads, with its secrets: never print it."""
        options = "&".join(f"{quote(name)}={quote(value)}" for name, value in self.options.items())
        return f"{self.scheme}:{quote(self.rest)}" + (f"?{options}" if options else "")


def _without_secrets(text: str) -> str:
    """A text that may be no URL, with *** in place of passwords, and of all behind a secret option: an & may be part of it."""
    return _SECRET_OPTION.sub(r"\1***", _PASSWORD.sub("***", text))
