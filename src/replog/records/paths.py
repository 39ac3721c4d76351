"""The metastore's keys: where ledgers, logs, the next ledger id and the advice of repairs are (M2).

Ledgers with ids of up to 10 digits have the key `ledgers/NN/NNNN/NNNN`, those with longer ones
`long-ledgers/NNN/NNNN/NNNN/NNNN/NNNN`. So no key has more than 10 000 children, and no two ids share a key. A log has the key
`logs/NAME`, with its name percent-encoded, and below it `logs/NAME/pages/NUMBER`,
`logs/NAME/pending/LEDGER-ID`, `logs/NAME/jobs/JOB/LEDGER-ID`, `logs/NAME/cursors/CURSOR-ID` and `logs/NAME/producers`. The index
chunks of a ledger (M4) are below `ledger-chunks/LEDGER-ID`, and not below the ledger's own key, which is deleted with it.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from replog.errors import ConfigError, MetastoreCorruptError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


LEDGER_ID_MAX = (1 << 63) - 1
LEDGERS_KEY = "ledgers"
LONG_LEDGERS_KEY = "long-ledgers"
LEDGERS_VALUE = b'{"format": 1}\n'  # of LEDGERS_KEY: without it, nothing is known of any ledger (B6a)
LOGS_KEY = "logs"
CHUNKS_KEY = "ledger-chunks"
ARCHIVES_KEY = "archives"
# As a fragment names it: the archive's id, and the copy's name there.
ARCHIVE_PLACE = re.compile(r"[0-9a-z]{1,40}/[0-9a-z]{1,40}")
NEXT_LEDGER_ID_KEY = "next-ledger-id"  # a decimal number above every ledger id that was given out; it only grows
# Simultaneous repairs harm nothing, so the keys below these are advice (M3, F6).
REPAIRERS_KEY = "repairs/workers"  # above the announcements of the services that repair, by their ids
PAUSED_KEY = (
    "repairs/paused"  # while this key exists, repairs copy nothing: it is created and deleted, and never changed
)
PAUSED_VALUE = b'{"format": 1}\n'
LOG_NAME_CHARACTERS_MAX = 200
LOG_WORD_BYTES_MAX = 400  # of the encoded name, so that every metastore can take the key

_PAGES_WORD = "pages"
_PENDING_WORD = "pending"
_JOBS_WORD = "jobs"
_CURSORS_WORD = "cursors"
_PRODUCERS_WORD = "producers"
_LEADERS_KEY = "leaders"
_BACKUPS_KEY = "backups"
_CURSOR_ELECTIONS_KEY = "cursor-elections"
PART_PREFIX = "part-"  # of a word below a job's key
BEGUN_WRITER = -1  # the part that a job registers first, and a sweep forgets first
BEGUN_WORD = f"{PART_PREFIX}{BEGUN_WRITER}-0"
_JOB_WORD_DIGITS = 32

# -- ledgers ------------------------------------------------------------------------------------------------------

# How many digits each word of a ledger's key has; the keys in ascending order of their ids.
LEDGER_KEY_SHAPES = {LEDGERS_KEY: (2, 4, 4), LONG_LEDGERS_KEY: (3, 4, 4, 4, 4)}
LEAF_DIGITS = 4  # of the last word, in all shapes
LEAF_LEDGERS = 10**LEAF_DIGITS  # at most, right below one key
LONG_LEDGER_ID_MIN = 10 ** sum(LEDGER_KEY_SHAPES[LEDGERS_KEY])


def ledger_key_path(ledger_id: int) -> str:
    """The key of a ledger. Raises `ConfigError` for an invalid id."""
    if type(ledger_id) is not int or not 0 <= ledger_id <= LEDGER_ID_MAX:
        raise ConfigError(f"invalid ledger id {ledger_id!r}: it must be a whole number from 0 to {LEDGER_ID_MAX}")
    prefix = LEDGERS_KEY if ledger_id < LONG_LEDGER_ID_MIN else LONG_LEDGERS_KEY
    shape = LEDGER_KEY_SHAPES[prefix]
    digits = str(ledger_id).zfill(sum(shape))
    starts = [sum(shape[:place]) for place in range(len(shape))]
    return "/".join([prefix, *(digits[start : start + width] for start, width in zip(starts, shape, strict=True))])


def ledgers_by_leaf(ledger_ids: Iterable[int]) -> Iterator[tuple[str, list[int]]]:
    """Groups ids, given in ascending order, by the key right above theirs: pairs of that key and its ids."""
    for _, together in itertools.groupby(ledger_ids, lambda ledger_id: ledger_id // LEAF_LEDGERS):
        found = list(together)
        yield ledger_key_path(found[0]).rpartition("/")[0], found


def ledger_word(ledger_id: int) -> str:
    """The last word of a ledger's key."""
    return f"{ledger_id % LEAF_LEDGERS:0{LEAF_DIGITS}}"


def parse_ledger_key(key: str) -> int:
    """The id of the ledger with this key. Raises `MetastoreCorruptError` if it is not a ledger's key."""
    digits = "".join(key.split("/")[1:])
    ledger_id = int(digits) if re.fullmatch(r"\d{1,19}", digits, re.ASCII) else -1
    # Built again and compared: digits alone would accept `ledgers/1/2/3`, and two keys would have one id.
    if 0 <= ledger_id <= LEDGER_ID_MAX and ledger_key_path(ledger_id) == key:
        return ledger_id
    raise MetastoreCorruptError(f"key {key!r} is among the ledgers, but is not a ledger's: move it away")


def chunk_key_path(ledger_id: int, name: str | None = None) -> str:
    """The key of an index chunk of a ledger; without a name, the key above all of them."""
    key = f"{CHUNKS_KEY}/{ledger_id}"
    return key if name is None else f"{key}/{name}"


def archive_key_path(archive_id: str) -> str:
    """The key of an archive's record."""
    return f"{ARCHIVES_KEY}/{archive_id}"


def decode_next_ledger_id(value: bytes) -> int:
    """The value of `NEXT_LEDGER_ID_KEY`. Raises `MetastoreCorruptError`."""
    if not value.isdigit():
        raise MetastoreCorruptError(
            f"key {NEXT_LEDGER_ID_KEY!r}: {value[:60]!r} is not a ledger id. Nothing was changed; write a number "
            "above the id of every ledger there"
        )
    return int(value)


# -- logs ---------------------------------------------------------------------------------------------------------


def log_key_path(name: str) -> str:
    """The key of a log. Raises `ConfigError` if a log cannot have this name."""
    return f"{LOGS_KEY}/{_word(name, 'a log')}"


def parse_log_key(key: str) -> str:
    """The name of the log with this key. Raises `MetastoreCorruptError` if it is not a log's key."""
    prefix, _, word = key.partition("/")
    name = unquote(word)
    # Encoded again and compared, for the same reason: `%41` and `A` are one name, and only one of them is its key.
    if prefix == LOGS_KEY and _name_problem(name) is None and log_word(name) == word:
        return name
    raise MetastoreCorruptError(f"key {key!r} is among the logs, but is not a log's: move it away")


def log_pages_key_path(name: str) -> str:
    """The key above those of a log's pages. Raises `ConfigError`."""
    return f"{log_key_path(name)}/{_PAGES_WORD}"


def log_page_key_path(name: str, page_number: int) -> str:
    """The key of a page of a log. Raises `ConfigError`."""
    return f"{log_pages_key_path(name)}/{page_number}"


def parse_log_page_key(key: str) -> tuple[str, int]:
    """The log's name and the number of the page with this key. Raises `MetastoreCorruptError` if it is not a page's key."""
    log_key, _, word = key.rpartition(f"/{_PAGES_WORD}/")
    # Without leading zeros: a page has one key.
    if re.fullmatch(r"0|[1-9]\d{0,18}", word, re.ASCII):
        return parse_log_key(log_key), int(word)
    raise MetastoreCorruptError(f"key {key!r} is among a log's pages, but is not a page's: move it away")


def log_pending_key_path(name: str, ledger_id: int | None = None) -> str:
    """The key of a ledger that is pending for a log; without an id, the key above all of them. Raises `ConfigError`."""
    key = f"{log_key_path(name)}/{_PENDING_WORD}"
    return key if ledger_id is None else f"{key}/{ledger_id}"


def log_leaders_key_path(name: str) -> str:
    """The key below which the writers of a log announce themselves. Raises `ConfigError`."""
    # Not below the log's own key: announcements are not part of the log.
    return f"{_LEADERS_KEY}/{_word(name, 'a log')}"


def log_backups_key_path(name: str) -> str:
    """The key below which back-ups announce that a machine should not trim its log for now. Raises `ConfigError`."""
    return f"{_BACKUPS_KEY}/{_word(name, 'a log')}"


def log_jobs_key_path(name: str) -> str:
    """The key above those of all jobs that have ledgers for a log. Raises `ConfigError`."""
    return f"{log_key_path(name)}/{_JOBS_WORD}"


def job_key_path(name: str, job: str) -> str:
    """The key above those of the ledgers of one job for a log. Raises `ConfigError`."""
    # A job's name may be longer than a key.
    word = hashlib.sha256(job.encode(errors="surrogatepass")).hexdigest()[:_JOB_WORD_DIGITS]
    return f"{log_jobs_key_path(name)}/{word}"


def job_part_key_path(name: str, job: str, writer: int, partition: int) -> str:
    """The key of one part of a job: of one partition of one of its writers. Raises `ConfigError`."""
    return f"{job_key_path(name, job)}/{PART_PREFIX}{writer}-{partition}"


def job_begun_key_path(name: str, job: str) -> str:
    """The key that a job has from its beginning until a sweep gives it up. Raises `ConfigError`."""
    return f"{job_key_path(name, job)}/{BEGUN_WORD}"


def log_cursor_key_path(name: str, cursor_id: str | None = None) -> str:
    """The key of a cursor's record; without an id, the key above all cursors of a log. Raises `ConfigError`."""
    key = f"{log_key_path(name)}/{_CURSORS_WORD}"
    return key if cursor_id is None else f"{key}/{cursor_id}"


def log_producers_key_path(name: str) -> str:
    """The key of a log's record of its producers (L11). Raises `ConfigError`."""
    return f"{log_key_path(name)}/{_PRODUCERS_WORD}"


def cursor_election_key_path(name: str, cursor: str) -> str:
    """The key where the clients that want a cursor wait for their turn. Raises `ConfigError` for an invalid name of either."""
    # Not below the cursor's own key: a metastore uses the keys below an election's key itself.
    return f"{_CURSOR_ELECTIONS_KEY}/{_word(name, 'a log')}/{_word(cursor, 'a cursor')}"


def _word(name: str, of_what: str) -> str:
    problem = _name_problem(name)
    if problem is None:
        return log_word(name)
    shown = name[:60] if isinstance(name, str) else name
    raise ConfigError(f"{shown!r} cannot be the name of {of_what}: {problem}")


def _name_problem(name: object) -> str | None:
    if not isinstance(name, str):
        return "it is not a text"
    if not name:
        return "it is empty"
    if not name.isprintable():
        return "it has characters that cannot be printed"
    if len(name) > LOG_NAME_CHARACTERS_MAX:
        return f"it has {len(name)} characters, and {LOG_NAME_CHARACTERS_MAX} are allowed"
    size_bytes = len(log_word(name))
    if size_bytes > LOG_WORD_BYTES_MAX:
        return f"it has {size_bytes} bytes when percent-encoded, and {LOG_WORD_BYTES_MAX} are allowed"
    return None


def log_word(name: str) -> str:
    """One word of ASCII, always the same for a name; for any other text, too, so that words behind it can be listed. A name of
    dots only is encoded, too: in paths, dots mean directories."""
    word = quote(name, safe="", errors="replace")
    return word if word.strip(".") else word.replace(".", "%2E")
