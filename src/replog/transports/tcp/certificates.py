"""The TLS contexts, which define trust between the two sides, made again when their files change: certificates change
without a restart."""

from __future__ import annotations

import hashlib
import ssl
from pathlib import Path

import attrs

from replog.errors import ConfigError
from replog.runtime.loggers import logger
from replog.transports.tcp.options import StreamOptions, TcpOptions

_log = logger("replog.transports.tcp")

_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"


@attrs.frozen
class Credentials:
    """The credentials for handshakes of one side. `binding` is the digest of the certificate that a bookie shows: both
    sides mix it into the session, which reveals a man in the middle with another certificate."""

    context: ssl.SSLContext
    binding: bytes = b""


class Certificates:
    """The credentials of one side. Raises `ConfigError` if the files can't be used at the beginning; later, files that
    can't be used are logged, and the earlier contexts stay in use."""

    def __init__(self, options: TcpOptions, *, is_bookie: bool) -> None:
        self._options = options
        self._is_bookie = is_bookie
        self._files = [
            name for name in (options.tls_certificate_file, options.tls_key_file, options.tls_ca_file) if name
        ]
        # Before the files are read: a change in between is seen at the next handshake, and not lost.
        self._looked_like = self._look()
        self._credentials = self._load()

    def current(self) -> Credentials:
        """The credentials for the next handshake."""
        looks_like = self._look()
        if looks_like != self._looked_like:
            # Also if they can't be used: else every handshake would read them again, and log it.
            self._looked_like = looks_like
            try:
                self._credentials = self._load()
                _log.info("TLS: new certificates and keys are used: %s", ", ".join(self._files))
            except ConfigError as error:
                _log.warning("%s; those from before are used until the files change again", error)
        return self._credentials

    def _look(self) -> tuple[object, ...]:
        """The facts that reveal a change: a few system calls, without waiting for a disk that has everything in memory."""
        found: list[object] = []
        for name in self._files:
            try:
                status = Path(name).stat()
                found.append((status.st_mtime_ns, status.st_ino, status.st_size))
            except OSError as error:
                found.append(error.errno)
        return tuple(found)

    def _load(self) -> Credentials:
        if not self._is_bookie:
            context = self._context(ssl.Purpose.SERVER_AUTH)
            context.check_hostname = self._options.tls_check_hostname
            return Credentials(context)
        # `load_cert_chain` doesn't say which certificate it read, so the file is
        # read apart, once before and once after.
        binding = certificate_digest(self._own_certificate())
        context = self._context(ssl.Purpose.CLIENT_AUTH)
        context.num_tickets = 0  # sessions are not resumed
        if self._options.tls_ca_file:
            context.verify_mode = ssl.CERT_REQUIRED
        if binding != certificate_digest(self._own_certificate()):
            raise ConfigError("TLS: the certificate changed while it was read")
        return Credentials(context, binding)

    def _context(self, purpose: ssl.Purpose) -> ssl.SSLContext:
        options = self._options
        try:
            context = ssl.create_default_context(purpose, cafile=options.tls_ca_file or None)
            # Both ends are replog: nothing older is needed.
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            if options.tls_certificate_file:
                context.load_cert_chain(options.tls_certificate_file, options.tls_key_file or None, self._no_password)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"TLS: {self._fault(error)}") from error
        return context

    def _fault(self, error: OSError) -> str:
        if isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH":
            return f"{self._key_file} is not the key of the certificate in {self._options.tls_certificate_file}"
        if isinstance(error, ssl.SSLError):
            return f"no certificates and keys (PEM) in {', '.join(self._files)}: {error.reason or error}"
        missing = [name for name in self._files if not Path(name).is_file()]
        return f"{', '.join(missing or self._files)}: {error.strerror or error}"

    @property
    def _key_file(self) -> str:
        return self._options.tls_key_file or self._options.tls_certificate_file

    def _no_password(self) -> str:
        raise ConfigError(
            f"TLS: the key in {self._key_file} is encrypted, and its password cannot be entered here: "
            f"decrypt it, as by: openssl pkey -in {self._key_file} -out plain.key"
        )

    def _own_certificate(self) -> bytes:
        """The first certificate of the file, in DER."""
        name = self._options.tls_certificate_file
        try:
            text = Path(name).read_text(encoding="utf-8", errors="replace")
            begin = text.index(_BEGIN)
            return ssl.PEM_cert_to_DER_cert(text[begin : text.index(_END, begin) + len(_END)])
        except OSError as error:
            raise ConfigError(f"TLS: {name}: {error.strerror}") from error
        except ValueError as error:
            raise ConfigError(f"TLS: no certificate (PEM) in {name}: {error}") from error


def client_certificates(options: StreamOptions) -> Certificates | None:
    """None without TLS. Raises `ConfigError`."""
    if isinstance(options, TcpOptions) and options.is_tls_client:
        return Certificates(options, is_bookie=False)
    return None


def bookie_certificates(options: StreamOptions) -> Certificates | None:
    """None without TLS. Raises `ConfigError`."""
    if isinstance(options, TcpOptions) and options.is_bookie_tls:
        return Certificates(options, is_bookie=True)
    return None


def certificate_digest(certificate: bytes) -> bytes:
    """Of a certificate in DER."""
    return hashlib.sha256(certificate).digest()
