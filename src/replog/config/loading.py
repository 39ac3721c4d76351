"""Options from TOML files, the environment and arguments; passwords from files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from replog.config.parsing import Options, structure
from replog.errors import ConfigError

_PASSWORD_BYTES_MAX = 64 << 10


def load(
    options_class: type[Options],
    *,
    toml_path: str | os.PathLike[str] | None = None,
    table: str = "",
    environment: Mapping[str, str] | None = None,
    prefix: str = "",
    overrides: Mapping[str, Any] | None = None,
) -> Options:
    """Options from a TOML file (or one table of it); the environment overrides the file, arguments override both.

    `environment` is usually `os.environ`: each of its variables that begins with `prefix` must be an option, in capitals.
    Raises `ConfigError` with all faults, each with its file, variable or argument.
    """
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    if toml_path is not None:
        values.update(read_toml(Path(toml_path), table))
        sources.update(dict.fromkeys(values, str(toml_path)))
    if environment is not None:
        if not prefix:
            raise ConfigError("reading options from the environment needs a prefix")
        found = {name[len(prefix) :].lower(): name for name in environment if name.startswith(prefix)}
        values.update((option, environment[name]) for option, name in found.items())
        sources.update(found)
    # Sources follow the same order as values: a fault must name the place that won, not one that was overridden.
    values.update(overrides or {})
    sources.update(dict.fromkeys(overrides or {}, "an argument"))
    return structure(options_class, values, what=options_class.__name__, sources=sources)


def read_toml(path: Path, table: str = "") -> dict[str, Any]:
    """A table of a TOML file, {} if the file has none of this name; without a name the whole file. Raises `ConfigError`."""
    import tomllib  # here: its patterns take 15 ms to compile, and few programs have such a file

    try:
        found: Any = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: is not valid TOML: {error}") from error
    # A missing table is {}, not a fault: one file may configure only the bookie, or only the client.
    for word in table.split(".") if table else []:
        found = found.get(word, {})
        if not isinstance(found, dict):
            raise ConfigError(f"{path}: {table} must be a table")
    return dict(found)


def ledger_password(path: str | os.PathLike[str] | None, option_name: str) -> bytes:
    """The password in this file, without a line's end; without a file the value of `REPLOG_PASSWORD`, or b"".

    Raises `ConfigError`, naming the option that named the file."""
    if path is None:
        # Passwords are bytes, and need not be valid UTF-8.
        return os.environb.get(b"REPLOG_PASSWORD", b"")
    try:
        with open(path, "rb") as file:
            # Bounded, and one byte more than allowed: the option may name a device or a huge file by mistake.
            found = file.read(_PASSWORD_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"{option_name} {path}: cannot be read: {error.strerror}") from error
    if len(found) > _PASSWORD_BYTES_MAX:
        raise ConfigError(f"{option_name} {path}: is longer than {_PASSWORD_BYTES_MAX} bytes")
    # One end of line only, which editors and `echo` add: a password may itself end with blank characters.
    return found.removesuffix(b"\n").removesuffix(b"\r")
