"""Importing an installed plugin, with advice if that fails; and which packages are installed."""

from __future__ import annotations

import re
from importlib.metadata import EntryPoint, PackageNotFoundError, requires
from importlib.metadata import version as version_of

from replog.errors import PluginConflictError
from replog.hookspecs import PROJECT_NAME
from replog.runtime.installed import replog_version


def load(found: EntryPoint) -> object:
    """The plugin of this entry point. Raises a `PluginConflictError` with the fault and, if known, the remedy."""
    try:
        return found.load()
    # A module may call `sys.exit` when it is imported: that must not end a program which only lists its plugins.
    except (Exception, SystemExit) as error:
        raise PluginConflictError(
            f"it cannot be imported from {found.value!r}: {error!r}{_advice(found, error)}"
        ) from error


def _advice(found: EntryPoint, error: BaseException) -> str:
    # Requirements of the plugin's own extras are left out: they do not say which replog it was made for.
    requirements = [each for each in (found.dist.requires or [] if found.dist else []) if "extra ==" not in each]
    asking = f" (it asks for {', '.join(requirements)})" if requirements else ""
    module = (error.name or "") if isinstance(error, ImportError) else ""
    # What is missing is the plugin's own module, or the package above it.
    if isinstance(error, ModuleNotFoundError) and module and f"{found.module}.".startswith(f"{module}."):
        return ". Its installation is incomplete: install it again"
    if module.split(".")[0] == PROJECT_NAME or isinstance(error, TypeError):
        return f". It may be made for another replog than {replog_version()}{asking}"
    if isinstance(error, ModuleNotFoundError) and module:
        return f". Install the package that has the module {module!r}{asking}"
    return ""


def is_installed(extra: str) -> bool:
    """Whether all packages that this extra of replog needs are installed."""
    try:
        for requirement in requires(PROJECT_NAME) or []:
            name, _, marker = requirement.partition(";")
            # Compared as text, since evaluating markers needs the package `packaging`, which replog does not depend on.
            if marker.replace(" ", "").replace('"', "'") == f"extra=='{extra}'":
                version_of(re.split(r"[^\w.-]", name.strip())[0])
    except PackageNotFoundError:
        return False
    return True
