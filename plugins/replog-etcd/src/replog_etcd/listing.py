"""Which words stand right below a key. etcd knows no directories: its keys are one sorted list.

So the list is read in pages, and after each page what is below its last word is skipped. Where words have much below them a
page is short, and each request finds about one word; where they have nothing below them a page is long. A leaf with 10 000
keys takes some fifteen requests, and so does a key with ten words that have 10 000 keys each.
"""

from __future__ import annotations

import attrs

from replog_etcd.errors import EtcdAnswerTooLargeError
from replog_etcd.gateway import Gateway
from replog_etcd.records import Layout, Record, revision_of

_PAGE_KEYS_MIN = 8
_PAGE_KEYS_MAX = 1000
_GROWTH = 4
_REQUEST_COSTS_KEYS = 64  # a request takes about as long as reading so many keys


@attrs.frozen
class Listing:
    """The words, each with its own record if it has one. All that was changed up to `revision` is seen."""

    words: dict[str, Record | None]
    revision: int


async def list_below(
    gateway: Gateway,
    layout: Layout,
    key: str,
    *,
    with_values: bool = False,
    first: str = "",
    values_max: int | None = None,
) -> Listing:
    """The keys right below the key, from the word `first` on; not many after so many of them were found to be keys. Some of the
    changes that happen meanwhile may be seen. Raises `MetastoreError`."""
    words: dict[str, Record | None] = {}
    revision = 0
    start, limit = f"/{first}", _PAGE_KEYS_MIN
    end = layout.encode(key, "0")  # which follows "/"
    while True:
        message = {"key": layout.encode(key, start), "range_end": end, "limit": limit, "keys_only": not with_values}
        try:
            answer = await gateway.call("/v3/kv/range", message, what=f"what is below {key!r}")
        except EtcdAnswerTooLargeError:
            # The answer's size is known only when it is too large: values have up to a megabyte.
            limit = max(1, limit // _GROWTH)  # one alone fits
            continue
        revision = revision or revision_of(answer)
        found = [layout.record(each) for each in answer.get("kvs", ())]
        known = len(words)
        suffix = ""
        for record in found:
            suffix = record.key[len(key) + 1 :]
            word, _, below = suffix.partition("/")
            words[word] = words.get(word) if below else record
        is_enough = values_max is not None and sum(each is not None for each in words.values()) >= values_max
        if is_enough or not answer.get("more") or not found:
            return Listing(dict(sorted(words.items())), revision)
        word, _, below = suffix.partition("/")
        # Behind all keys below the last word, which begin with the word and a slash: "0" follows "/".
        start = f"/{word}0" if below else f"/{word}\0"
        # Few words in a long page: most of it lay below them, and was read in vain.
        is_dense = (len(words) - known) * _REQUEST_COSTS_KEYS >= len(found)
        limit = min(limit * _GROWTH, _PAGE_KEYS_MAX) if is_dense else max(limit // _GROWTH, _PAGE_KEYS_MIN)
