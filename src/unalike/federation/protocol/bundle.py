"""The bundle for a site: one file with its keys, the certificate authority, the address and the federation file."""

from __future__ import annotations

import io
import json
import tomllib
import zipfile
import zlib
from dataclasses import dataclass
from lzma import LZMAError
from pathlib import Path

from unalike._utils.errors import UnalikeError
from unalike.federation.protocol.federation_file import Federation
from unalike.federation.security.certificates import replace_private, write_private
from unalike.federation.security.keys import PrivateKey, private_key, private_text, public_text

FILES = ("site.json", "site.key", "node.key", "ca.pem", "federation.toml")
UNREADABLE = (
    *(OSError, EOFError, RuntimeError, ValueError, KeyError, TypeError),
    *(zipfile.BadZipFile, zlib.error, LZMAError),
)
"""Errors of reading a file that is no archive, or a damaged one; NotImplementedError is a RuntimeError."""
MAX_FILE_BYTES = 4 << 20
"""Maximum bytes of a file in a bundle; a federation file lists every site."""


@dataclass(frozen=True, repr=False)
class Bundle:
    """A site's bundle. `key` signs its messages, `node_key` (OpenSSH) authenticates its connection. It must be kept secret."""

    site: str
    address: str
    key: PrivateKey
    node_key: bytes
    authority: bytes
    federation: Federation

    def write(self, path: Path) -> None:
        """Write the bundle, readable for its owner alone. Raises `UnalikeError` for a federation file that is too large."""
        text = self.federation.text()
        if len(text.encode()) > MAX_FILE_BYTES:
            raise UnalikeError(
                f"the federation file would have more than {MAX_FILE_BYTES} bytes, too much for a bundle; agree on fewer columns, "
                "categories or words, or on numbers (.npz)"
            )
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            about = json.dumps({"site": self.site, "address": self.address})
            texts = (about, private_text(self.key), self.node_key.decode(), self.authority.decode(), text)
            for name, content in zip(FILES, texts, strict=True):
                archive.writestr(zipfile.ZipInfo(name), content)
        write_private(path, file.getvalue())

    @classmethod
    def read(cls, path: Path) -> Bundle:
        """Read a bundle under strict limits. Raises `UnalikeError` for anything that is not a valid bundle."""
        try:
            with zipfile.ZipFile(path) as archive:
                infos = {info.filename: info for info in archive.infolist()}
                if sorted(i.filename for i in archive.infolist()) != sorted(FILES):
                    raise UnalikeError(f"{path} is not a site's bundle; expected exactly {', '.join(FILES)} in it")
                if max(info.file_size for info in infos.values()) > MAX_FILE_BYTES:
                    raise UnalikeError(
                        f"{path} holds a file of more than {MAX_FILE_BYTES} bytes; it is not a site's bundle"
                    )
                contents = {name: _content(archive, infos[name]) for name in FILES}
            about = json.loads(contents["site.json"])
            site, address = str(about["site"]), str(about["address"])
            federation = Federation.of(tomllib.loads(contents["federation.toml"].decode()))
            key = private_key(contents["site.key"].decode())
        except UnalikeError:
            raise
        except UNREADABLE as error:
            raise UnalikeError(f"cannot read the bundle {path}: {error}; ask for it again") from None
        enrolled = federation.site(site)
        if enrolled is None or enrolled.key != public_text(key):
            raise UnalikeError(
                f"{path}: its federation file does not know site {site!r} with this key; ask for it again"
            )
        return cls(site, address, key, contents["node.key"], contents["ca.pem"], federation)

    def claim(self, folder: Path) -> None:
        """Mark the folder as this site's in this federation. Raises `UnalikeError` if it is another's."""
        for name, content in (("site", self.site.encode()), ("ca.pem", self.authority)):
            file = folder / name
            if not file.exists():
                replace_private(file, content)  # atomic: half of the file would look like another site's
            elif file.read_bytes() != content:
                raise UnalikeError(f"{folder} belongs to another site or federation; choose another --folder")


def _content(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    with archive.open(info) as file:
        return file.read(MAX_FILE_BYTES)
