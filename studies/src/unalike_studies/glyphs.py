"""Distorted printed characters: a substitute for EMNIST that needs no download. It is not EMNIST."""

import math
import string
from functools import cache
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from unalike._utils.option_types import check_count
from unalike._utils.seeds import generator
from unalike.data.dataset import Dataset
from unalike.data.sources.registry import registry

CLASSES = string.digits + string.ascii_uppercase + string.ascii_lowercase
"""EMNIST's 62 classes in its order (byclass): digits, upper case, lower case."""

FONTS = (
    "DejaVuSans",
    "DejaVuSans-Bold",
    "DejaVuSans-Oblique",
    "DejaVuSans-BoldOblique",
    "DejaVuSansMono",
    "DejaVuSansMono-Oblique",
    "DejaVuSerif",
    "DejaVuSerif-Italic",
    "DejaVuSerif-Bold",
    "STIXGeneral",
    "STIXGeneralItalic",
    "STIXGeneralBol",
    "STIXGeneralBolIta",
    "cmr10",
    "cmss10",
    "cmtt10",
    "cmb10",
    "cmmi10",
)
"""The fonts bundled with Matplotlib that have all 62 characters."""

STROKES = (0, 1, 2)
"""Stroke widths, in pixels of the canvas."""

SIDE_PIXELS = 28
"""The sides of an image."""
CANVAS_PIXELS = 64
"""The sides of the canvas on which a character is drawn before it is distorted."""
GLYPH_PIXELS = 48
"""The longer side of a character on the canvas."""
BLOCK_SAMPLES = 16 * len(CLASSES)
"""Number of samples in a block; each block has 16 samples of every class."""


@registry.register("glyphs")
def glyphs(*, train: int = 20000, test: int = 4000, seed: int = 0) -> Dataset:
    """A stand-in for EMNIST, not EMNIST: 62 printed characters in 18 fonts, randomly distorted, 28x28 gray.

    As in EMNIST each character fills the same box, so that 0 O o, 1 I l, 2 Z z, C c, S s, ... are easily confused. Each sample
    has a font, a stroke width, a random affine map (rotation, shear, stretch, shift), a smooth elastic displacement (Simard et
    al. 2003), a random ink level and noise. Classes are equally frequent. The group "font" [N] takes the place of the writer.

    Sample i depends on (seed, training or test, i) only: a larger data set begins with the smaller one. Report results on
    glyphs as results on glyphs; accuracies on EMNIST differ.
    """
    check_count("glyphs", train=train)
    check_count("glyphs", 0, test=test, seed=seed)
    parts = [_part(train, seed, part=0), _part(test, seed, part=1)]
    x, y, font = (torch.cat(column) for column in zip(*parts))
    names = np.array(FONTS)[font.numpy()]
    return Dataset.divided("glyphs", x, y, train, list(CLASSES), {"font": names})


def _part(count: int, seed: int, part: int) -> tuple[Tensor, Tensor, Tensor]:
    """Draw the first `count` images, labels and fonts of the training (0) or the test (1) samples, by whole blocks."""
    number = math.ceil(count / BLOCK_SAMPLES)
    blocks = [_block(generator(seed, "glyphs", part, block)) for block in range(number)]
    if not blocks:
        none = torch.empty(0, dtype=torch.int64)
        return torch.empty(0, 1, SIDE_PIXELS, SIDE_PIXELS), none, none
    x = torch.cat([images for images, _, _ in blocks])
    y = torch.cat([labels for _, labels, _ in blocks])
    font = torch.cat([fonts for _, _, fonts in blocks])
    return x[:count], y[:count], font[:count]


def _block(rng: np.random.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Draw images [BLOCK, 1, 28, 28] in steps of 1/255, labels [BLOCK] and fonts [BLOCK]."""
    y = rng.permutation(np.arange(BLOCK_SAMPLES) % len(CLASSES))
    font = rng.integers(len(FONTS), size=BLOCK_SAMPLES)
    stroke = rng.integers(len(STROKES), size=BLOCK_SAMPLES)
    printed = templates()[font, stroke, y][:, None].float() / 255
    positions = _affine(rng) + _elastic(rng)
    x = F.grid_sample(printed, positions, padding_mode="zeros", align_corners=False)
    ink = torch.from_numpy(rng.uniform(0.7, 1.0, (BLOCK_SAMPLES, 1, 1, 1)).astype(np.float32))
    noise = torch.from_numpy(rng.normal(0, 0.04, x.shape).astype(np.float32))
    # Rounded to bytes, so that the last bits of a machine's arithmetic do not change the data.
    x = ((x * ink + noise).clamp(0, 1) * 255).round() / 255
    return x, torch.from_numpy(y), torch.from_numpy(font)


def _affine(rng: np.random.Generator) -> Tensor:
    """Draw affine maps x -> A x + b as sampling positions on the canvas: [BLOCK, 28, 28, 2] in -1..1."""
    turn = rng.normal(0, 0.12, BLOCK_SAMPLES)
    shear = rng.normal(0, 0.15, BLOCK_SAMPLES)
    stretch = rng.uniform(0.9, 1.2, (BLOCK_SAMPLES, 2))
    cos, sin = np.cos(turn), np.sin(turn)
    rotation = np.array([[cos, -sin], [sin, cos]])
    slant = np.array(
        [[np.ones(BLOCK_SAMPLES), shear], [np.zeros(BLOCK_SAMPLES), np.ones(BLOCK_SAMPLES)]]
    )
    matrix = np.einsum("ijn,jkn,nk->nik", rotation, slant, stretch)
    shift = rng.uniform(-0.08, 0.08, (BLOCK_SAMPLES, 2, 1))
    maps = np.concatenate([matrix, shift], 2).astype(np.float32)
    return F.affine_grid(
        torch.from_numpy(maps), [BLOCK_SAMPLES, 1, SIDE_PIXELS, SIDE_PIXELS], align_corners=False
    )


def _elastic(rng: np.random.Generator) -> Tensor:
    """Draw smooth displacements [BLOCK, 28, 28, 2]: normal at 5x5 points, bicubic between them."""
    coarse = torch.from_numpy(rng.normal(0, 0.05, (BLOCK_SAMPLES, 2, 5, 5)).astype(np.float32))
    fine = F.interpolate(
        coarse, size=(SIDE_PIXELS, SIDE_PIXELS), mode="bicubic", align_corners=True
    )
    return fine.permute(0, 2, 3, 1)


@cache
def templates() -> Tensor:
    """Draw every character in every font and stroke width: bytes [fonts, strokes, 62, 64, 64], ink 255 on 0."""
    fonts = []
    for font in FONTS:
        strokes = [_characters(font, stroke) for stroke in STROKES]
        fonts.append(torch.stack(strokes))
    return torch.stack(fonts)


def _characters(font: str, stroke: int) -> Tensor:
    """Draw every character in one font and stroke width: bytes [62, 64, 64]."""
    import matplotlib
    from PIL import Image, ImageDraw, ImageFont

    file = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{font}.ttf"
    pen = ImageFont.truetype(file, size=GLYPH_PIXELS)
    pages = np.zeros((len(CLASSES), CANVAS_PIXELS, CANVAS_PIXELS), np.uint8)
    for page, character in zip(pages, CLASSES):
        image = Image.new("L", (3 * GLYPH_PIXELS, 3 * GLYPH_PIXELS))
        ImageDraw.Draw(image).text(
            (GLYPH_PIXELS, GLYPH_PIXELS), character, fill=255, font=pen, stroke_width=stroke
        )
        box = image.crop(image.getbbox())
        # As in EMNIST: the longer side fills the box, the other keeps its proportion, both are centered.
        scale = GLYPH_PIXELS / max(box.size)
        width = max(1, round(box.width * scale))
        height = max(1, round(box.height * scale))
        x = (CANVAS_PIXELS - width) // 2
        y = (CANVAS_PIXELS - height) // 2
        page[y : y + height, x : x + width] = np.asarray(box.resize((width, height)))
    return torch.from_numpy(pages)
