"""The bundle for a site: one file with the certificate authority, the address, the federation file, its keys, public samples."""

import io
import json
import tomllib
import zipfile
import zlib
from dataclasses import dataclass
from lzma import LZMAError
from pathlib import Path
from typing import Self

from safetensors import SafetensorError
from safetensors.torch import load

from unalike._utils.errors import UnalikeError
from unalike.data.array_checks import Pair
from unalike.federation.protocol.federation_file import Federation
from unalike.federation.protocol.public_samples import PUBLIC_FILE, samples_of_tensors
from unalike.federation.security.certificates import replace_private, write_private
from unalike.federation.security.keys import PrivateKey, private_key, public_text
from unalike.federation.security.site_keys import NODE, SIGNING, read_private

ABOUT = "site.json"
AUTHORITY = "ca.pem"
AGREED = "federation.toml"
FILES = (ABOUT, SIGNING, NODE, AUTHORITY, AGREED)
"""The files in a bundle; the two keys are missing where the site has made them."""
UNREADABLE = (
    zipfile.BadZipFile,
    zlib.error,
    SafetensorError,
    LZMAError,
    OSError,
    EOFError,
    RuntimeError,
    ValueError,
    KeyError,
    TypeError,
)
"""Errors of reading a file that is no archive, or a damaged one; NotImplementedError is a RuntimeError."""
MAX_FILE_BYTES = 4 << 20
"""Maximum bytes of a file in a bundle; a federation file lists every site."""
MAX_PUBLIC_BYTES = 64 << 20
"""Maximum bytes of the public samples in a bundle."""


@dataclass(frozen=True, repr=False)
class Bundle:
    """A site's bundle. `key` signs its messages, `node_key` (OpenSSH) authenticates its connection; both are kept secret.

    `public` are the samples that the terms name; whoever uses them checks that they are these.
    """

    site: str
    address: str
    key: PrivateKey
    node_key: bytes
    authority: bytes
    federation: Federation
    public: Pair | None

    @staticmethod
    def write(
        path: Path,
        site: str,
        address: str,
        keys: dict[str, bytes],
        authority: bytes,
        agreed: Federation,
        public: bytes = b"",
    ) -> None:
        """Write a bundle for its owner's eyes. Raises `UnalikeError` if it would be too large.

        `keys` by file, {} if the site has made them. `public`: the file of the public samples, empty if there are none.
        """
        text = agreed.text()
        if len(text.encode()) > MAX_FILE_BYTES:
            raise UnalikeError(
                f"the federation file would have more than {MAX_FILE_BYTES} bytes, too much for a bundle; agree on fewer columns, "
                "categories or words, or on numbers (.npz)"
            )
        contents = {ABOUT: json.dumps({"site": site, "address": address}).encode()}
        contents |= keys
        contents[AUTHORITY] = authority
        contents[AGREED] = text.encode()
        check_room_for_public(len(public))
        if public:
            contents[PUBLIC_FILE] = public
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            for name, content in contents.items():
                archive.writestr(zipfile.ZipInfo(name), content)
        write_private(path, file.getvalue())

    @classmethod
    def read(cls, path: Path, folder: Path | None = None) -> Self:
        """Read a bundle, under strict limits; keys that it lacks are in the site's `folder`. Raises `UnalikeError`."""
        try:
            contents = _contents(path)
            # the private keys of a site that has made them have never left it
            if SIGNING not in contents:
                contents |= read_private(folder or path.with_suffix(""))
            about = json.loads(contents[ABOUT])
            site = str(about["site"])
            address = str(about["address"])
            federation = Federation.of(tomllib.loads(contents[AGREED].decode()))
            key = private_key(contents[SIGNING].decode())
            public = None
            if federation.public is not None:
                # clones lie where torch aligns them
                tensors = {name: t.clone() for name, t in load(contents[PUBLIC_FILE]).items()}
                public = samples_of_tensors(tensors, like=federation.data.placeholder)
        except UnalikeError:
            raise
        except UNREADABLE as error:
            raise UnalikeError(
                f"cannot read the bundle {path}: {error}; ask for it again"
            ) from None

        enrolled = federation.site(site)
        if enrolled is None or enrolled.key != public_text(key):
            raise UnalikeError(
                f"{path}: its federation file does not know site {site!r} with this key; ask for it again"
            )
        return cls(
            site=site,
            address=address,
            key=key,
            node_key=contents[NODE],
            authority=contents[AUTHORITY],
            federation=federation,
            public=public,
        )

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the federation, which the sites compare: a false bundle is one of another federation."""
        return self.federation.fingerprint(self.authority)

    def claim(self, folder: Path) -> None:
        """Mark the folder as this site's in this federation. Raises `UnalikeError` if it is another's."""
        for name, content in (("site", self.site.encode()), (AUTHORITY, self.authority)):
            file = folder / name
            if not file.exists():
                # written as a whole: half of the file would look like another site's
                replace_private(file, content)
            elif file.read_bytes() != content:
                raise UnalikeError(
                    f"{folder} belongs to another site or federation; choose another --folder"
                )


def check_room_for_public(size: int) -> None:
    """Raise `UnalikeError` for public samples of so many bytes if a bundle has no room for them."""
    if size > MAX_PUBLIC_BYTES:
        raise UnalikeError(
            f"the public samples have {size} bytes and a bundle has room for {MAX_PUBLIC_BYTES}; choose fewer"
        )


def _contents(path: Path) -> dict[str, bytes]:
    """The files in a bundle by name. Raises `UnalikeError` for an archive with other files, or too large ones."""
    with zipfile.ZipFile(path) as archive:
        infos = {info.filename: info for info in archive.infolist()}

        # A site that has made its keys gets a bundle without any; one of the two alone is no bundle.
        expected = list(FILES)
        if SIGNING not in infos and NODE not in infos:
            expected = [ABOUT, AUTHORITY, AGREED]
        if PUBLIC_FILE in infos:
            expected.append(PUBLIC_FILE)
        # by the list and not by `infos`: a name may be in an archive twice
        names = [info.filename for info in archive.infolist()]
        if sorted(names) != sorted(expected):
            raise UnalikeError(
                f"{path} is not a site's bundle; expected exactly {', '.join(FILES)} in it"
            )

        # An archive of some bytes can unpack to many; what it says about its files may be false.
        contents = {}
        for name in expected:
            limit = MAX_PUBLIC_BYTES if name == PUBLIC_FILE else MAX_FILE_BYTES
            if infos[name].file_size > limit:
                raise UnalikeError(
                    f"{path} holds a file of more than {limit} bytes; it is not a site's bundle"
                )
            with archive.open(infos[name]) as file:
                contents[name] = file.read(limit)
        return contents
