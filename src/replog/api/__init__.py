"""`connect`, `embed`, `serve_bookie`: the only place that wires plugins to shells.

Each is imported with what it needs when it is first used: a program that connects never loads bookies, repairs or back-ups.
"""

from typing import TYPE_CHECKING

from replog.runtime.on_demand import on_demand

if TYPE_CHECKING:
    from replog.api.admin import Admin
    from replog.api.bookies import BookieConfig, serve_bookie
    from replog.api.client import Client
    from replog.api.connecting import connect
    from replog.api.cursors import Cursors
    from replog.api.embedding import embed
    from replog.api.jobs import Jobs
    from replog.api.repairs import serve_repairs
else:
    __getattr__, __dir__ = on_demand(
        __name__,
        {
            "replog.api.admin": ["Admin"],
            "replog.api.bookies": ["BookieConfig", "serve_bookie"],
            "replog.api.client": ["Client"],
            "replog.api.connecting": ["connect"],
            "replog.api.cursors": ["Cursors"],
            "replog.api.embedding": ["embed"],
            "replog.api.jobs": ["Jobs"],
            "replog.api.repairs": ["serve_repairs"],
        },
    )

__all__ = ["Admin", "BookieConfig", "Client", "Cursors", "Jobs", "connect", "embed", "serve_bookie", "serve_repairs"]
