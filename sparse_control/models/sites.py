"""Sites: their names, which modules have them, reading them and adding to them."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from sparse_control.arguments import choice, whole_number
from sparse_control.models.hooks import Forward, hooking
from sparse_control.models.language_model import LanguageModel
from sparse_control.models.stream import check_no_autocast

COMPONENTS = ("head", "mlp", "resid")
MOST = 2**31 - 1  # layers, heads and positions
_NAME = re.compile(r"L(\d+)\.(head\.(\d+)|mlp|resid)@(-?\d+)")


@dataclass(frozen=True, order=True)
class Site:
    """Where an intervention can act.

    Attributes:
        component: `head`, a head's slice of the attention output projection's input, whatever the block makes of the
            projected sum afterwards, such as a norm; `mlp`, what the MLP adds to the residual stream, after the norm
            or the factor that some architectures have there; `resid`, the block's output, which is h^(layer+1).
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


def _index(site: Site, length: int) -> int:
    if not -length <= site.position < length:
        raise ValueError(f"site {site.name}: position {site.position} is outside a prompt of {length} tokens")
    return site.position % length


# --- hooks ----------------------------------------------------------------------------------------------------------


def _module(lm: LanguageModel, site: Site) -> nn.Module:
    layout = lm.layout
    by_component = {"head": layout.attention_outputs, "mlp": layout.mlp_outputs, "resid": layout.blocks}
    return by_component[site.component][site.layer]


def _columns(lm: LanguageModel, site: Site) -> slice:
    """Those of a site's activation among what its module takes in or gives out."""
    if site.component != "head":
        return slice(None)
    return slice(site.head * lm.head_dim, (site.head + 1) * lm.head_dim)


def _factor(lm: LanguageModel, site: Site) -> float:
    """A site's activation over what its module gives out."""
    return lm.layout.mlp_factors[site.layer] if site.component == "mlp" else 1.0


@contextmanager
def _acting_at(
    lm: LanguageModel,
    sites: Sequence[Site],
    act: Callable[[Tensor, list[Site]], Tensor | None],
    begin: Callable[[Forward], None],
) -> Iterator[None]:
    """Call `act(what the module has, its sites)` at each module; a tensor it returns replaces what the module has."""
    inputs: dict[nn.Module, list[Site]] = {}
    outputs: dict[nn.Module, list[Site]] = {}
    for site in sites:
        check_site(lm, site)
        modules = inputs if site.component == "head" else outputs  # heads are in the projection's input
        modules.setdefault(_module(lm, site), []).append(site)

    def bound(modules: dict[nn.Module, list[Site]]) -> dict[nn.Module, Callable[[Tensor], Tensor | None]]:
        return {module: partial(act, sites=here) for module, here in modules.items()}

    with hooking(lm, bound(inputs), bound(outputs), begin):
        yield


Addition = Tensor | Callable[[Tensor], Tensor]  # to an activation; a function has the activation (B, site width)


@contextmanager
def adding(
    lm: LanguageModel, additions: Mapping[Site, Addition], locate: Callable[[Forward], Mapping[Site, int]]
) -> Iterator[None]:
    """Add a vector to the activation at each site in every forward, where the forward has the site.

    Everything is resolved and checked before the first hook is registered. Activations are never changed in place.

    Args:
        lm: the model.
        additions: per site (site width,) or (B, site width), or what gives it from the activation there.
        locate: a forward -> index among its tokens, of each site that it has.

    Raises:
        ValueError: a site outside the model, or a vector of another width.
        InputError, UnsupportedModel: as `hooking`.
    """
    for site, vector in additions.items():
        check_site(lm, site)
        if isinstance(vector, Tensor) and vector.shape[-1] != site_width(lm, site):
            raise ValueError(
                f"site {site.name}: direction has width {vector.shape[-1]}, the site has {site_width(lm, site)}"
            )
    located: dict[Site, int] = {}

    def begin(forward: Forward) -> None:
        located.clear()
        located.update(locate(forward))

    def add(activation: Tensor, sites: list[Site]) -> Tensor | None:
        here = [site for site in sites if site in located]
        if not here:
            return None
        added = activation.clone()
        for site in here:
            vector, factor, columns = additions[site], _factor(lm, site), _columns(lm, site)
            if not isinstance(vector, Tensor):
                own = activation[:, located[site], columns]
                vector = vector(own if factor == 1 else own * factor)
            vector = vector if factor == 1 else vector / factor
            added[:, located[site], columns] += vector.to(activation)
        return added

    with _acting_at(lm, list(additions), add, begin):
        yield


@contextmanager
def add_at_sites(lm: LanguageModel, additions: Mapping[Site, Addition], length: int) -> Iterator[None]:
    """Add a vector to the activation at each site in every forward, each of `length` tokens.

    Args:
        lm: the model.
        additions: as in `adding`.
        length: tokens of a forward; negative positions count from its end.

    Raises:
        ValueError: as `adding`, a site outside the forward, or a forward of another length.
        InputError, UnsupportedModel: as `hooking`.
    """
    located = {site: _index(site, length) for site in additions}

    def locate(forward: Forward) -> Mapping[Site, int]:
        if forward.length != length:
            raise ValueError(f"the patch is for forwards of {length} tokens, got one of {forward.length}")
        return located

    with adding(lm, additions, locate):
        yield


@contextmanager
def capturing_sites(lm: LanguageModel, sites: Sequence[Site]) -> Iterator[dict[Site, Tensor]]:
    """Read the activations (B, T, site width) of the last forward at each site, whatever its position."""
    captured: dict[Site, Tensor] = {}

    def read(activation: Tensor, sites: list[Site]) -> None:
        for site in sites:
            own, factor = activation[..., _columns(lm, site)].detach().clone(), _factor(lm, site)
            captured[site] = own if factor == 1 else own * factor

    with _acting_at(lm, sites, read, lambda forward: None):
        yield captured


@torch.no_grad()
def capture_sites(lm: LanguageModel, input_ids: Tensor, sites: Sequence[Site]) -> dict[Site, Tensor]:
    """Unpatched activations (B, site width) at each site's position, from one full forward of (B, T) equal lengths.

    Raises:
        ValueError: a site outside the model or the prompt.
        UnsupportedModel: under autocast.
    """
    check_no_autocast(lm)
    length = input_ids.shape[1]
    lm.check_length(length)
    at = {site: _index(site, length) for site in sites}
    with capturing_sites(lm, sites) as captured:
        lm.model(input_ids=input_ids, use_cache=False)
    return {site: captured[site][:, at[site]] for site in sites}
