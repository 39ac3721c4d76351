"""Names of a package whose modules are imported at their first use (PEP 562), so that a program loads only what it uses.

A package that uses it also has its names below `if TYPE_CHECKING`, for type checkers, and in `__all__`; `tests/test_importing.py`
checks that the three agree.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module


def on_demand(
    package: str, homes: Mapping[str, Iterable[str]], modules: Iterable[str] = ()
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """The `__getattr__` and the `__dir__` of a package. `homes` maps modules to the names that the package has from each;
    `modules` are modules of the package that are themselves such names. `__getattr__` raises `AttributeError` for others."""
    home_of = {name: home for home, names in homes.items() for name in names}
    variables = vars(sys.modules[package])

    def get(name: str) -> object:
        if name in home_of:
            value = getattr(import_module(home_of[name]), name)
        elif name in modules:
            value = import_module(f"{package}.{name}")
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        variables[name] = value  # found without this function from now on
        return value

    def names() -> list[str]:
        return sorted({*variables, *home_of, *modules})

    return get, names
