"""Files of secrets, as the tests need them."""

from pathlib import Path

CLIENT_SECRET = "J5sTNgz9mQ2vXb4kR8wLpYc7"
OTHER_SECRET = "vQ0uWn3eZ6rTa1oHd5iGs9Bf"


def secrets_file(path: Path, *, administrators: tuple[str, ...] = (), **names: str) -> Path:
    """Writes a file with these names and secrets, for its owner alone."""
    lines = []
    for name, secret in names.items():
        roles = '["client", "admin"]' if name in administrators else '["client"]'
        lines += [f"[clients.{name}]", f'secret = "{secret}"', f"roles = {roles}"]
    path.write_text("\n".join(lines), encoding="utf-8")
    path.chmod(0o600)
    return path
