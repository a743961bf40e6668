"""Tensors in files: safetensors only, written to a temporary name, flushed and renamed, so that a file is whole or absent."""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from unalike._utils.errors import UnalikeError

Tree = dict[str, torch.Tensor]

PARTS = ".*.part"
"""The names of files that are being written."""


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file atomically. Raises `UnalikeError` when the folder cannot be written or the disk is full."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    with writing(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # The bytes reach the disk before the name does: after a power cut the file is whole or absent.
            with open(temporary, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except OSError:
            if temporary.exists():
                temporary.unlink()
            raise


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raise `UnalikeError` if the block cannot write to `path`, or the disk is full."""
    try:
        yield
    except OSError as error:
        raise UnalikeError(
            f"cannot write {path}: {error.strerror or error}; free space or choose another folder"
        ) from error


def round_file(folder: Path, round: int) -> Path:
    """The file of a round in a folder."""
    return folder / f"round-{round:06d}.safetensors"


def rounds_of(files: Iterable[Path]) -> dict[Path, int]:
    """The files named as by `round_file` with their rounds; other files are left out."""
    names = {file: file.stem.removeprefix("round-") for file in files}
    return {file: int(name) for file, name in names.items() if name.isdecimal()}


def write_tensors(path: Path, tensors: Tree, facts: dict[str, Any] | None = None) -> None:
    """Write a tree, with JSON facts beside it, atomically; equal contents give equal bytes."""
    # the format takes contiguous tensors in memory, and refuses those that share memory
    in_memory: Tree = {}
    addresses: set[int] = set()
    for name, tensor in tensors.items():
        contiguous = tensor.detach().cpu().contiguous()
        address = contiguous.untyped_storage().data_ptr()
        in_memory[name] = contiguous.clone() if address in addresses else contiguous
        addresses.add(address)
    # the format sorts tensors by dtype and name, so their order is kept; one entry, since it shuffles several
    about: dict[str, Any] = {"facts": facts or {}, "order": list(tensors)}
    about["digest"] = _digest(in_memory, about)
    write_bytes(path, save(in_memory, {"unalike": json.dumps(about)}))


def read_tensors(path: Path) -> tuple[Tree, dict[str, Any]]:
    """Read what `write_tensors` wrote. Raises `UnalikeError` for a missing, truncated, changed or foreign file."""
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads(file.metadata()["unalike"])
            digest = about.pop("digest")
            # clones lie where torch aligns them; where the file has them, products may round in another way
            tensors = {name: file.get_tensor(name).clone() for name in about["order"]}
    except (OSError, SafetensorError, TypeError, KeyError, ValueError, AttributeError) as error:
        raise UnalikeError(
            f"cannot read {path}: {error}; it is no checkpoint of unalike, or it is damaged"
        ) from error
    if _digest(tensors, about) != digest:
        raise UnalikeError(
            f"cannot read {path}: its contents are not those that were written; it is damaged"
        )
    return tensors, about["facts"]


def _digest(tensors: Tree, about: dict[str, Any]) -> str:
    """A checksum of the contents. It finds damage; it does not protect from an attacker."""
    total = hashlib.blake2b(json.dumps(about).encode(), digest_size=16)
    for name, tensor in tensors.items():
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        # an empty tensor has no bytes to view
        if tensor.numel():
            content = tensor.reshape(-1).view(torch.uint8).numpy()
            total.update(content.data)
    return total.hexdigest()


def sweep(folder: Path) -> None:
    """Remove temporary files of processes that were killed while they wrote, also in the folders below."""
    for file in folder.rglob(PARTS):
        file.unlink(missing_ok=True)


def sweep_files(folder: Path) -> None:
    """Remove such files of the folder itself; in those below other processes may write."""
    for file in folder.glob(PARTS):
        file.unlink(missing_ok=True)
