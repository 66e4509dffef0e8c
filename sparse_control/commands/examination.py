"""`doctor --model`: what of a model can be measured exactly here, and what a record of it costs."""

import resource
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sparse_control.errors import InputError, UnsupportedModel
from sparse_control.jacobian import exact_jacobian
from sparse_control.jacobian.preflight import check_derivatives
from sparse_control.models import LanguageModel, load_model
from sparse_control.models.sites import COMPONENTS, Site, add_at_sites, all_sites, capture_sites, site_width
from sparse_control.models.suffix import Suffixes, read_suffixes, run_unpatched, suffix_logits
from sparse_control.stages.resolve import resolved
from sparse_control.threads import pin_threads

if TYPE_CHECKING:
    from sparse_control.settings import Settings

N_TOKENS = 12  # of the prompt that sites are examined on
SPOKEN = {  # what is timed
    "load": "loading",
    "corpus_prompt": "a corpus prompt of stage A",
    "six_axis_record": "the first six-axis record, at most",
}


@dataclass(frozen=True)
class Check:
    """One check of a model; `needed_for` names what does not work where it fails."""

    name: str
    needed_for: str
    ok: bool
    detail: str


def examine(settings: "Settings", progress: Callable[[str], None]) -> dict[str, Any]:
    """Load a model and hold what is measured of it against the model itself.

    Loading is the self-check: stream, decode step, a Jacobian row, heads, rerun suffix and MLP sites.

    Args:
        settings: model, dtype, threads, layers and protocol.
        progress: called with a line now and then.

    Returns:
        model, identity, layers, width, heads, dtype, device, threads; checks (name, needed_for, ok, detail); seconds
        (load, corpus_prompt, six_axis_record; None with a note); megabytes (weights, peak); notes.

    Raises:
        InputError: the model is not there, or is of a kind that cannot be read (`UnsupportedModel`).
    """
    pin_threads(settings.threads)
    progress(f"loading {settings.model} ...")
    start = time.perf_counter()
    lm = load_model(settings.model, dtype=settings.dtype)
    seconds: dict[str, float | None] = {"load": time.perf_counter() - start}
    notes = list(_notes(lm, settings))
    progress("checking derivatives and sites ...")
    checks = [Check("self-check", "everything", True, "stream, decode step, heads, suffix and sites are the model's")]
    checks += _derivatives(lm, settings, notes)
    checks += _sites(lm)
    progress("timing ...")
    seconds["corpus_prompt"] = _noted(lambda: _corpus_prompt(lm, settings), "a corpus prompt", notes)
    seconds["six_axis_record"] = _noted(lambda: _record(lm, settings), "a six-axis record", notes)
    return {
        "model": lm.name,
        "identity": lm.identity.sha256,
        "layers": lm.n_layers,
        "width": lm.width,
        "heads": lm.n_heads,
        "dtype": settings.dtype,
        "device": str(lm.device),
        "threads": settings.threads,
        "checks": [asdict(check) for check in checks],
        "seconds": seconds,
        "megabytes": {"weights": sum(p.nbytes for p in lm.model.parameters()) / 1e6, "peak": _peak_megabytes()},
        "notes": notes,
    }


def told(found: dict[str, Any]) -> list[str]:
    """What `examine` gives, as lines for a person."""
    lines = [f"{found['model']}: {found['layers']} layers of width {found['width']}, {found['heads']} heads, "
             f"{found['dtype']} on {found['device']}, {found['threads']} threads"]  # fmt: skip
    for check in found["checks"]:
        state = "ok" if check["ok"] else "FAIL"
        lines.append(f"{state:6}{check['name']}: {check['detail']}")
    for name, value in found["seconds"].items():
        lines.append(f"time  {SPOKEN[name]}: " + ("not known" if value is None else f"{value:.3g} s"))
    weights, peak = found["megabytes"]["weights"], found["megabytes"]["peak"]
    lines.append(f"memory: {weights:.0f} MB of weights, {peak:.0f} MB at most until here")
    lines += [f"note  {note}" for note in found["notes"]]
    failed = sorted({check["needed_for"] for check in found["checks"] if not check["ok"]})
    lines.append(f"will not work: {', '.join(failed)}" if failed else "official ISS and six axes will work")
    return lines


def _notes(lm: LanguageModel, settings: "Settings") -> Iterator[str]:
    try:
        resolved(settings)
    except InputError as error:
        yield f"official ISS needs other settings: {error}"
    if (limit := lm.prompt_limit) is not None:
        yield f"prompts of up to {limit.tokens} tokens, the {limit.reason}"
    if getattr(lm.tokenizer, "chat_template", None) is None:
        yield "no chat template: tasks of chat prompts (refusal) are not supported"


def _ids(lm: LanguageModel, length: int) -> Tensor:
    """(T,) token ids without a meaning, as many as asked for and as the model reads."""
    length = length if lm.prompt_limit is None else min(length, lm.prompt_limit.tokens)
    return torch.arange(1, length + 1, device=lm.device) * 7919 % lm.vocabulary


def _derivatives(lm: LanguageModel, settings: "Settings", notes: list[str]) -> Iterator[Check]:
    """Forward mode against reverse mode at every layer: `<v, J u> = <J^T v, u>`."""
    ids = _ids(lm, settings.corpus.sequence_length)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            check_derivatives(lm, ids, range(lm.n_layers))
            ok, detail = True, f"forward and reverse derivatives are adjoint at all {lm.n_layers} layers"
        except UnsupportedModel as error:
            ok, detail = False, str(error)
    notes += dict.fromkeys(str(warning.message) for warning in caught if issubclass(warning.category, UserWarning))
    yield Check("Jacobian", "official ISS", ok, detail)


@torch.no_grad()
def _sites(lm: LanguageModel) -> Iterator[Check]:
    """A patch of dose 0 at all sites changes no bit; every site, patched alone, changes the logits."""
    ids = _ids(lm, N_TOKENS)[None]
    sites = all_sites(lm, COMPONENTS)
    states = capture_sites(lm, ids, sites)
    plain = lm.model(input_ids=ids, use_cache=False).logits
    with add_at_sites(lm, {site: torch.zeros_like(states[site]) for site in sites}, length=ids.shape[1]):
        same = torch.equal(lm.model(input_ids=ids, use_cache=False).logits, plain)
    told = f"a patch of zeros at all {len(sites)} sites " + ("changes no bit" if same else "changes the logits")
    yield Check("dose 0", "six axes", same, told)

    suffixes, _ = run_unpatched(lm, read_suffixes(lm, list(ids), 1))
    dead = [site for layer in range(lm.n_layers) for site in _dead(lm, suffixes, states, layer)]
    for component in COMPONENTS:
        own = [site for site in sites if site.component == component]
        silent = [site.name for site in dead if site.component == component]
        detail = f"{len(own) - len(silent)} of {len(own)} change the logits when they are patched"
        if silent:
            detail += f"; not {', '.join(silent[:5])}" + (f" and {len(silent) - 5} more" if len(silent) > 5 else "")
        yield Check(f"sites: {component}", "six axes", not silent, detail)


def _dead(lm: LanguageModel, suffixes: Suffixes, states: dict[Site, Tensor], layer: int) -> Iterator[Site]:
    """The sites of a layer that move nothing: each is pushed in a row of its own, by as much as it holds.

    One more row is left as it is: a batch of another size rounds otherwise, and so would seem to be moved.
    """
    own = [site for site in states if site.layer == layer]
    pushes = {}
    for row, site in enumerate(own):
        pushes[site] = torch.zeros(len(own) + 1, site_width(lm, site), dtype=lm.model.dtype, device=lm.device)
        push = states[site][0].roll(1)
        pushes[site][row] = push if push.any() else 1.0
    with add_at_sites(lm, pushes, length=1):
        *moved, plain = suffix_logits(lm, suffixes, len(own) + 1, first=layer)[0].double()
    # rows of one product may be rounded in two orders; in the narrow dtypes that is below their own rounding
    rounding = 4 * torch.finfo(lm.model.dtype).eps if lm.model.dtype in (torch.float32, torch.float64) else 0.0
    for site, logits in zip(own, moved, strict=True):
        if (logits - plain).abs().max() <= rounding * plain.abs().max():
            yield site


# --- time and memory ------------------------------------------------------------------------------------------------


def _noted(measure: Callable[[], float], what: str, notes: list[str]) -> float | None:
    """Seconds; None with a note where it cannot be measured."""
    try:
        return measure()
    except ValueError as error:
        notes.append(f"{what} was not timed: {error}")
        return None


def _corpus_prompt(lm: LanguageModel, settings: "Settings") -> float:
    """Exact Jacobians of one prompt of a corpus at the layers of the settings, as stage A takes them."""
    ids = _ids(lm, settings.corpus.sequence_length)
    layers = resolved(settings, ()).iss.layers
    start = time.perf_counter()
    exact_jacobian(lm, ids, layers)
    if lm.device.type == "cuda":
        torch.cuda.synchronize(lm.device)
    return time.perf_counter() - start


def _record(lm: LanguageModel, settings: "Settings") -> float:
    """The first record of the first task that the model supports, with what records share; as the dry run has it."""
    from sparse_control.protocol.grid import restricted
    from sparse_control.protocol.panels import PanelSources, build_pairs, off_target_panel
    from sparse_control.protocol.work import build_all_pairs, measured_rates, planned

    sources = PanelSources(None, None)

    def build(task: str, encoder: LanguageModel, split: str, n: int, seed: int) -> Any:
        return build_pairs(task, encoder, split, n, seed, sources)

    for task in settings.protocol.tasks:
        first = {"selectors": settings.protocol.selectors[:1], "conditions": settings.protocol.conditions[:1]}
        protocol = restricted(settings, tasks=[task], seeds=settings.protocol.seeds[:1], **first).protocol
        pairs = build_all_pairs(lm, protocol, build)
        for splits in pairs.values():
            if splits is not None:
                rates = measured_rates(lm, protocol, splits["fit"])
                items = planned(lm, protocol, pairs, off_target_panel(sources=sources))
                return sum(rates.seconds(item.work) for item in items)
    raise InputError("none of the tasks is supported by this model")


def _peak_megabytes() -> float:
    """Most memory that this process has had, and what the device has had beside it."""
    unit = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss, bytes there
    device = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit + device) / 1e6
