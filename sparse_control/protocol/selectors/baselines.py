"""Baselines: directions of the residual stream that people steer with, chosen on the fitting split.

Each has one direction per layer from the fitting split's activations, and takes the layer and the strength at which the
patched readouts of that split come closest to their targets, by least squares over a fixed grid. Nothing is drawn, and
ties go to the earlier layer, then to the smaller strength. numpy alone, float64; scikit-learn fits the probe.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sparse_control.protocol.selectors.selection import Selection

STRENGTHS = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0)  # tried at every layer, those within the bound
PENALTY = 1.0  # C of the logistic regression, on activations in units of their root mean square

Respond = Callable[[Selection, Sequence[float]], np.ndarray]


@dataclass(frozen=True, kw_only=True, eq=False)
class Stream:
    """Pairs that a baseline works on.

    Attributes:
        source, target: (S, N, width) activations of the residual stream at S sites, in the order of layers.
        positions: (S,) token position of each site.
        y_source: (N,) readouts on the source inputs.
        gap: (N,) wanted change of the readouts.
        maximum_strength: bound on |strength|.
        respond: selection, doses (R,) -> readouts (N, R) on the source inputs under its patch.
        chosen: the selection whose strength is fitted anew (axis 6); None: there is none yet.
    """

    source: np.ndarray
    target: np.ndarray
    positions: tuple[int, ...]
    y_source: np.ndarray
    gap: np.ndarray
    maximum_strength: float
    respond: Respond
    chosen: Selection | None = None

    @property
    def contrasts(self) -> np.ndarray:
        """(S, N, width), target less source."""
        return self.target - self.source


def strengths_within(bound: float) -> tuple[float, ...]:
    """The strengths that are tried: those of the grid within the bound, or the bound where it is below all."""
    return tuple(each for each in STRENGTHS if each <= bound) or (bound,)


def mean_difference(contrasts: np.ndarray) -> np.ndarray:
    """The mean contrast (width,) of contrasts (N, width)."""
    return contrasts.mean(axis=0)


def principal_direction(contrasts: np.ndarray) -> np.ndarray:
    """First principal direction of contrasts (N, width), with the sign and the norm of their mean.

    Of the contrasts as they are: to centre them would take away the mean, which is what is looked for.
    """
    mean = mean_difference(contrasts)
    direction = np.linalg.svd(contrasts, full_matrices=False)[2][0]
    return direction * np.linalg.norm(mean) * (-1.0 if direction @ mean < 0 else 1.0)


def probe_direction(source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Weights of an L2 logistic regression of target against source (N, width), with the norm of the mean contrast.

    It minimises `||w||^2 / 2 + C sum log(1 + exp(-s (<w, x> + b)))` with s = +-1 and C = 1, where x is the activation
    less the mean of both sides, over its root mean square.
    """
    from sklearn.linear_model import LogisticRegression

    both = np.concatenate([source, target])
    centred = both - both.mean(axis=0)
    scale = np.sqrt((centred**2).sum(axis=1).mean())
    mean = mean_difference(target - source)
    if scale == 0:
        return mean
    sides = np.repeat([0, 1], len(source))
    fitted = LogisticRegression(C=PENALTY, tol=1e-8, max_iter=10_000).fit(centred / scale, sides)
    weights = fitted.coef_[0]
    norm = np.linalg.norm(weights)
    return weights / norm * np.linalg.norm(mean) if norm > 0 else mean


def diff_in_means(stream: Stream) -> Selection:
    """The mean contrast of one layer: contrastive activation addition.

    Turner et al. 2023, Steering Language Models With Activation Engineering; Rimsky et al. 2024, Steering Llama 2 via
    Contrastive Activation Addition; Marks & Tegmark 2023, The Geometry of Truth.
    """
    return _best(stream, [_at(site, mean_difference(each)) for site, each in enumerate(stream.contrasts)])


def pca(stream: Stream) -> Selection:
    """The first principal direction of the contrasts of one layer: the reading vector of representation engineering.

    Zou et al. 2023, Representation Engineering: A Top-Down Approach to AI Transparency.
    """
    return _best(stream, [_at(site, principal_direction(each)) for site, each in enumerate(stream.contrasts)])


def probe(stream: Stream) -> Selection:
    """The weights of a linear probe of one layer.

    Alain & Bengio 2016, Understanding Intermediate Layers Using Linear Classifier Probes; as a direction to steer with,
    Li et al. 2023, Inference-Time Intervention.
    """
    sides = zip(stream.source, stream.target, strict=True)
    return _best(stream, [_at(site, probe_direction(*each)) for site, each in enumerate(sides)])


def diff_in_means_all(stream: Stream) -> Selection:
    """The mean contrast of one layer, added at every layer, with one strength: a grid value over the number of layers.

    One direction for all layers as in Arditi et al. 2024, Refusal in Language Models Is Mediated by a Single Direction;
    one push at many layers as in Zou et al. 2023, Representation Engineering.
    """
    candidates = []
    for site, contrasts in enumerate(stream.contrasts):
        every = tuple(other for other, at in enumerate(stream.positions) if at == stream.positions[site])
        direction = mean_difference(contrasts)
        candidates.append(_selection(every, (1.0 / len(every),) * len(every), (direction,) * len(every)))
    return _best(stream, candidates)


def ablate(stream: Stream) -> Selection:
    """The projection on the mean contrast of one layer, removed and replaced by its mean on the target side.

    The strength is 1: dose 1 is the whole replacement, and other doses lie on the line through it. Marshall, Scherlis &
    Belrose 2024, Refusal in LLMs Is an Affine Function (affine concept editing); without the replacement it is the
    directional ablation of Arditi et al. 2024.
    """
    candidates = []
    for site, contrasts in enumerate(stream.contrasts):
        mean = mean_difference(contrasts)
        if norm := np.linalg.norm(mean):
            level = float((stream.target[site] @ (mean / norm)).mean())
            candidates.append(_selection((site,), (1.0,), (mean / norm,), (level,)))
    return _best(stream, candidates, strengths=(1.0,))


def refitted_strengths(stream: Stream) -> np.ndarray:
    """Strengths (k,) of a chosen baseline that fit other pairs best, with its layer and direction as they are."""
    chosen = stream.chosen
    if not chosen.support or chosen.levels is not None:  # a replacement has no strength of its own
        return np.array(chosen.strengths)
    unit = 1.0 if len(chosen.support) == 1 else 1.0 / len(chosen.support)
    bare = replace(chosen, strengths=(unit,) * len(chosen.support))
    return np.array(_best(stream, [bare]).strengths)


def _at(site: int, direction: np.ndarray) -> Selection:
    return _selection((site,), (1.0,), (direction,))


def _selection(
    support: tuple[int, ...],
    strengths: tuple[float, ...],
    directions: tuple[np.ndarray, ...],
    levels: tuple[float, ...] | None = None,
) -> Selection:
    return Selection(support, strengths, (), "grid", (), directions, levels)


def _best(stream: Stream, candidates: Sequence[Selection], strengths: Sequence[float] | None = None) -> Selection:
    """The candidate, and the multiple of its strengths, under which the readouts come closest to their targets."""
    strengths = strengths_within(stream.maximum_strength) if strengths is None else strengths
    total, best = float(stream.gap @ stream.gap), None
    for candidate in candidates:
        change = stream.respond(candidate, strengths) - stream.y_source[:, None]  # (N, R)
        left = ((stream.gap[:, None] - change) ** 2).sum(axis=0)
        index = int(np.argmin(left))
        if best is None or left[index] < best[0]:
            best = float(left[index]), candidate, strengths[index]
    if best is None:
        return Selection((), (), (), "candidates", (), ())
    left, chosen, strength = best
    path = (1.0 - left / total,) if total else ()
    return replace(chosen, strengths=tuple(strength * each for each in chosen.strengths), path=path)
