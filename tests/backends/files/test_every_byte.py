"""B3, B8, R4: whatever becomes of a byte, or of a file: it is reported by its name, or repaired; what was acknowledged is
never wrong, and never absent unless the storage is in doubt.

A small storage, cleanly closed, has an adopted journal file and an entry log with their indexes, a current journal file,
a catalog and the format files. Then one byte is flipped, or a file is cut, lost, or exchanged. A sample in `make test`,
every byte in `make crash`."""

import random
from collections import Counter

import pytest

from replog.backends.files.record import PAGE_BYTES
from replog.testing.disk import SECTOR_BYTES, MemoryDisk
from tests.backends.files.small_storage import SmallStorage, index_is_whole, make_small_storage
from tests.backends.files.small_storage import small_files as small_files

SAMPLE = 811  # one byte of so many, in `make test`
BOTH = pytest.mark.parametrize("elsewhere", [False, True], ids=["inside", "elsewhere"])
ELSEWHERE_IS_LONG = pytest.mark.parametrize(
    "elsewhere", [False, pytest.param(True, marks=pytest.mark.long(is_sampled=False))], ids=["inside", "elsewhere"]
)
ANY = ("/st/", "/jn")
MARK, DOUBT = "/st/durable-mark", "/st/doubt"
HEADER_BYTES = 60  # the rest of a header page is zeros, and ignored


def culprits(path: str) -> list[str]:
    """Whom an error may name. Of two files that say different things of whose they are, either may be the wrong one."""
    if path.endswith(".json"):
        return [path, "/st/catalog", "/jn is the journal of"]
    if path.endswith(".index"):
        return [path, path.removesuffix("index")]
    return [path]


def places(path: str, content: bytes) -> list[int]:
    """The bytes of a file that are worth looking at: not those of long stretches of zeros."""
    end = min(len(content), len(content.rstrip(b"\0")) + 40)
    if path.endswith((".journal", ".log")):
        return [*range(HEADER_BYTES), *range(PAGE_BYTES, end)]
    return list(range(end))


def sampled(whole: list[int]) -> list[int]:
    return whole[:HEADER_BYTES:9] + whole[HEADER_BYTES::SAMPLE]


def is_ignored(made: SmallStorage, path: str, offset: int) -> bool:
    """Documented: behind the headers, behind the records, and the space that is kept for the catalog."""
    if path.endswith(".index"):
        return 68 <= offset < 72
    if path.endswith((".journal", ".log")):
        is_prepared = path not in made.ends  # and never used
        return 52 <= offset < PAGE_BYTES or (offset >= PAGE_BYTES if is_prepared else offset >= made.ends[path])
    return path == "/st/reserve"


@pytest.mark.sized
@pytest.mark.crash
@ELSEWHERE_IS_LONG
def test_every_flipped_byte(elsewhere: bool, is_long: bool) -> None:
    made = make_small_storage(elsewhere=elsewhere)
    outcomes: dict[str, set[str]] = {}
    for path, content in made.files().items():
        some = places(path, content) if is_long else sampled(places(path, content))
        for offset in some:
            disk = made.disk.after_kill()
            disk.content(path)[offset] ^= 1 << (offset * 7 + len(path)) % 8
            outcome = made.examine(disk, culprits(path))
            outcomes.setdefault(path, set()).add(outcome)
            if is_ignored(made, path, offset):
                assert outcome == "right", f"{path} {offset}"
            elif path.endswith(".index"):
                assert_index_is_gone_or_whole(disk, path)
    assert outcomes["/st/catalog"] == {"refused"}
    assert outcomes["/st/storage.json"] == {"refused"}
    journals = [outcomes[path] for path in sorted(outcomes) if path.endswith(".journal")]
    assert journals[-2] == {"right", "doubted"}, "the current one"
    assert journals[0] == ({"right", "doubted"} if elsewhere else {"right", "uncertain"}), "a full one"
    assert outcomes[DOUBT] == {"doubted"}
    assert outcomes[MARK] == {"right"}, "the other slot counts"
    assert all("uncertain" in outcome for path, outcome in outcomes.items() if path.endswith(".log"))
    assert all("right" in outcome for path, outcome in outcomes.items() if path.endswith(".index"))
    if elsewhere:
        assert outcomes["/jn/journal.json"] == {"refused"}


def assert_index_is_gone_or_whole(disk: MemoryDisk, path: str) -> None:
    """Compaction may have removed it with its log file; before that `examine` has seen it whole."""
    assert path not in disk.paths() or index_is_whole(bytes(disk.content(path)), number_of(path))


def number_of(path: str) -> int:
    return int(path.rpartition("/")[2].partition(".")[0])


@pytest.mark.sized
@pytest.mark.crash
@ELSEWHERE_IS_LONG
def test_every_truncation(elsewhere: bool, is_long: bool) -> None:
    made = make_small_storage(elsewhere=elsewhere)
    for path, content in made.files().items():
        some = places(path, content) if is_long else sampled(places(path, content))
        for length in some:
            disk = made.disk.after_kill()
            del disk.content(path)[length:]
            outcome = made.examine(disk, culprits(path))
            if path in (MARK, DOUBT):
                assert outcome == ("right" if path == MARK and length >= 64 else "doubted"), length
            elif path.endswith(("catalog", ".json")):
                assert outcome == "refused" or content[length:].isspace()
            elif path.endswith(".index"):
                assert_index_is_gone_or_whole(disk, path)
            elif path == made.current and length < made.ends[path]:
                assert outcome == "doubted", "the mark knows the last group"


@BOTH
def test_each_missing_file(elsewhere: bool) -> None:
    made = make_small_storage(elsewhere=elsewhere)
    for path in made.files():
        disk = made.disk.after_kill()
        disk.unlink(path)
        named = [path, "/st/storage.json", "/jn is the journal of nobody"]
        if path.endswith(".journal"):
            named += [f"journal file {number_of(path)} is missing", *(end for end in made.ends if end < path)]
        is_never_used = path.endswith(".journal") and path not in made.ends
        can_be_made = is_never_used or path == "/st/reserve" or path.endswith(".index")
        expected = "refused" if path.endswith((".json", "catalog")) else "doubted"
        assert made.examine(disk, named) == ("right" if can_be_made else expected), path


def test_missing_index_is_written_again() -> None:
    made = make_small_storage(elsewhere=False)
    for path in made.files():
        if path.endswith(".index"):
            disk = made.disk.after_kill()
            disk.unlink(path)
            made.open(disk).close()
            assert index_is_whole(bytes(disk.content(path)), number_of(path))


LOG_FILES = (".journal", ".log", ".index")


def spoil(disk: MemoryDisk, paths: list[str], chance: random.Random) -> None:
    """Something happens to one of these files: a bit, a sector, its end, or what it is."""
    path, other = chance.sample(paths, 2)
    content = disk.content(path)
    start = chance.randrange(max(1, len(content))) // SECTOR_BYTES * SECTOR_BYTES
    stop = min(start + SECTOR_BYTES, len(content))
    match chance.choice(("bit", "bit", "zeros", "end", "stale", "swapped", "doubled")):
        case "bit" if content:
            content[chance.randrange(start, stop)] ^= 1 << chance.randrange(8)
        case "zeros":
            content[start:stop] = bytes(stop - start)
        case "end":
            del content[start + chance.randrange(SECTOR_BYTES) :]
        case "stale":  # a sector was written to the wrong place
            content[start:stop] = bytes(disk.content(other)[: stop - start]).ljust(stop - start, b"\0")
        case "swapped":
            swap(disk, path, other)
        case "doubled":
            content[:] = bytes(disk.content(other))


@pytest.mark.sized
@pytest.mark.crash
@ELSEWHERE_IS_LONG
def test_several_things_at_once(elsewhere: bool, is_long: bool) -> None:
    made = make_small_storage(elsewhere=elsewhere)
    paths = [path for path in made.files() if path.endswith(LOG_FILES) or path in (MARK, DOUBT)]
    outcomes: Counter[str] = Counter()
    for seed in range(6000 if is_long else 40):
        chance = random.Random(seed)
        disk = made.disk.after_kill()
        for _ in range(chance.choice((1, 2, 2, 3, 6))):
            spoil(disk, paths, chance)
        outcomes[made.examine(disk, ANY)] += 1
    assert set(outcomes) == {"doubted", "right", "uncertain"}


def swap(disk: MemoryDisk, one: str, other: str) -> None:
    first, second = disk.content(one), disk.content(other)
    first[:], second[:] = bytes(second), bytes(first)


def test_swapped_files() -> None:
    made = make_small_storage(elsewhere=False)
    files = [path for path in made.files() if path.endswith((".index", ".journal", ".log"))]
    outcomes = {}
    for one in files:
        for other in files:
            if one < other:
                disk = made.disk.after_kill()
                swap(disk, one, other)
                outcomes[one, other] = made.examine(disk, [*culprits(one), *culprits(other)])
                for path in (one, other):
                    if path.endswith(".index") and outcomes[one, other] == "right":
                        assert_index_is_gone_or_whole(disk, path)
    indexes = [outcome for pair, outcome in outcomes.items() if all(path.endswith(".index") for path in pair)]
    assert indexes == ["right"] * 3, "each is made anew"
    assert "uncertain" in outcomes.values()


def test_the_files_of_another_bookie() -> None:
    """The same numbers, the same sizes, the same batches, another identity."""
    made, stranger = (make_small_storage(elsewhere=False, seed=seed) for seed in (7, 8))
    theirs = stranger.files()
    assert theirs.keys() == made.files().keys()
    for path in made.files():
        disk = made.disk.after_kill()
        disk.content(path)[:] = theirs[path]
        outcome = made.examine(disk, culprits(path))
        if path in (MARK, DOUBT):
            assert outcome == "doubted"
        elif path.endswith(("storage.json", "catalog")) or (path.endswith(".journal") and path >= made.current):
            assert outcome == "refused"
        else:
            assert outcome == "right", "the index is made anew; the batches are the same"
