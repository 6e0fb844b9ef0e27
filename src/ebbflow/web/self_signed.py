"""A certificate that the HTTP source makes for itself, as Numaflow's does, where none was given.

It keeps listeners on the network from reading along. It proves nothing to a client, which has to be
told to trust it: ``curl -k``. It lives in memory and is made anew with every run.
"""

from __future__ import annotations

import ipaddress
import socket
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from ebbflow.domain.secrets import Secret
from ebbflow.web.endpoint import Certificate

_VALID = timedelta(days=365)
_CLOCKS_DIFFER = timedelta(hours=1)


def make_certificate(host: str) -> Certificate:
    """Returns a new certificate for this machine and the host that is listened on, with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "ebbflow")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCKS_DIFFER)
        .not_valid_after(now + _VALID)
        .add_extension(x509.SubjectAlternativeName(_names(host)), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    return Certificate(
        certificate.public_bytes(serialization.Encoding.PEM).decode(),
        Secret(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            ).decode()
        ),
    )


def _names(host: str) -> list[x509.GeneralName]:
    names = dict.fromkeys(("localhost", "127.0.0.1", "::1", socket.gethostname(), host))
    return [_name(name) for name in names if name.isascii()]


def _name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
