"""Configuration: URLs, texts that become options, files and environments, and every fault at once."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import pkgutil
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

import replog
from replog import config
from replog.backends.files import FilesOptions
from replog.config import BackendURL, BookieOptions, ClientOptions, load, structure
from replog.config.client import tuned
from replog.errors import ConfigError
from replog.metastores.lmdb import LMDBOptions
from tests.cases import case

# -- URLs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("lmdb:./wal", BackendURL("lmdb", "./wal")),
        ("lmdb:/abs/wal?map_bytes_max=64MiB", BackendURL("lmdb", "/abs/wal", {"map_bytes_max": "64MiB"})),
        ("lmdb:///abs/wal", BackendURL("lmdb", "/abs/wal")),
        ("zookeeper://zk1:2181,zk2/prod", BackendURL("zookeeper", "zk1:2181,zk2/prod")),
        ("memory:", BackendURL("memory")),
        ("memory", BackendURL("memory")),
        ("files?segment=1&empty=", BackendURL("files", "", {"segment": "1", "empty": ""})),
        ("a+b.c-2:x", BackendURL("a+b.c-2", "x")),
        ("lmdb:a%20b%3Fc%25?name=%26%3D+x", BackendURL("lmdb", "a b?c%", {"name": "&= x"})),
    ],
)
def test_a_url_is_scheme_rest_and_options(text: str, url: BackendURL) -> None:
    assert BackendURL.parse(text) == url


@pytest.mark.parametrize("text", ["", ":x", "./wal", "/abs/wal", "LMDB:x", "1x:y", "lm db:x"])
def test_invalid_url_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"invalid URL of a backend.*: expected scheme:rest\?option=value"):
        BackendURL.parse(text)


def test_unreadable_options_are_refused() -> None:
    with pytest.raises(ConfigError, match="its options must be"):
        BackendURL.parse("lmdb:x?flag")
    with pytest.raises(ConfigError, match="given twice"):
        BackendURL.parse("lmdb:x?a=1&a=2")


@given(st.text(max_size=20), st.dictionaries(st.text("abc_", min_size=1), st.text(max_size=10), max_size=3))
def test_printed_form_reads_back(rest: str, options: dict[str, str]) -> None:
    url = BackendURL("lmdb", "x" + rest.replace("@", ""), options)
    assert BackendURL.parse(str(url)) == url


def test_secrets_are_not_printed() -> None:
    url = BackendURL.parse("zookeeper://user:hunter2@zk1:2181/prod?tls_password=hunter2&auth_token=hunter2&timeout_s=1")
    assert "hunter2" not in str(url)
    assert str(url) == "zookeeper:user:***@zk1:2181/prod?tls_password=***&auth_token=***&timeout_s=1"


def test_secrets_within_values_are_hidden() -> None:
    url = BackendURL.parse("objects:s3://bucket?endpoint=http://user:hunter2@host:90/&region=a")
    assert str(url) == "objects:s3://bucket?endpoint=http://user:***@host:90/&region=a"
    assert BackendURL.parse(str(url)).options["region"] == "a"


@pytest.mark.parametrize(
    "text",
    [
        "9x:?password=hunter2&x=y",
        "a:b?password=hunter2&x",
        "a:b?x&secret_key=hunter2",
        "a:b?access_token=hunter2&access_token=hunter3",
        "a:user:hunter2@host?x",
        "a:b?endpoint=http://user:hunter2@host&x",
        "a:b?password=one&hunter2",
    ],
)
def test_refused_url_hides_its_secrets(text: str) -> None:
    with pytest.raises(ConfigError) as raised:
        BackendURL.parse(text)
    assert "hunter" not in str(raised.value)
    assert raised.value.__cause__ is None


# -- texts that become options ------------------------------------------------------------------------------------


@attrs.frozen
class Inner:
    """Options within options."""

    count: int = attrs.field(default=1, validator=attrs.validators.ge(1))


@attrs.frozen
class Everything:
    """One option of each type."""

    name: str
    number: int = 0
    ratio: float = 0.0
    flag: bool = False
    maybe: int | None = None
    names: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()
    where: Path = Path()
    inner: Inner = Inner()


def from_texts(**values: Any) -> Everything:
    return structure(Everything, {"name": "n", **values}, what="it")


@pytest.mark.parametrize(
    ("option", "value", "found"),
    [
        ("number", "12", 12),
        ("number", " 64 MiB ", 64 << 20),
        ("number", "64mb", 64_000_000),
        ("number", "2KiB", 2048),
        ("number", "3G", None),
        ("number", "1_000", 1000),
        ("number", "-5", -5),
        ("number", 7, 7),
        ("number", "1.5", None),
        ("number", 1.5, None),
        ("number", True, None),
        ("number", "", None),
        ("ratio", "0.25", 0.25),
        ("ratio", 1, 1.0),
        ("ratio", "five", None),
        ("ratio", False, None),
        ("flag", "yes", True),
        ("flag", "OFF", False),
        ("flag", "1", True),
        ("flag", True, True),
        ("flag", 1, None),
        ("flag", "ja", None),
        ("name", "x", "x"),
        ("name", 5, None),
        ("names", "a, b,c", ("a", "b", "c")),
        ("names", "", ()),
        ("names", ["a", "b"], ("a", "b")),
        ("names", {"a": 1}, None),
        ("sizes", "1KiB,2", (1024, 2)),
        ("sizes", "1,x", None),
        ("where", "/a/b", Path("/a/b")),
        ("inner", {"count": "3"}, Inner(3)),
        ("inner", "three", None),
    ],
)
def test_text_becomes_the_type_of_the_option(option: str, value: object, found: object) -> None:
    if found is None:
        with pytest.raises(ConfigError, match=f"^it: {option}"):
            from_texts(**{option: value})
    else:
        got = getattr(from_texts(**{option: value}), option)
        assert got == found
        assert type(got) is type(found) or isinstance(got, Path)


@pytest.mark.parametrize(("value", "found"), [("none", None), ("None", None), (None, None), ("5", 5), (5, 5)])
def test_nothing_can_be_said(value: object, found: int | None) -> None:
    assert from_texts(maybe=value).maybe == found


def test_all_faults_are_reported_with_their_paths_and_reasons() -> None:
    with pytest.raises(ConfigError) as raised:
        structure(
            Everything, {"number": "x", "flag": "y", "inner": {"count": 0, "cuont": 1}, "nmae": "z"}, what="the file"
        )
    assert str(raised.value).splitlines() == [
        "the file: 6 faults",
        "  - name: it must be given",
        "  - number: 'x' is neither a whole number nor a size like 64MiB",
        "  - flag: 'y' is neither true nor false",
        "  - inner.count: 'count' must be >= 1: 0",
        "  - inner: no such option: cuont (there are: count)",
        "  - no such option: nmae (there are: name, number, ratio, flag, maybe, names, sizes, where, inner)",
    ]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from([field.name for field in attrs.fields(Everything)] + ["other"]), JSON))
def test_no_file_content_raises_another_error(values: dict[str, Any]) -> None:
    with contextlib.suppress(ConfigError):
        structure(Everything, values, what="it")


@given(st.dictionaries(st.sampled_from([field.name for field in attrs.fields(ClientOptions)]), JSON))
def test_accepted_options_hold_their_checks(values: dict[str, Any]) -> None:
    try:
        options = structure(ClientOptions, values, what="it")
    except ConfigError:
        return
    assert options == ClientOptions(**attrs.asdict(options))


# -- files, environments, arguments -------------------------------------------------------------------------------


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    path = tmp_path / "replog.toml"
    path.write_text(
        '[client]\nadd_timeout_s = 2.5\nroll_bytes = "1MiB"\nroll_age_s = 10\n[bookie]\nrepair_away_after_s = 3\n'
    )
    return path


def test_arguments_win_over_environment_file_and_defaults(toml: Path) -> None:
    environment = {
        "REPLOG_CLIENT_ROLL_BYTES": "2MiB",
        "REPLOG_CLIENT_ROLL_AGE_S": "20",
        "PATH": "/bin",
        "REPLOG_X": "1",
    }
    options = load(
        ClientOptions,
        toml_path=toml,
        table="client",
        environment=environment,
        prefix="REPLOG_CLIENT_",
        overrides={"roll_age_s": 30},
    )
    assert options == ClientOptions(add_timeout_s=2.5, roll_bytes=2 << 20, roll_age_s=30.0)
    assert load(BookieOptions, toml_path=toml, table="bookie") == BookieOptions(repair_away_after_s=3.0)
    assert load(BookieOptions, toml_path=toml, table="nowhere") == BookieOptions()
    assert load(ClientOptions) == ClientOptions()


def test_every_fault_names_where_it_came_from(toml: Path) -> None:
    toml.write_text("add_timeout_s = -1\nread_timeout = 3\n")
    with pytest.raises(ConfigError) as raised:
        load(
            ClientOptions,
            toml_path=toml,
            environment={"REPLOG_CLIENT_ROLL_AGE_S": "soon"},
            prefix="REPLOG_CLIENT_",
            overrides={"in_flight_bytes_max": 0},
        )
    lines = str(raised.value).splitlines()
    assert lines[0] == "ClientOptions: 4 faults"
    assert "  - in_flight_bytes_max (from an argument): 0 is not above 0 and finite" in lines
    assert f"  - add_timeout_s (from {toml}): -1.0 is not above 0 and finite" in lines
    assert "  - roll_age_s (from REPLOG_CLIENT_ROLL_AGE_S): 'soon' is not a number" in lines
    assert lines[4].startswith("  - no such option: read_timeout (there are: in_flight_bytes_max, ")


def test_unusable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.toml: cannot be read: No such file"):
        load(ClientOptions, toml_path=tmp_path / "missing.toml")
    (tmp_path / "bad.toml").write_text("a = = 1")
    with pytest.raises(ConfigError, match=r"bad\.toml: is not valid TOML: .*line 1"):
        load(ClientOptions, toml_path=tmp_path / "bad.toml")
    (tmp_path / "latin.toml").write_bytes(b"a = '\xe9'")
    with pytest.raises(ConfigError, match=r"latin\.toml: is not valid TOML"):
        load(ClientOptions, toml_path=tmp_path / "latin.toml")
    (tmp_path / "flat.toml").write_text("client = 5")
    with pytest.raises(ConfigError, match="client must be a table"):
        load(ClientOptions, toml_path=tmp_path / "flat.toml", table="client")


def test_an_environment_needs_a_prefix() -> None:
    with pytest.raises(ConfigError, match="needs a prefix"):
        load(ClientOptions, environment={"A": "1"})


# -- the options there are ----------------------------------------------------------------------------------------

CLASSES = [ClientOptions, BookieOptions]
FIELDS: list[tuple[type, Any]] = [(each, field) for each in CLASSES for field in attrs.fields(each)]


def shown(default: object) -> str:
    """A default as people write it."""
    if isinstance(default, int) and not isinstance(default, bool) and default >= 1 << 20:
        assert default % (1 << 20) == 0
        return f"{default >> 20} MiB"
    return "none" if default in (None, ()) else str(default).lower()


def test_the_page_tells_the_default_and_the_meaning_of_an_option() -> None:
    page = (Path(__file__).parent.parent / "docs" / "reference" / "configuration.md").read_text(encoding="utf-8")
    for options, field in FIELDS:
        with case(options.__name__, field.name):
            _, section = page.split(f"\n## `{options.__name__}`")
            rows = section.split("\n## ")[0].splitlines()
            assert f"| `{field.name}` | {shown(field.default)} | {field.metadata['doc']} |" in rows


@pytest.mark.parametrize(("options", "url"), [(LMDBOptions, "lmdb:PATH"), (FilesOptions, "files:PATH")])
def test_the_page_tells_the_options_of_the_backends(options: type, url: str) -> None:
    page = (Path(__file__).parent.parent / "docs" / "reference" / "configuration.md").read_text(encoding="utf-8")
    rows = page.split(f"\n## Options of `{url}`")[1].split("\n## ")[0]
    told = {row.split("|")[1].strip(): row.split("|")[2].strip() for row in rows.splitlines() if row.startswith("| `")}
    assert told == {f"`{field.name}`": shown(field.default) for field in attrs.fields(options)}


def test_each_option_has_a_valid_default_and_a_description() -> None:
    for options, field in FIELDS:
        with case(options.__name__, field.name):
            config.check_field(field, field.default)
            assert field.metadata["doc"].endswith(".")
            assert getattr(options(), field.name) == field.default


CHECKED = [(options, field) for options, field in FIELDS if field.metadata["check"] is not None]


def test_senseless_numbers_are_refused_from_every_source() -> None:
    for options, field in CHECKED:
        with case(options.__name__, field.name):
            for nonsense in (-1, float("nan")):
                with pytest.raises(ConfigError, match=field.name):
                    options(**{field.name: nonsense})
            with pytest.raises(ConfigError, match=field.name):
                load(options, overrides={field.name: "-1"})


def test_a_constructor_reports_all_faults_too() -> None:
    with pytest.raises(ConfigError) as raised:
        ClientOptions(add_timeout_s=0, roll_bytes=-5, in_flight_bytes_max="much")  # type: ignore[arg-type]
    assert str(raised.value).splitlines() == [
        "ClientOptions: 3 faults",
        "  - in_flight_bytes_max: 'much' is not a number",
        "  - add_timeout_s: 0 is not above 0 and finite",
        "  - roll_bytes: -5 is not above 0 and finite",
    ]


def test_contradicting_options_are_refused_from_every_source() -> None:
    wrong: dict[str, Any] = {"add_timeout_s": 60.0}
    for make in (lambda: ClientOptions(**wrong), lambda: load(ClientOptions, overrides=wrong)):
        with pytest.raises(ConfigError) as raised:
            make()
        assert str(raised.value).count("ClientOptions") == 1
        assert "add_timeout_s 60.0 exceeds add_quorum_timeout_s 30.0" in str(raised.value)


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (("zone",), "'zone' must be NAME=VALUE"),
        (("zone=a", "zone=b"), "label zone is given twice"),
        (("=a",), "the name of a label"),
        (("zone=",), "label zone must have a printable value"),
        (("zone=a\n",), "label zone must have a printable value"),
        (tuple(f"n{number}=x" for number in range(33)), "33 labels are given"),
    ],
)
def test_wrong_labels_are_refused(labels: tuple[str, ...], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        BookieOptions(labels=labels)


# -- constants beside the options -------------------------------------------------------------------------------------


def test_constants_give_way_to_options() -> None:
    found = tuned(ClientOptions(in_flight_bytes_max=1000, takeover_timeout_s=90.0))
    assert (found.batch_bytes_max, found.recovery_timeout_s) == (1000, 90.0)
    assert tuned(found) is found


def test_constants_are_set_by_no_configuration() -> None:
    with pytest.raises(ConfigError, match="no such option: batch_bytes_max"):
        load(ClientOptions, overrides={"batch_bytes_max": 4096})


# Each is a question to every user. What nobody can choose better than we is a constant in a `...Tuning`, with its reason.
# An option that is added takes the place of another one.
OPTIONS_MAX = 90

# Arguments of one verb, not settings of a program.
ARGUMENTS = {"LogOptions", "CursorOptions"}


def options_of(module: str) -> set[str]:
    """The options that classes of this module define, as `Class.name`."""
    found = set()
    for name, each in vars(importlib.import_module(module)).items():
        if inspect.isclass(each) and attrs.has(each) and each.__module__ == module and name.endswith("Options"):
            inherited = {field for base in each.__mro__[1:] if attrs.has(base) for field in attrs.fields_dict(base)}
            own = attrs.fields_dict(each).keys() - inherited if name not in ARGUMENTS else set()
            found |= {f"{name}.{field}" for field in own}
    return found


def modules() -> list[str]:
    """All modules of replog by name, without those that need a package that is not here: the fast lane installs few extras."""
    here = pkgutil.walk_packages(replog.__path__, "replog.", onerror=lambda name: None)
    return [each.name for each in here if "__main__" not in each.name and can_be_imported(each.name)]


def can_be_imported(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "replog").startswith("replog"):
            raise
        return False
    except ConfigError as error:
        if not isinstance(error.__cause__, ImportError):
            raise
        return False
    return True


def test_there_are_few_options() -> None:
    found = set().union(*map(options_of, modules()))
    assert {"ClientOptions.add_timeout_s", "TlsOptions.tls_ca_file", "LMDBOptions.map_bytes_max"} <= found
    assert len(found) <= OPTIONS_MAX, sorted(found)
