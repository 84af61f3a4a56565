"""Files that are whole or not there."""

import os
from pathlib import Path


def write_atomically(path: Path, content: bytes, durable: bool = True) -> None:
    """Write a file that is the old one or the new one, whatever happens; a power cut may lose it unless `durable`."""
    temporary = path.with_name(f".{path.name}.part")
    with temporary.open("wb") as file:
        file.write(content)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    temporary.replace(path)
    if not durable:
        return
    folder = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)
