"""Low-rank adapters for the linear layers of a module."""

from fnmatch import fnmatchcase

from torch import Tensor, nn

from unalike._utils.errors import UnalikeError
from unalike._utils.seeds import isolated
from unalike.core.head_layer import find_head


class LowRank(nn.Module):
    """W x + b + (alpha / rank) B A x, with B = 0 at first, so that nothing changes (LoRA, Hu et al. 2022).

    Parameters have the names that the library peft gives them: `base_layer.weight`, `lora_A.weight` and `lora_B.weight`. A is drawn
    from N(0, 1 / inputs).

    Shapes:
        lora_A.weight [rank, inputs], lora_B.weight [outputs, rank].
    """

    def __init__(self, layer: nn.Linear, rank: int, alpha: float):
        super().__init__()
        self.base_layer = layer
        self.scaling = alpha / rank
        place = {"device": layer.weight.device, "dtype": layer.weight.dtype}
        self.lora_A = nn.Linear(layer.in_features, rank, bias=False, **place)
        self.lora_B = nn.Linear(rank, layer.out_features, bias=False, **place)
        nn.init.normal_(self.lora_A.weight, std=layer.in_features**-0.5)
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.base_layer(x) + self.scaling * self.lora_B(self.lora_A(x))


def low_rank(
    module: nn.Module,
    rank: int = 4,
    *,
    alpha: float = 8.0,
    layers: str = "*",
    frozen: bool = True,
    seed: int = 0,
) -> nn.Module:
    """Give linear layers of a module adapters `LowRank` and freeze all else but the head, in place.

    A run then trains and sends the adapters and the head alone. The plain average of clients' A and B is not the average of their
    products: see `fedex_lora`.

    Args:
        module: The module; its head gets no adapter.
        rank: Rank of the adapters.
        alpha: Scale; the product of an adapter counts alpha / rank times.
        layers: Pattern of the paths of layers, as of files: "*", "encoder.*", "*.qkv".
        frozen: Whether the weights beneath the adapters are frozen. False is for `fedex_lora`, under which the server moves them
            and no client trains them; other methods would train them.
        seed: Seed of the adapters, which has to be the same at all sites.

    Returns:
        The module.

    Raises:
        UnalikeError: No linear layer below the head has such a path, the module has adapters, or the rank is no positive integer.

    >>> net = low_rank(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)), rank=1)
    >>> [name for name, p in net.named_parameters() if p.requires_grad]
    ['0.lora_A.weight', '0.lora_B.weight', '2.weight', '2.bias']
    """
    if not isinstance(rank, int) or isinstance(rank, bool) or rank < 1:
        raise UnalikeError(f"low_rank: found rank={rank!r}, expected a positive integer")
    if any(isinstance(m, LowRank) for m in module.modules()):
        raise UnalikeError(
            "low_rank: found a module with adapters; expected one without: give all layers theirs in one call, by `layers`"
        )
    # Attention of PyTorch reads the weights of its own subclass of Linear past `forward`, so that an adapter would not act.
    _, head = find_head(module)
    paths = [path for path, m in module.named_modules() if type(m) is nn.Linear and m is not head]
    chosen = [path for path in paths if path and fnmatchcase(path, layers)]
    if not chosen:
        raise UnalikeError(
            f"low_rank: no linear layer below the head has a path like {layers!r}; "
            f"found {', '.join(paths) or 'none'}"
        )

    module.requires_grad_(False)
    if head is not None:
        head.requires_grad_(True)
    with isolated(seed):
        for path in chosen:
            layer = module.get_submodule(path)
            assert isinstance(layer, nn.Linear)
            layer.weight.requires_grad_(not frozen)
            parent, _, name = path.rpartition(".")
            setattr(module.get_submodule(parent), name, LowRank(layer, rank, alpha))
    return module
