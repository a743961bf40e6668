"""Vision transformer (Dosovitskiy et al. 2021) for small images."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unalike._utils.errors import UnalikeError
from unalike.models import check
from unalike.models.registry import registry


class Attention(nn.Module):
    """Multi-head self-attention: softmax(q k^T / sqrt(d)) v for each head, with d = width / heads."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, width] from [B, T, width]."""
        qkv = self.qkv(x).unflatten(-1, (3, self.heads, -1))  # [B, T, 3, heads, d]
        q, k, v = qkv.movedim(-3, 0).transpose(-3, -2)  # each [B, heads, T, d]
        scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
        values = scores.softmax(-1) @ v
        return self.out(values.transpose(-3, -2).flatten(-2))


class TransformerBlock(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)) with one hidden layer of 4 * width units and GELU."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 4 * width)
        self.contract = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, width] from [B, T, width]."""
        x = x + self.attention(self.norm1(x))
        inner = F.gelu(self.expand(self.norm2(x)))
        return x + self.contract(inner)


@registry.register("vit")
class ViT(nn.Module):
    """ViT-Tiny on 4x4 patches: 5,362,762 parameters for 3x32x32 images and 10 classes.

    Patches and a class token with learned positions, `depth` pre-norm blocks, the head on the class token. It has no batch
    normalization and no buffers.

    Source: Touvron et al. 2021.
    Input: float32 [B, channels, height, width], sides divisible by `patch`.
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        classes: int | None,
        *,
        patch: int = 4,
        width: int = 192,
        depth: int = 12,
        heads: int = 3,
    ):
        super().__init__()
        channels, height, wide = check.images("vit", input_shape)
        check.widths("vit", "patch, width, depth and heads", (patch, width, depth, heads))
        if height % patch or wide % patch:
            raise UnalikeError(
                f"vit: images of {height}x{wide} pixels do not divide into patches "
                f"of patch={patch}; choose a patch that divides both sides"
            )
        if width % heads:
            raise UnalikeError(
                f"vit: width={width} does not divide among heads={heads}; choose "
                "heads that divide it"
            )
        self.patches = nn.Conv2d(channels, width, patch, patch)
        # A position for each patch, and one for the class token in front of them.
        patches = (height // patch) * (wide // patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.empty(1, 1 + patches, width))
        blocks = [TransformerBlock(width, heads) for _ in range(depth)]
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes or 1)
        self._init()

    def _init(self) -> None:
        nn.init.trunc_normal_(self.positions, std=0.02)
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.trunc_normal_(layer.weight, std=0.02)
                nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.patches(x).flatten(-2).transpose(-2, -1)
        token = self.token.expand(patches.shape[0], -1, -1)
        x = self.blocks(torch.cat([token, patches], 1) + self.positions)
        return self.head(self.norm(x[:, 0]))
