"""TLS for connections between machines: both sides show a certificate that the same authority has signed.

Host names are not checked: workers run wherever Spark puts them, and who may take part is settled by the authority and,
on top, by the job's secret. Unix sockets do not leave the machine and are not encrypted.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass


@dataclass(frozen=True)
class TlsFiles:
    """Paths of PEM files that exist on the driver and on every executor."""

    authority: str
    certificate: str
    key: str


def server_context(files: TlsFiles | None) -> ssl.SSLContext | None:
    return None if files is None else _context(files, ssl.PROTOCOL_TLS_SERVER)


def client_context(files: TlsFiles | None) -> ssl.SSLContext | None:
    return None if files is None else _context(files, ssl.PROTOCOL_TLS_CLIENT)


def _context(files: TlsFiles, side: int) -> ssl.SSLContext:
    context = ssl.SSLContext(side)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_verify_locations(files.authority)
        context.load_cert_chain(files.certificate, files.key)
    except (OSError, ssl.SSLError) as error:
        raise ValueError(f"the TLS files {files} cannot be used: {error}") from error
    return context
