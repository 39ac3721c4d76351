"""Authentication by a shared secret: the file, who is let in, and that nothing shows the secret."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from replog.abc import Authenticator, Identity, Peer, Role
from replog.errors import AuthenticationError, ConfigError
from replog.registry import Registry
from tests.authentication.files import CLIENT_SECRET, OTHER_SECRET, secrets_file

PEER = Peer("192.0.2.1:1234")
SESSION = bytes(range(32))


def opened(path: Path, options: str = "") -> Authenticator:
    return Registry(load_installed=False).open_authenticator(f"secret:{path}{options}")


def refusal(bookie: Authenticator, response: bytes) -> AuthenticationError:
    with pytest.raises(AuthenticationError) as raised:
        bookie.verify(PEER, b"", response, SESSION)
    return raised.value


def shown(error: BaseException | None) -> str:
    """All that somebody may see of an error, its causes included."""
    found = ""
    while error is not None:
        found += f"{error} {error!r} {getattr(error, 'detail', '')}"
        error = error.__cause__ or error.__context__
    return found


# -- who is let in --------------------------------------------------------------------------------------------------


def test_names_have_the_roles_of_the_bookies_file(tmp_path: Path) -> None:
    names = {"app": CLIENT_SECRET, "ops": OTHER_SECRET}
    bookie = opened(secrets_file(tmp_path / "bookie.toml", administrators=("ops",), **names))
    client = opened(secrets_file(tmp_path / "client.toml", administrators=("app", "ops"), **names), "?name=app")
    identity, proof = bookie.verify(PEER, b"", client.respond(b"", SESSION), SESSION)
    assert identity == Identity("app", frozenset({Role.CLIENT}))
    client.confirm(client.respond(b"", SESSION), proof, SESSION)
    operator = opened(tmp_path / "client.toml", "?name=ops")
    identity, _ = bookie.verify(PEER, b"", operator.respond(b"", SESSION), SESSION)
    assert identity == Identity("ops", frozenset({Role.CLIENT, Role.ADMIN}))


def test_unknown_name_gets_the_answer_of_a_wrong_secret(tmp_path: Path) -> None:
    """Only the bookie's log tells them apart."""
    bookie = opened(secrets_file(tmp_path / "bookie.toml", app=CLIENT_SECRET))
    wrong = opened(secrets_file(tmp_path / "wrong.toml", app=OTHER_SECRET))
    unknown = opened(secrets_file(tmp_path / "unknown.toml", xyz=CLIENT_SECRET))
    told = [refusal(bookie, each.respond(b"", SESSION)) for each in (wrong, unknown)]
    assert str(told[0]) == str(told[1]).replace("'xyz'", "'app'")
    assert "another secret" in told[0].detail
    assert "no such name" in told[1].detail


def test_a_name_can_take_another_secret_while_all_go_on(tmp_path: Path) -> None:
    path = tmp_path / "bookie.toml"
    path.write_text(f'[clients.app]\nsecret = "{OTHER_SECRET}"\nprevious_secret = "{CLIENT_SECRET}"\n')
    path.chmod(0o600)
    for secret in (CLIENT_SECRET, OTHER_SECRET):
        client = opened(secrets_file(tmp_path / "client.toml", app=secret))
        _, proof = opened(path).verify(PEER, b"", client.respond(b"", SESSION), SESSION)
        client.confirm(client.respond(b"", SESSION), proof, SESSION)
    current = opened(secrets_file(tmp_path / "new.toml", app=OTHER_SECRET))
    assert opened(path).respond(b"", SESSION) == current.respond(b"", SESSION)


def test_client_detects_a_bookie_without_the_secret(tmp_path: Path) -> None:
    client = opened(secrets_file(tmp_path / "client.toml", app=CLIENT_SECRET))
    response = client.respond(b"", SESSION)
    for proof in (b"", bytes(32), secrets.token_bytes(32), response, response[:32]):
        with pytest.raises(AuthenticationError, match="not one of our bookies"):
            client.confirm(response, proof, SESSION)


def test_client_states_its_name_among_several(tmp_path: Path) -> None:
    path = secrets_file(tmp_path / "all.toml", app=CLIENT_SECRET, ops=OTHER_SECRET)
    with pytest.raises(AuthenticationError, match=r"app, ops: say which"):
        opened(path).respond(b"", SESSION)
    with pytest.raises(ConfigError, match=r"no name 'nobody'; it has: app, ops"):
        opened(path, "?name=nobody")


@pytest.mark.parametrize("name", ["", "a b", "a\nb", "x" * 65, "\N{SNOWMAN}", "../x"])
def test_invalid_name_never_reaches_a_log(tmp_path: Path, name: str) -> None:
    error = refusal(opened(secrets_file(tmp_path / "bookie.toml", app=CLIENT_SECRET)), bytes(32) + name.encode())
    assert str(error) == "no name and proof, as authentication by secret has them"


# -- the file -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o602, 0o620, 0o601])
def test_secret_file_is_refused_when_others_have_access(tmp_path: Path, mode: int) -> None:
    path = secrets_file(tmp_path / "all.toml", app=CLIENT_SECRET)
    path.chmod(mode)
    with pytest.raises(ConfigError, match=f"its mode is {mode:04o}.*chmod 600"):
        opened(path)


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o440, 0o640])
def test_its_owner_and_their_group_may_read_it(tmp_path: Path, mode: int) -> None:
    path = secrets_file(tmp_path / "all.toml", app=CLIENT_SECRET)
    path.chmod(mode)
    assert opened(path).mechanism == "secret"


FAULTS = {
    "": "has no names",
    "clients = 5": "has no names",
    "[clients]": "has no names",
    "[clients.app]": r"clients.app: has no secret.*make one with",
    "[clients.app]\nsecret = 5": "a secret is a text",
    '[clients.app]\nsecret = "hunter2"': r"at least 16 bytes.*make one with.*token_urlsafe",
    '[clients.app]\nsecret = "hunter2hunter2hunter2"\nprevious_secret = "hunter3"': "at least 16 bytes",
    '[clients.app]\nsecret = "aaaaaaaaaaaaaaaaaaaaaaaa"': "drawn at random",
    f'[clients.app]\nsecret = "{CLIENT_SECRET}"\npasword = "x"': "no such field: pasword",
    f'[clients.app]\nsecret = "{CLIENT_SECRET}"\nroles = "admin"': "roles is a list of some of: client, repairer, admin",
    f'[clients.app]\nsecret = "{CLIENT_SECRET}"\nroles = []': "roles is a list of some of: client, repairer, admin",
    f'[clients.app]\nsecret = "{CLIENT_SECRET}"\nroles = ["root"]': "roles is a list of some of: client, repairer, admin",
    f'[clients."a b"]\nsecret = "{CLIENT_SECRET}"': "'a b' is not a valid name",
    f'[clients.a]\nsecret = "{CLIENT_SECRET}"\n[clients.b]\nsecret = "{CLIENT_SECRET}"': "a and b have the same secret",
    f"[clients.app]\nsecret = {CLIENT_SECRET}": r"is not valid TOML \(at line 2",
    f'[clients.app]\nsecret = "{CLIENT_SECRET}\n': r"is not valid TOML \(at line 2",
}


@pytest.mark.parametrize("text", FAULTS)
def test_secret_file_errors_do_not_show_secrets(tmp_path: Path, text: str) -> None:
    path = tmp_path / "all.toml"
    path.write_text(text, encoding="utf-8")
    path.chmod(0o600)
    with pytest.raises(ConfigError, match=FAULTS[text]) as raised:
        opened(path)
    assert str(path) in str(raised.value)
    for secret in (CLIENT_SECRET, "hunter", "aaaa"):
        assert secret not in shown(raised.value)


def test_secret_file_is_refused_when_missing_or_binary(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        opened(tmp_path / "missing.toml")
    with pytest.raises(ConfigError, match="names no file"):
        Registry(load_installed=False).open_authenticator("secret:")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\0")
    (tmp_path / "binary").chmod(0o600)
    with pytest.raises(ConfigError, match="is not valid TOML"):
        opened(tmp_path / "binary")


def test_nothing_shows_the_secret(tmp_path: Path) -> None:
    """Not the wire, not what is printed, not an error."""
    bookie = opened(secrets_file(tmp_path / "bookie.toml", app=CLIENT_SECRET))
    response = bookie.respond(b"", SESSION)
    _, proof = bookie.verify(PEER, b"", response, SESSION)
    known = bookie._known["app"]  # type: ignore[attr-defined]
    refused = shown(refusal(bookie, bytes(32) + b"app"))
    for said in (response, proof, repr(bookie).encode(), f"{known} {known!r}".encode(), refused.encode()):
        assert CLIENT_SECRET.encode() not in said
