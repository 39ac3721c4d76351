"""The conformance suites of metastores.

A metastore that passes `check_metastore` can hold the metadata of logs. One that also passes `check_metastore_leases` notices
soon when clients die, and one that passes `check_metastore_outage` lets programs wait until it is back.
"""

from __future__ import annotations

import secrets

from replog.testing.metastore_conformance import changes, listing, presence, races, waits
from replog.testing.metastore_conformance.bench import Bench, OpenMetastore, no_other_error, until_listed
from replog.testing.metastore_conformance.outage import check_metastore_outage as check_metastore_outage
from replog.testing.metastore_conformance.processes import check_metastore_leases as check_metastore_leases
from replog.testing.promises import plain_assertions, soon

_CHECKS = changes.CHECKS + races.CHECKS + listing.CHECKS + waits.CHECKS + presence.CHECKS


async def check_metastore(open_metastore: OpenMetastore) -> None:
    """Check a metastore; raise `AssertionError` with the first promise of `replog.abc.Metastore` that it breaks.

    `open_metastore()` is a context manager that yields a new client of always the same store, and closes it. The suite
    uses keys below "conformance/" and a random word, and leaves none behind when it passes. It needs no pytest, and takes
    some seconds with a store that polls. `check_metastore_leases` checks that the death of a client is noticed,
    `check_metastore_outage` the errors while the store is away.
    """
    with plain_assertions():
        async with open_metastore() as one, open_metastore() as other:
            for check in _CHECKS:
                # A key of its own for each check: one that fails leaves keys behind, and must not make others fail.
                bench = Bench(one, other, f"conformance/{secrets.token_hex(8)}", open_metastore)
                subject = check.__name__.removeprefix("check_").replace("_", " ")
                with no_other_error(subject):
                    await check(bench)
                    with soon(f"{subject}: what was deleted, or is no longer announced, is not a child"):
                        await until_listed(bench.one, bench.root, [], await bench.one.children(bench.root))
        async with open_metastore() as one:
            await one.aclose()
            await one.aclose()  # idempotent
