"""Files of tensors: written, read, damaged."""

import pytest
import torch
from simulation import same

from unalike._utils.errors import UnalikeError
from unalike._utils.tensor_files import read_tensors, write_tensors


def trees(seed=0, names=("a.weight", "a.bias", "b.weight")):
    gen = torch.Generator().manual_seed(seed)
    return {n: torch.randn(*s, generator=gen) for n, s in zip(names, ((2, 3), (2,), (4,)))}


def test_checkpoint_written_and_read_back_is_equal(tmp_path):
    path = tmp_path / "deep" / "state.safetensors"
    tensors = {
        "a": torch.randn(3, 4).t(),
        "n": torch.tensor(7),
        "b": torch.tensor([True]),
        "d": torch.randn(2, dtype=torch.float64),
    }
    write_tensors(path, tensors, {"round": 3, "name": "é"})
    found, facts = read_tensors(path)
    assert same(found, {n: found[n] for n in found}) and facts == {"round": 3, "name": "é"}
    assert (
        all(torch.equal(found[n], t) and found[n].dtype == t.dtype for n, t in tensors.items())
        and len(found) == 4
    )
    assert [p.name for p in path.parent.iterdir()] == ["state.safetensors"]


def test_checkpoint_damaged_or_foreign_file_is_refused(tmp_path):
    path = tmp_path / "state.safetensors"
    write_tensors(path, trees())
    whole = path.read_bytes()
    for broken in (
        whole[: len(whole) // 2],
        whole[:-1],
        whole[:4],
        b"",
        b"hello world, this is text",
    ):
        path.write_bytes(broken)
        with pytest.raises(UnalikeError, match="cannot read"):
            read_tensors(path)
    with pytest.raises(UnalikeError, match="cannot read"):
        read_tensors(tmp_path / "none")
    from safetensors.torch import save

    path.write_bytes(save(trees()))  # somebody else's
    with pytest.raises(UnalikeError, match="cannot read"):
        read_tensors(path)


def test_checkpoint_in_unwritable_folder_is_refused(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UnalikeError, match="cannot write"):
        write_tensors(tmp_path / "file" / "state", trees())
