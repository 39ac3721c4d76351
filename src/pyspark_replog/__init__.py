"""How Spark finds the format `replog` by itself: it looks for modules of this kind of name, and for `DefaultSource` in them.

One such module that can't be imported would hide all others from the session. So importing this one imports nothing, and
`DefaultSource` is not there unless all that it needs is.
"""

from __future__ import annotations


def __getattr__(name: str) -> object:
    if name == "DefaultSource":
        from replog.errors import ConfigError

        try:
            from replog.spark import ReplogDataSource
        except (ConfigError, ImportError) as error:
            raise AttributeError(f"the format replog can't be used here: {error}") from error
        return ReplogDataSource
    raise AttributeError(name)
