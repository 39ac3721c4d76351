"""The options of connections by TLS, the same for every protocol that speaks it."""

from __future__ import annotations

import attrs

from replog.errors import ConfigError


# Without slots: a class can't have two bases with slots of their own.
@attrs.frozen(slots=False)
class TlsOptions:
    """Options of TLS.

    `tls_certificate_file` and `tls_key_file` (PEM; the key may stand in the certificate's file) are what this side shows.
    `tls_ca_file`: certificates of the other side must be signed by this authority, and no other one is trusted. `tls`: yes
    speaks TLS without an authority of one's own, and trusts what the system trusts; no speaks none, and then the files may
    not be given. `tls_check_hostname`: the other side's certificate must be for the host that is connected to.
    """

    tls: bool | None = None
    tls_certificate_file: str = ""
    tls_key_file: str = ""
    tls_ca_file: str = ""
    tls_check_hostname: bool = True

    def check_tls(self) -> None:
        """Raises `ConfigError` if these contradict each other."""
        files = self.tls_certificate_file or self.tls_key_file or self.tls_ca_file
        if self.tls is False and files:
            raise ConfigError(f"tls=no, but there is {files}: leave one of them out")
        if self.tls_key_file and not self.tls_certificate_file:
            raise ConfigError(f"tls_key_file={self.tls_key_file} needs a tls_certificate_file")

    @property
    def is_tls_client(self) -> bool:
        """Whether the side that connects speaks TLS."""
        return self.tls is True or bool(self.tls_certificate_file or self.tls_ca_file)
