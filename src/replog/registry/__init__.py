"""The plugins and their offers, and opening the object that a URL names.

There is no registry until a program makes one, and importing this package imports no plugin. The built-in plugins register
through the same hooks as any other. A plugin that is wrong is an error that names it, at once: a misspelt, unmarked or
asynchronous hook, a scheme that two plugins claim, a module that cannot be imported. One error lists all of them; with
`is_strict=False` they are left out and listed by `Registry.faults`.
"""

from replog.registry.loading import DISABLED_VARIABLE
from replog.registry.plugin_errors import PluginFault
from replog.registry.registry import PluginInfo, Registry

__all__ = ["DISABLED_VARIABLE", "PluginFault", "PluginInfo", "Registry"]
