"""A certificate authority of your own, and the server's certificate: python make_certs.py FOLDER [HOST ...].

HOST is a name or an address under which nodes reach the server; localhost and 127.0.0.1 are always in.
"""

import ipaddress
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

YEAR = timedelta(days=365)


def alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def certificate(name: str, key, issuer: str, signed_by, *extensions):
    builder = x509.CertificateBuilder(
        issuer_name=x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]),
        subject_name=x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]),
        public_key=key.public_key(), serial_number=x509.random_serial_number(),
        not_valid_before=datetime.now(UTC) - timedelta(minutes=5), not_valid_after=datetime.now(UTC) + YEAR,
    )
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical)
    return builder.sign(signed_by, hashes.SHA256())


def write(folder: Path, name: str, key, signed) -> None:
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
                                serialization.NoEncryption())
    file = folder / f"{name}.key"
    file.touch(mode=0o600)
    file.write_bytes(private)
    (folder / f"{name}.crt").write_bytes(signed.public_bytes(serialization.Encoding.PEM))


def usage(**yes: bool) -> x509.KeyUsage:
    names = ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
             "key_cert_sign", "crl_sign", "encipher_only", "decipher_only")
    return x509.KeyUsage(**{name: yes.get(name, False) for name in names})


folder, hosts = Path(sys.argv[1]), ["localhost", "127.0.0.1", *sys.argv[2:]]
folder.mkdir(parents=True, exist_ok=True)
ca, server = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
write(folder, "ca", ca, certificate(
    "umbel sites", ca, "umbel sites", ca,
    (x509.BasicConstraints(ca=True, path_length=0), True), (usage(key_cert_sign=True, crl_sign=True), True),
    (x509.SubjectKeyIdentifier.from_public_key(ca.public_key()), False),
))
write(folder, "server", server, certificate(
    hosts[-1], server, "umbel sites", ca,
    (x509.BasicConstraints(ca=False, path_length=None), True), (usage(digital_signature=True), True),
    (x509.SubjectAlternativeName([alternative(host) for host in hosts]), False),
    (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
    (x509.AuthorityKeyIdentifier.from_issuer_public_key(ca.public_key()), False),
))
print(f"{folder}/ca.crt goes to every site; {folder}/server.key and {folder}/ca.key stay where they are.")
