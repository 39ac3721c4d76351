"""Configuration: URLs of backends, options from files, the environment and arguments, and the options there are.

Data enters here and nowhere else: `structure` makes an attrs class of texts and numbers, refuses what it doesn't know,
and reports *all* faults in one `ConfigError`, each with its path and where it came from.

A URL is `scheme:rest?option=value`, `scheme://rest` or only `scheme`; rest and values are percent-decoded. Sizes may be
written as `64MiB`, truths as true, yes, on, 1 and their opposites, nothing as `none`, lists with commas.
"""

from __future__ import annotations

import os
import re
import tomllib
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl, quote, unquote

import attrs
import cattrs
from cattrs.gen import make_dict_structure_fn, override

from replog.errors import ConfigError
from replog.protocol.batch import BATCH_BYTES_MAX, ENTRY_BYTES_MAX

Options = TypeVar("Options")

# -- URLs ---------------------------------------------------------------------------------------------------------

_URL = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*)(?::(?://)?(?P<rest>[^?]*))?(?:\?(?P<options>.*))?", re.DOTALL)
_SECRET = re.compile(r"password|secret|token|credential", re.IGNORECASE)


@attrs.frozen
class BackendURL:
    """What names a plugin's backend: `scheme`, `rest` and `options`. Printed without its secrets."""

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
            raise ConfigError(
                f"{text!r} is no URL of a backend: one looks like scheme:rest?option=value, as in lmdb:./wal"
            )
        try:
            pairs = parse_qsl(match["options"] or "", keep_blank_values=True, strict_parsing=bool(match["options"]))
        except ValueError as error:
            raise ConfigError(f"{text!r}: its options don't read as option=value&option=value: {error}") from error
        options = dict(pairs)
        if len(options) != len(pairs):
            raise ConfigError(f"{text!r}: an option is given twice")
        return cls(match["scheme"], unquote(match["rest"] or ""), options)

    def __str__(self) -> str:
        """As `parse` reads it, but for secrets: these print as ***."""
        rest = quote(re.sub(r"(?<=:)[^:/@]+(?=@)", "***", self.rest), safe="/:,@*~")
        shown = {name: "***" if _SECRET.search(name) else quote(value) for name, value in self.options.items()}
        return f"{self.scheme}:{rest}" + ("?" if shown else "") + "&".join(f"{name}={shown[name]}" for name in shown)

    def with_secrets(self) -> str:
        """As `parse` reads it, whole: nothing to be shown."""
        options = "&".join(f"{quote(name)}={quote(value)}" for name, value in self.options.items())
        return f"{self.scheme}:{quote(self.rest)}" + (f"?{options}" if options else "")


# -- from texts to options ----------------------------------------------------------------------------------------

_SIZE = re.compile(r"([+-]?\d[\d_]*)\s*(?:([kmgt])(i?)b)?", re.IGNORECASE | re.ASCII)
_TRUTHS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


class FaultsError(ConfigError):
    """A `ConfigError` that knows the `faults` it lists, one by one."""

    def __init__(self, what: str, faults: Sequence[str]) -> None:
        super().__init__(_report(what, faults))
        self.faults = tuple(faults)


def structure(
    options_class: type[Options], values: Mapping[str, Any], *, what: str, sources: Mapping[str, str] = {}
) -> Options:
    """An instance of this attrs class with these values, texts converted to the fields' types.

    Raises `FaultsError`, a `ConfigError` that begins with `what` and lists every fault: unknown options, wrong types, and
    what the validators say. `sources` tells where the value of an option came from.
    """
    try:
        return _converter.structure(dict(values), options_class)
    except cattrs.BaseValidationError as error:
        faults = cattrs.transform_error(error, path="", format_exception=_describe)
        raise FaultsError(what, [_with_source(fault, sources) for fault in faults]) from error
    except ConfigError as error:
        raise FaultsError(what, [str(error)]) from error


def _report(what: str, faults: Sequence[str]) -> str:
    return f"{what}: {faults[0]}" if len(faults) == 1 else "\n  - ".join([f"{what}: {len(faults)} faults", *faults])


def _with_source(fault: str, sources: Mapping[str, str]) -> str:
    text, _, path = fault.rpartition(" @ ")
    path = path.lstrip(".")
    source = sources.get(path.split(".")[0].split("[")[0])
    return ": ".join(each for each in (path + (f" (from {source})" if source else ""), text) if each)


def _describe(error: BaseException, _type: type | None) -> str:
    if isinstance(error, KeyError):
        return "it must be given"
    if isinstance(error, cattrs.ForbiddenExtraKeysError):
        known = ", ".join(field.name for field in attrs.fields(error.cl)) or "none"
        return f"no such option: {', '.join(sorted(map(str, error.extra_fields)))} (there are: {known})"
    return "; ".join(error.faults) if isinstance(error, FaultsError) else str(error)


def _structure_int(value: Any, _type: type) -> int:
    if isinstance(value, str) and (match := _SIZE.fullmatch(value.strip())):
        multiple = int(match[1])
        for _ in range(" kmgt".index((match[2] or " ").lower())):
            multiple *= 1024 if match[3] else 1000
        return multiple
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise TypeError(f"{value!r} is no whole number, nor a size like 64MiB")


def _structure_float(value: Any, _type: type) -> float:
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        try:
            return float(value)
        except (ValueError, OverflowError):
            pass
    raise TypeError(f"{value!r} is no number")


def _structure_bool(value: Any, _type: type) -> bool:
    found = _TRUTHS.get(value.strip().lower()) if isinstance(value, str) else value
    if isinstance(found, bool):
        return found
    raise TypeError(f"{value!r} is neither true nor false")


def _structure_str(value: Any, _type: type) -> str:
    if isinstance(value, str):
        return value
    raise TypeError(f"{value!r} is no text")


def _structure_optional(value: Any, union: Any) -> Any:
    if value is None or (isinstance(value, str) and value.strip().lower() == "none"):
        return None
    (wanted,) = (each for each in typing.get_args(union) if each is not types.NoneType)
    return _converter.structure(value, wanted)


def _structure_tuple(value: Any, wanted: Any) -> tuple[Any, ...]:
    if isinstance(value, str):
        value = [each.strip() for each in value.split(",")] if value.strip() else []
    if not isinstance(value, list | tuple):
        raise TypeError(f"{value!r} is no list")
    return tuple(_converter.structure(each, typing.get_args(wanted)[0]) for each in value)


def _is_optional(wanted: Any) -> bool:
    arguments = typing.get_args(wanted)
    is_union = typing.get_origin(wanted) in (typing.Union, types.UnionType)
    return is_union and len(arguments) == 2 and types.NoneType in arguments


def _is_tuple_of_one(wanted: Any) -> bool:
    return typing.get_origin(wanted) is tuple and typing.get_args(wanted)[1:] == (Ellipsis,)


def _structure_options_class(options_class: Any) -> Callable[..., Any]:
    """Fields one by one with their validators, so that every fault is found, not only the first one."""
    attrs.resolve_types(options_class)

    def checked(field: attrs.Attribute[Any]) -> Callable[[Any, Any], Any]:
        def structure_field(value: Any, wanted: Any) -> Any:
            found = value if wanted in (None, Any) else _converter.structure(value, wanted)
            if field.converter is None and field.validator is not None:
                field.validator(None, field, found)
            check_field(field, found)
            return found

        return structure_field

    hooks: dict[str, Any] = {
        field.name: override(struct_hook=checked(field)) for field in attrs.fields(options_class) if field.init
    }
    from_mapping = make_dict_structure_fn(
        options_class, _converter, _cattrs_forbid_extra_keys=True, _cattrs_detailed_validation=True, **hooks
    )

    def structure_class(value: Any, wanted: Any) -> Any:
        if not isinstance(value, Mapping):
            raise TypeError(f"{value!r} is no table of options")
        return from_mapping(value, wanted)

    return structure_class


_converter = cattrs.Converter(detailed_validation=True, forbid_extra_keys=True)
_converter.register_structure_hook_factory(attrs.has, _structure_options_class)
_converter.register_structure_hook_func(_is_optional, _structure_optional)
_converter.register_structure_hook_func(_is_tuple_of_one, _structure_tuple)
_converter.register_structure_hook(int, _structure_int)
_converter.register_structure_hook(float, _structure_float)
_converter.register_structure_hook(bool, _structure_bool)
_converter.register_structure_hook(str, _structure_str)

# -- from files and the environment -------------------------------------------------------------------------------


def load(
    options_class: type[Options],
    *,
    toml_path: str | os.PathLike[str] | None = None,
    table: str = "",
    environment: Mapping[str, str] | None = None,
    prefix: str = "",
    overrides: Mapping[str, Any] | None = None,
) -> Options:
    """Options from a TOML file (or one table of it), over that the environment, over that the arguments.

    `environment` is usually `os.environ`: all its variables that begin with `prefix` must be options, in capitals.
    Raises `ConfigError` with all faults, each with its file, variable or argument.
    """
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    if toml_path is not None:
        values.update(read_toml(Path(toml_path), table))
        sources.update(dict.fromkeys(values, str(toml_path)))
    if environment is not None:
        if not prefix:
            raise ConfigError("a prefix is needed to tell the options among the variables of the environment")
        found = {name[len(prefix) :].lower(): name for name in environment if name.startswith(prefix)}
        values.update((option, environment[name]) for option, name in found.items())
        sources.update(found)
    values.update(overrides or {})
    sources.update(dict.fromkeys(overrides or {}, "an argument"))
    return structure(options_class, values, what=options_class.__name__, sources=sources)


def read_toml(path: Path, table: str = "") -> dict[str, Any]:
    """A table of a TOML file, {} if it has none of this name; or all of the file. Raises `ConfigError`."""
    try:
        found: Any = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: is no TOML: {error}") from error
    for word in table.split(".") if table else []:
        found = found.get(word, {})
        if not isinstance(found, dict):
            raise ConfigError(f"{path}: {table} must be a table")
    return dict(found)


# -- the options there are ----------------------------------------------------------------------------------------

Check = Callable[[Any], str | None]


def option(default: Any, doc: str, check: Check | None = None) -> Any:
    """A field with a default, a line for people, and what is wrong with a value, if something is."""
    return attrs.field(default=default, metadata={"doc": doc, "check": check})


def check_field(field: attrs.Attribute[Any], value: object) -> None:
    """Raises ValueError with what the field's check has to say of this value."""
    check = field.metadata.get("check")
    fault = check(value) if check is not None and value is not None else None
    if fault is not None:
        raise ValueError(fault)


def at_least(lowest: float, highest: float | None = None) -> Check:
    """A number between these, which are allowed."""

    def check(value: Any) -> str | None:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return f"{value!r} is no number"
        if highest is not None and not lowest <= value <= highest:
            return f"{value} is not between {lowest} and {highest}"
        return None if value >= lowest else f"{value} is less than {lowest}"

    return check


def positive(value: Any) -> str | None:
    """A finite number above 0."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"{value!r} is no number"
    return None if 0 < value < float("inf") else f"{value} is not above 0 and finite"


class Checked:
    """A base of options: however an instance is made, all its checks hold, or `ConfigError` lists what does not."""

    def __attrs_post_init__(self) -> None:
        faults = []
        for field in attrs.fields(type(self)):  # type: ignore[arg-type]
            try:
                check_field(field, getattr(self, field.name))
            except ValueError as error:
                faults.append(f"{field.name}: {error}")
        faults += [] if faults else self.contradictions()
        if faults:
            raise FaultsError(type(self).__name__, faults)

    def contradictions(self) -> list[str]:
        """What cannot be true together, though each option alone may be as it is."""
        return []


# -- secrets ------------------------------------------------------------------------------------------------------

_PASSWORD_BYTES_MAX = 64 << 10


def ledger_password(path: str | os.PathLike[str] | None, option_name: str) -> bytes:
    """What this file says, without the line's end; without a file what `REPLOG_PASSWORD` says; b"" if there is neither.
    Raises `ConfigError`, which names the option that named the file."""
    if path is None:
        return os.environb.get(b"REPLOG_PASSWORD", b"")
    try:
        with open(path, "rb") as file:
            found = file.read(_PASSWORD_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"{option_name} {path}: cannot be read: {error.strerror}") from error
    if len(found) > _PASSWORD_BYTES_MAX:
        raise ConfigError(f"{option_name} {path}: is longer than {_PASSWORD_BYTES_MAX} bytes")
    return found.removesuffix(b"\n").removesuffix(b"\r")


# -- the options of client and bookie -----------------------------------------------------------------------------

MIB = 1 << 20


@attrs.frozen(kw_only=True)
class ClientOptions(Checked):
    """How a client writes, reads and takes over. Environment: `REPLOG_CLIENT_...`; in a file: the table `client`."""

    in_flight_bytes_max: int = option(
        64 * MIB,
        "Bytes that a writer may have pushed and not confirmed; `append` waits, `push_nowait` raises (W6).",
        positive,
    )
    batch_bytes_max: int = option(
        MIB,
        "Bytes that a batch gathers at most; a single larger entry makes a larger batch.",
        at_least(1, BATCH_BYTES_MAX // 2),
    )
    batches_in_flight_max: int = option(
        4, "Batches sent and not confirmed; more entries gather into the next.", at_least(1)
    )
    add_timeout_s: float = option(5.0, "How long one bookie may take for an add before it is replaced (W6).", positive)
    add_quorum_timeout_s: float = option(
        30.0, "How long an entry may stay unconfirmed before its writer fails with `AddTimeoutError` (W6).", positive
    )
    lagging_bookie_timeout_s: float = option(
        1.0,
        "How long a writer waits for a bookie that has fallen far behind the others and answers nothing, before it is replaced.",
        positive,
    )
    read_timeout_s: float = option(
        5.0, "How long one bookie may take for a read before the next is asked (D2).", positive
    )
    speculative_read_after_s: float = option(0.5, "After how long a second bookie is asked as well (D2).", positive)
    explicit_last_add_confirmed_after_s: float = option(
        0.1,
        "After how long an idle writer publishes its last add confirmed, if no follower waits for it (W5).",
        positive,
    )
    follow_wait_s: float = option(1.0, "How long a following reader's question stays with a bookie (D1).", positive)
    roll_bytes: int | None = option(
        256 * MIB, "A log goes on to its next ledger after so many bytes; none: never (L2).", positive
    )
    roll_entries: int | None = option(None, "The same after so many entries.", positive)
    roll_age_s: float | None = option(None, "The same after so long.", positive)
    takeover_timeout_s: float = option(30.0, "How long a takeover may take, lost races included (L1).", positive)
    recovery_timeout_s: float = option(
        30.0, "How long the recovery of one ledger may take; until then it goes on asking (R4, R12).", positive
    )
    absence_wait_s: float = option(
        2.0,
        "How long a recovery waits for a silent bookie, from its beginning or the bookie's last answers, before the denials of "
        "the others decide (R10).",
        positive,
    )
    metastore_timeout_s: float = option(
        10.0, "How long one change of metadata may take, its retries included (M1).", positive
    )
    connect_timeout_s: float = option(5.0, "How long connecting to a bookie may take.", positive)
    bookie_retry_after_s: float = option(
        5.0, "How long a bookie that failed is not chosen for new ensembles; longer if it keeps failing.", positive
    )
    bookie_retry_after_max_s: float = option(60.0, "How long at most, however often it failed.", positive)
    transports: tuple[str, ...] = option(
        (), "URLs of transports with their options, as `tcp:?tls_ca_file=ca.pem`; others have their defaults."
    )
    authentication: str = option("none", "URL of the authenticator that proves to bookies who this client is.")

    def contradictions(self) -> list[str]:
        """What cannot be true together."""
        faults = []
        if self.batch_bytes_max > self.in_flight_bytes_max:
            faults.append(
                f"batch_bytes_max {self.batch_bytes_max} exceeds in_flight_bytes_max {self.in_flight_bytes_max}"
            )
        if self.add_timeout_s > self.add_quorum_timeout_s:
            faults.append(
                f"add_timeout_s {self.add_timeout_s} exceeds add_quorum_timeout_s {self.add_quorum_timeout_s}"
            )
        if self.bookie_retry_after_s > self.bookie_retry_after_max_s:
            faults.append(
                f"bookie_retry_after_s {self.bookie_retry_after_s} exceeds "
                f"bookie_retry_after_max_s {self.bookie_retry_after_max_s}"
            )
        return faults


@attrs.frozen(kw_only=True)
class BookieOptions(Checked):
    """How a bookie stores and serves. Environment: `REPLOG_BOOKIE_...`; in a file: the table `bookie`."""

    storage: str = option("files", "URL of the storage, without the directory if it is embedded: scheme?option=value.")
    listen: tuple[str, ...] = option(
        (), "URLs to be reached at from elsewhere, as `tcp:0.0.0.0:3181`; in the same trio run always."
    )
    authentication: str = option("none", "URL of the authenticator that tells who connects from elsewhere.")
    queue_bytes_max: int = option(
        64 * MIB, "Bytes that wait for the disk; past them requests are refused as too busy.", at_least(ENTRY_BYTES_MAX)
    )
    commit_bytes_max: int = option(8 * MIB, "Bytes that one commit takes at most: one sync for all of them.", positive)
    commit_inline_when_idle: bool = option(
        False, "Commit a lone add in the caller's thread: less latency, but the event loop waits for the disk."
    )
    answer_bytes_max: int = option(4 * MIB, "Bytes that one answer to a read holds at most.", positive)
    long_poll_max_s: float = option(
        30.0, "How long a question for a later last add confirmed may wait at most.", positive
    )
    garbage_collection_interval_s: float = option(
        600.0, "How often ledgers that were deleted are looked for (B6).", positive
    )
    read_only_below_bytes: int = option(
        256 * MIB, "With fewer free bytes on its disk a bookie takes no new entries, and makes space (B5).", at_least(0)
    )
    writable_above_bytes: int = option(512 * MIB, "With so many free bytes it takes them again.", at_least(0))
    announce_timeout_s: float = option(
        60.0,
        "How long a start waits while somebody is announced as this bookie, as its killed predecessor is for a while.",
        positive,
    )
    close_timeout_s: float = option(
        30.0, "How long leaving waits for calls to a disk that does not answer, before it leaves them behind.", positive
    )

    def contradictions(self) -> list[str]:
        """What cannot be true together."""
        if self.writable_above_bytes < self.read_only_below_bytes:
            return [
                f"writable_above_bytes {self.writable_above_bytes} is less than "
                f"read_only_below_bytes {self.read_only_below_bytes}"
            ]
        return []


def check_types(where: str, **given: tuple[object, type]) -> None:
    """Raises `ConfigError` for arguments, by name, that are neither None nor of their type."""
    wrong = [
        f"{name}={value!r} must be {kind.__name__}(...)"
        for name, (value, kind) in given.items()
        if value is not None and not isinstance(value, kind)
    ]
    if wrong:
        raise ConfigError(f"{where}: {'; '.join(wrong)}")


def check_number(name: str, value: object, lowest: int | None = None) -> None:
    """Raises `ConfigError` for what is not a whole number, or below the lowest."""
    if type(value) is not int or (lowest is not None and value < lowest):
        at_least = "" if lowest is None else f" of at least {lowest}"
        raise ConfigError(f"{name}={value!r} must be a whole number{at_least}")
