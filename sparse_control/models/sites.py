"""Sites: their names, where they stand in a model, reading them and adding to them."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sparse_control.arguments import choice, whole_number
from sparse_control.models.language_model import LanguageModel

COMPONENTS = ("head", "mlp", "resid")
MOST = 2**31 - 1  # layers, heads and positions
_NAME = re.compile(r"L(\d+)\.(head\.(\d+)|mlp|resid)@(-?\d+)")


@dataclass(frozen=True, order=True)
class Site:
    """One place an intervention can act.

    Attributes:
        component: `head`, a slice of the attention output projection's input; `mlp`, the MLP's output;
            `resid`, the block's output, which is h^(layer+1) of the residual stream.
        layer: block index, 0..L-1.
        head: head index for `head`, else None.
        position: token position; negative counts from the end of the prompt.

    Raises:
        ValueError: unknown component, or a head index where none belongs, or none where one does.
    """

    component: str
    layer: int
    head: int | None = None
    position: int = -1

    def __post_init__(self) -> None:
        choice("component", self.component, COMPONENTS)
        for name, value, low in (("layer", self.layer, 0), ("position", self.position, -MOST), ("head", self.head, 0)):
            if name != "head" or value is not None:
                object.__setattr__(self, name, whole_number(name, value, low, MOST))
        if (self.head is None) == (self.component == "head"):
            raise ValueError(f"head must be given for component 'head' and for no other, got {self.head!r}")

    @property
    def name(self) -> str:
        """For example `L05.head.3@-1`, `L05.mlp@-1`, `L05.resid@4`."""
        part = f"head.{self.head}" if self.component == "head" else self.component
        return f"L{self.layer:02d}.{part}@{self.position}"


def parse_site(name: str) -> Site:
    """The site of a name.

    Raises:
        ValueError: the name is not of the form `L05.head.3@-1`, `L05.mlp@-1` or `L05.resid@-1`.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise ValueError(f"unknown site {name!r}; sites are named like L05.head.3@-1, L05.mlp@-1, L05.resid@-1")
    layer, part, head, position = match.groups()
    if head is None:
        return Site(part, int(layer), position=int(position))
    return Site("head", int(layer), int(head), int(position))


def check_site(lm: LanguageModel, site: Site) -> None:
    """Refuse a site outside the model.

    Raises:
        ValueError: layer or head out of range.
    """
    if not 0 <= site.layer < lm.n_layers:
        raise ValueError(f"site {site.name}: layer {site.layer} is outside 0..{lm.n_layers - 1} of {lm.name}")
    if site.head is not None and not 0 <= site.head < lm.n_heads:
        raise ValueError(f"site {site.name}: head {site.head} is outside 0..{lm.n_heads - 1} of {lm.name}")


def site_width(lm: LanguageModel, site: Site) -> int:
    """Number of components of a site's activation: head_dim for a head, the model width else."""
    return lm.head_dim if site.component == "head" else lm.width


def all_sites(lm: LanguageModel, components: Sequence[str] = ("head", "mlp"), position: int = -1) -> tuple[Site, ...]:
    """Every site of the given components, layer by layer; within a layer heads, then mlp, then resid."""
    sites = []
    for layer in range(lm.n_layers):
        if "head" in components:
            sites += [Site("head", layer, head, position) for head in range(lm.n_heads)]
        sites += [Site(component, layer, None, position) for component in ("mlp", "resid") if component in components]
    return tuple(sites)


def _module(lm: LanguageModel, site: Site) -> nn.Module:
    layout = lm.layout
    return {"head": layout.attention_outputs, "mlp": layout.mlps, "resid": layout.blocks}[site.component][site.layer]


def _columns(lm: LanguageModel, site: Site) -> slice:
    if site.component != "head":
        return slice(None)
    return slice(site.head * lm.head_dim, (site.head + 1) * lm.head_dim)


def _index(site: Site, length: int) -> int:
    if not -length <= site.position < length:
        raise ValueError(f"site {site.name}: position {site.position} is outside a prompt of {length} tokens")
    return site.position % length


def _by_module(lm: LanguageModel, sites: Sequence[Site]) -> dict[nn.Module, list[Site]]:
    grouped: dict[nn.Module, list[Site]] = {}
    for site in sites:
        check_site(lm, site)
        grouped.setdefault(_module(lm, site), []).append(site)
    return grouped


@contextmanager
def _acting_at(
    grouped: Mapping[nn.Module, list[Site]], act: Callable[[Tensor, list[Site]], Tensor | None]
) -> Iterator[None]:
    """Call `act(activation, sites)` at each module's sites; a tensor it returns takes the activation's place."""

    def before(sites: list[Site]):
        def hook(_module: nn.Module, args: tuple) -> tuple | None:
            changed = act(args[0], sites)
            return None if changed is None else (changed, *args[1:])

        return hook

    def after(sites: list[Site]):
        def hook(_module: nn.Module, _args: tuple, output: Tensor | tuple) -> Tensor | tuple | None:
            first, *rest = output if isinstance(output, tuple) else (output,)
            changed = act(first, sites)
            return (changed, *rest) if changed is not None and isinstance(output, tuple) else changed

        return hook

    with ExitStack() as stack:
        for module, sites in grouped.items():
            if sites[0].component == "head":  # heads stand in the input of the projection, the others in outputs
                handle = module.register_forward_pre_hook(before(sites))
            else:
                handle = module.register_forward_hook(after(sites))
            stack.callback(handle.remove)
        yield


@contextmanager
def add_at_sites(lm: LanguageModel, additions: Mapping[Site, Tensor], length: int) -> Iterator[None]:
    """Add a vector to the activation at each site in every forward of `length` tokens.

    Forwards of another length pass untouched. Everything is resolved and checked before the first hook
    is registered; own hooks alone are removed, on any exit. Activations are never changed in place.

    Args:
        additions: per site (site width,) or (B, site width).
        length: tokens of the patched forward; negative positions count from its end.

    Raises:
        ValueError: a site outside the model or the prompt, or a vector of another width.
    """
    grouped = _by_module(lm, list(additions))
    for site, vector in additions.items():
        _index(site, length)
        if vector.shape[-1] != site_width(lm, site):
            raise ValueError(
                f"site {site.name}: direction has width {vector.shape[-1]}, the site has {site_width(lm, site)}"
            )

    def patch(activation: Tensor, sites: list[Site]) -> Tensor:
        if activation.shape[1] != length:
            return activation
        patched = activation.clone()
        for site in sites:
            patched[:, _index(site, length), _columns(lm, site)] += additions[site].to(activation)
        return patched

    with _acting_at(grouped, patch):
        yield


@contextmanager
def capturing_sites(lm: LanguageModel, sites: Sequence[Site]) -> Iterator[dict[Site, Tensor]]:
    """Read the activations (B, T, site width) of the last forward at each site, whatever its position."""
    captured: dict[Site, Tensor] = {}

    def read(activation: Tensor, sites_here: list[Site]) -> None:
        for site in sites_here:
            captured[site] = activation[..., _columns(lm, site)].detach().clone()

    with _acting_at(_by_module(lm, sites), read):
        yield captured


@torch.no_grad()
def capture_sites(lm: LanguageModel, input_ids: Tensor, sites: Sequence[Site]) -> dict[Site, Tensor]:
    """Unpatched activations (B, site width) at each site's position, from one full forward of (B, T) equal lengths.

    Raises:
        ValueError: a site outside the model or the prompt.
    """
    length = input_ids.shape[1]
    lm.check_length(length)
    at = {site: _index(site, length) for site in sites}
    with capturing_sites(lm, sites) as captured:
        lm.model(input_ids=input_ids, use_cache=False)
    return {site: captured[site][:, at[site]] for site in sites}
