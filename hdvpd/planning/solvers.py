"""Solvers: which candidates to try next, given what the tried ones cost.

All search a box of normalised decision variables, [-1, 1]^d, by rounds of `ask` and `tell`. A
solver is a value; what it has learned so far is its `Search`, so that a plan can be warm-started.
"""

import dataclasses
from abc import abstractmethod
from dataclasses import dataclass

import numpy as np

from hdvpd.basics.types import Float
from hdvpd.config.settings import Count, DecayRate, Positive, Settings, require
from hdvpd.planning.limits import Amount, AmountOrZero, Share


@dataclass(frozen=True)
class Search:
    """What is known of good candidates.

    Attributes:
      mean: centre of the next candidates, axes (knots, variables).
      std: their spread, alike.
      elites: good candidates of the last round, tried again by solvers that keep some.
    """

    mean: Float[np.ndarray, "q d"]
    std: Float[np.ndarray, "q d"]
    elites: Float[np.ndarray, "e q d"]

    def shifted(self, knots: int, std: float) -> "Search":
        """Return the warm start of the next plan: `knots` are done, the last one is repeated.

        Raises:
          UserError: `knots` or `std` are negative.
        """
        require(knots >= 0, "knots", knots, "use how many are done, 0 or more")
        require(0 <= std < np.inf, "std", std, "use a spread that is 0 or more, and finite")

        def shift(x: np.ndarray) -> np.ndarray:
            last = np.repeat(x[..., -1:, :], min(knots, x.shape[-2]), axis=-2)
            return np.concatenate([x[..., knots:, :], last], axis=-2)

        spread = np.maximum(shift(self.std), std)
        return Search(shift(self.mean), spread, shift(self.elites))


@dataclass(frozen=True)
class AbstractSolver(Settings):
    """Search by sampling.

    Attributes:
      num_samples: candidates per round.
      init_std: spread of the first round's, in normalised units.
    """

    num_samples: Count = 32
    init_std: Amount = 0.5

    def start(self, knots: int, variables: int) -> Search:
        """Return the search before the first round: centred, as wide as `init_std`."""
        shape = (knots, variables)
        return Search(np.zeros(shape), np.full(shape, self.init_std), np.zeros((0, *shape)))

    def ask(self, search: Search, rng: np.random.Generator) -> Float[np.ndarray, "k q d"]:
        """Draw candidates within the box; their first is the centre of the search itself.

        Here they are of the search's Gaussian, clipped.
        """
        return _clipped(search, rng.standard_normal((self.num_samples, *search.mean.shape)))

    @abstractmethod
    def tell(
        self,
        search: Search,
        candidates: Float[np.ndarray, "k q d"],
        costs: Float[np.ndarray, "k"],
    ) -> Search:
        """Learn from what candidates cost."""


def _clipped(search: Search, noise: Float[np.ndarray, "k q d"]) -> Float[np.ndarray, "k q d"]:
    candidates = search.mean[None] + search.std[None] * noise
    candidates[0] = search.mean
    return np.clip(candidates, -1, 1)


@dataclass(frozen=True)
class RandomShooting(AbstractSolver):
    """Candidates uniform over the box in every round; the best one counts."""

    def ask(self, search: Search, rng: np.random.Generator) -> Float[np.ndarray, "k q d"]:
        """Draw uniformly."""
        candidates = rng.uniform(-1, 1, (self.num_samples, *search.mean.shape))
        candidates[0] = search.mean
        return candidates

    def tell(
        self,
        search: Search,
        candidates: Float[np.ndarray, "k q d"],
        costs: Float[np.ndarray, "k"],
    ) -> Search:
        """Keep the best; the next round is drawn like this one."""
        return dataclasses.replace(search, mean=candidates[int(np.argmin(costs))])


@dataclass(frozen=True)
class CEM(AbstractSolver):
    """Cross-entropy method (Rubinstein, 1999): a Gaussian fitted to the elites.

    Attributes:
      num_elites: best candidates that the next round is fitted to; all where fewer are drawn.
      min_std: least spread.
      momentum: share of the old mean and spread in the new ones.
    """

    num_elites: Count = 6
    min_std: AmountOrZero = 0.05
    momentum: DecayRate = 0.1

    def tell(
        self,
        search: Search,
        candidates: Float[np.ndarray, "k q d"],
        costs: Float[np.ndarray, "k"],
    ) -> Search:
        """Fit mean and spread to the elites."""
        elites = candidates[np.argsort(costs, kind="stable")[: self.num_elites]]
        old, new = self.momentum, 1 - self.momentum
        return Search(
            mean=old * search.mean + new * elites.mean(0),
            std=np.maximum(old * search.std + new * elites.std(0), self.min_std),
            elites=elites,
        )


@dataclass(frozen=True)
class ICEM(CEM):
    """Improved CEM (Pinneri et al., 2020, arXiv 2008.06389): coloured noise, elites tried again.

    Attributes:
      noise_beta: exponent of the noise's spectrum over the knots, 1/f^beta; 0 is white.
      keep_fraction: share of the elites that are candidates of the next round.
    """

    noise_beta: AmountOrZero = 2.0
    keep_fraction: Share = 0.3

    def ask(self, search: Search, rng: np.random.Generator) -> Float[np.ndarray, "k q d"]:
        """Draw smooth deviations, and some of the last elites."""
        knots, variables = search.mean.shape
        noise = coloured_noise((self.num_samples, variables), knots, self.noise_beta, rng)
        candidates = _clipped(search, np.moveaxis(noise, -1, 1))
        kept = search.elites[: round(self.keep_fraction * len(search.elites))]
        kept = kept[: self.num_samples - 1]
        candidates[1 : 1 + len(kept)] = kept
        return candidates


@dataclass(frozen=True)
class MPPI(AbstractSolver):
    """Model-predictive path integral control (Williams et al., 2017, arXiv 1509.01149).

    Attributes:
      temperature: of the weights exp(-(cost - best) / (temperature spread)), where spread is the
        standard deviation of the round's costs, so that costs of any unit do.
    """

    temperature: Positive = 0.3

    def tell(
        self,
        search: Search,
        candidates: Float[np.ndarray, "k q d"],
        costs: Float[np.ndarray, "k"],
    ) -> Search:
        """Move the mean to the candidates' weighted one; without a finite cost it stays."""
        known = np.isfinite(costs)
        if not known.any():
            return search
        best, spread = costs[known].min(), np.std(costs[known]) + 1e-12
        above = np.where(known, costs, np.inf) - best
        weights = np.exp(-above / (self.temperature * spread))
        weights /= weights.sum()
        return dataclasses.replace(search, mean=np.einsum("k,kqd->qd", weights, candidates))


SOLVERS: dict[str, type[AbstractSolver]] = {
    "random": RandomShooting,
    "cem": CEM,
    "icem": ICEM,
    "mppi": MPPI,
}
"""Solvers by the name that commands take."""


def coloured_noise(
    shape: tuple[int, ...], length: int, beta: float, rng: np.random.Generator
) -> Float[np.ndarray, "*batch length"]:
    """Draw Gaussian sequences of variance 1 whose spectrum falls as 1 / frequency^beta.

    The lowest frequency of the sequence bounds the spectrum (Timmer and Koenig, 1995).

    Args:
      shape: leading axes.
      length: of each sequence.
      beta: exponent; 0 is white noise.
      rng: draws.
    """
    padded = 2 * length  # a sequence and its continuation, so that ends are not alike
    frequency = np.maximum(np.fft.rfftfreq(padded), 1 / padded)
    scale = frequency ** (-beta / 2)
    spectrum = rng.standard_normal((*shape, len(scale))) + 1j * rng.standard_normal(
        (*shape, len(scale))
    )
    spectrum[..., 0] = spectrum[..., 0].real * np.sqrt(2)
    spectrum[..., -1] = spectrum[..., -1].real * np.sqrt(2)
    weight = np.full(len(scale), 2.0)
    weight[[0, -1]] = 1.0
    variance = 2 * np.sum(weight * scale**2) / padded**2
    return np.fft.irfft(spectrum * scale, padded)[..., :length] / np.sqrt(variance)
