"""The model that a site keeps for its own use: its personal model where the method trains one, else the shared model."""

from __future__ import annotations

from pathlib import Path

from unalike._utils.tensor_files import write_tensors
from unalike.core.types import Tree
from unalike.data.table_encoding import Encoding
from unalike.runtime.records.run_directory import RunDirectory
from unalike.runtime.run_config import RunConfig

MEMORY, MODEL = "memory", "model"
"""Folder of a site's states below its own folder; folder of the model below that of a run."""


def keep_model(folder: Path, run_config: RunConfig, site: str, values: Tree, encoding: Encoding | None) -> None:
    """Write the parameters and buffers `values` into a folder that `unalike predict` and `unalike evaluate` read."""
    directory = RunDirectory(folder)
    if directory.config is None:
        directory.write_config(run_config.record | {"site": site})
        if encoding is not None:
            encoding.save(folder / "encoding.json")
    write_tensors(folder / "model.safetensors", values)


def kept_model(site_folder: Path) -> Path | None:
    """The folder of the model of a site's newest run; None if the site keeps none."""
    return max((file.parent for file in site_folder.glob(f"{MEMORY}/*/{MODEL}/model.safetensors")), default=None)
