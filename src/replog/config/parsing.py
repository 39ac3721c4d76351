"""From texts and numbers to options: one `ConfigError` reports *all* faults, each with its path and where it came from.

Sizes may be written as `64MiB`; truth values as true, yes, on, 1 and their opposites; nothing as `none`; lists with commas.
"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import attrs
import cattrs
from cattrs.gen import make_dict_structure_fn, override

from replog.config.checks import FaultsError, check_field
from replog.errors import ConfigError
from replog.protocol.quorum import Quorum

Options = TypeVar("Options")

_SIZE = re.compile(r"([+-]?\d[\d_]*)\s*(?:([kmgt])(i?)b)?", re.IGNORECASE | re.ASCII)
_TRUTHS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def structure(
    options_class: type[Options], values: Mapping[str, Any], *, what: str, sources: Mapping[str, str] = {}
) -> Options:
    """An instance of this attrs class with these values; texts are converted to the fields' types.

    Raises `FaultsError`, a `ConfigError` that begins with `what` and lists every fault: unknown options, wrong types and failed
    checks. `sources` maps options to where their values came from.
    """
    try:
        return _converter.structure(dict(values), options_class)
    except cattrs.BaseValidationError as error:
        faults = cattrs.transform_error(error, path="", format_exception=_describe)
        raise FaultsError(what, [_with_source(fault, sources) for fault in faults]) from error
    except ConfigError as error:
        raise FaultsError(what, [str(error)]) from error


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


def parse_size_bytes(text: str) -> int | None:
    """Read a size as people write it, 64MiB or 1000, in bytes; None if it is none."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        return None
    multiple = int(match[1])
    for _ in range(" kmgt".index((match[2] or " ").lower())):
        multiple *= 1024 if match[3] else 1000
    return multiple


def parse_quorum(text: str) -> Quorum | None:
    """Read ENSEMBLE,WRITE,ACK, as 3,3,2 or 3/3/2; None if it is none. Raises `ConfigError` for one that is impossible."""
    numbers = [each.strip() for each in re.split(r"[,/]", text)]
    if len(numbers) != 3 or not all(each.isascii() and each.isdigit() for each in numbers):
        return None
    return Quorum(*map(int, numbers))


def _structure_int(value: Any, _type: type) -> int:
    if isinstance(value, str) and (size_bytes := parse_size_bytes(value)) is not None:
        return size_bytes
    # `true` in a TOML file is an int to Python; as a number it would silently be 1.
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise TypeError(f"{value!r} is neither a whole number nor a size like 64MiB")


def _structure_float(value: Any, _type: type) -> float:
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        try:
            return float(value)
        except (ValueError, OverflowError):
            pass
    raise TypeError(f"{value!r} is not a number")


def _structure_bool(value: Any, _type: type) -> bool:
    found = _TRUTHS.get(value.strip().lower()) if isinstance(value, str) else value
    if isinstance(found, bool):
        return found
    raise TypeError(f"{value!r} is neither true nor false")


def _structure_str(value: Any, _type: type) -> str:
    if isinstance(value, str):
        return value
    raise TypeError(f"{value!r} is not a text")


def _structure_optional(value: Any, union: Any) -> Any:
    if value is None or (isinstance(value, str) and value.strip().lower() == "none"):
        return None
    (wanted,) = (each for each in typing.get_args(union) if each is not types.NoneType)
    return _converter.structure(value, wanted)


def _structure_tuple(value: Any, wanted: Any) -> tuple[Any, ...]:
    if isinstance(value, str):
        value = [each.strip() for each in value.split(",")] if value.strip() else []
    if not isinstance(value, list | tuple):
        raise TypeError(f"{value!r} is not a list")
    return tuple(_converter.structure(each, typing.get_args(wanted)[0]) for each in value)


def _is_optional(wanted: Any) -> bool:
    arguments = typing.get_args(wanted)
    is_union = typing.get_origin(wanted) in (typing.Union, types.UnionType)
    return is_union and len(arguments) == 2 and types.NoneType in arguments


def _is_tuple_of_one(wanted: Any) -> bool:
    return typing.get_origin(wanted) is tuple and typing.get_args(wanted)[1:] == (Ellipsis,)


def _structure_options_class(options_class: Any) -> Callable[..., Any]:
    """Structures and checks each field by itself, so that every fault is found, not only the first."""
    # Modules with `from __future__ import annotations` have texts for types, which cattrs cannot structure.
    attrs.resolve_types(options_class)

    def checked(field: attrs.Attribute[Any]) -> Callable[[Any, Any], Any]:
        def structure_field(value: Any, wanted: Any) -> Any:
            found = value if wanted in (None, Any) else _converter.structure(value, wanted)
            # Run here, too: attrs runs validators while it makes the instance, and stops at the first that fails. A
            # field with a converter is left to attrs, since the validator must see what the converter returns.
            if field.converter is None and field.validator is not None:
                field.validator(None, field, found)
            check_field(field, found)
            return found

        return structure_field

    hooks: dict[str, Any] = {
        field.name: override(struct_hook=checked(field)) for field in attrs.fields(options_class) if field.init
    }
    # Unknown keys are refused: a misspelt option would otherwise leave the default in force without a word.
    from_mapping = make_dict_structure_fn(
        options_class, _converter, _cattrs_forbid_extra_keys=True, _cattrs_detailed_validation=True, **hooks
    )

    def structure_class(value: Any, wanted: Any) -> Any:
        if not isinstance(value, Mapping):
            raise TypeError(f"{value!r} is not a table of options")
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
