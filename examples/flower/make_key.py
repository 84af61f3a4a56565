"""A node's key pair: python make_key.py FILE. FILE stays at the site, FILE.pub goes to the server.

The same as `ssh-keygen -t ecdsa -b 384 -N "" -f FILE`, for sites without it.
"""

import sys
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

file = Path(sys.argv[1])
file.parent.mkdir(parents=True, exist_ok=True)
key = ec.generate_private_key(ec.SECP384R1())
file.touch(mode=0o600, exist_ok=False)
file.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH,
                                   serialization.NoEncryption()))
public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
Path(f"{file}.pub").write_bytes(public + b"\n")
