"""Which layout a chroot has: a node that says so, for people, too.

Format 1: a JSON object with `format`, and `layout`, "hierarchical" or "flat". Higher formats are refused, and so is
another layout than the requested one: this client would find no keys of others, and others none of its own.
"""

from __future__ import annotations

import json
from typing import Any

from kazoo.exceptions import NoNodeError

from replog.errors import ConfigError, MetastoreCorruptError, MetastoreUncertainError
from replog.metastores.zookeeper import requests
from replog.metastores.zookeeper.calls import Call
from replog.metastores.zookeeper.nodes import create_node, failed, good
from replog.metastores.zookeeper.options import LAYOUTS
from replog.metastores.zookeeper.paths import Paths

FORMAT = 1


async def check_layout(call: Call, paths: Paths, wanted: str) -> None:
    """Compares the chroot's layout with the one that is wanted, and writes it down in a new chroot, which is made.

    Raises `ConfigError` if it is another one, `MetastoreCorruptError` if it can't be told, `MetastoreError`."""
    path = paths.layout_path
    while True:
        _, found = await call.ask(requests.barrier(path), requests.get(path))
        if not failed(found, NoNodeError):
            data, _ = good(call, found)
            layout = _decode(f"{call.session.place}: the node {path}", data)
            if layout != wanted:
                raise ConfigError(
                    f"{call.session.place}: its layout is {layout}, and layout={wanted} was asked for: say layout={layout}, "
                    "or use another chroot. Nothing was changed"
                )
            return
        record = json.dumps({"format": FORMAT, "layout": wanted}).encode() + b"\n"
        try:
            await create_node(call, paths, path, record)
        except MetastoreUncertainError:
            call.forget_doubt()  # it is read again


def _decode(what: str, data: bytes) -> str:
    try:
        fields: dict[str, Any] = json.loads(data)
        version, layout = fields["format"], fields.get("layout")
        known = isinstance(version, int) and version >= 1
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise MetastoreCorruptError(f"{what} is not replog's: {data[:100]!r}. Use another chroot") from error
    if known and version > FORMAT:
        raise MetastoreCorruptError(
            f"{what} has format {version}, and this version of replog reads up to {FORMAT}: a newer replog wrote it; "
            "upgrade this one. Nothing was changed"
        )
    if not known or layout not in LAYOUTS:
        raise MetastoreCorruptError(f"{what} names no layout that is known: {data[:100]!r}. Nothing was changed")
    return str(layout)
