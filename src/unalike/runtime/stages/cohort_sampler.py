"""The sampler of a stage: that of its method, or else the one that the accounting of privacy was told of."""

from unalike.core.privacy import ReleaseSampling
from unalike.methods.method import Method
from unalike.methods.parts.samplers import PoissonCohort, UniformCohort
from unalike.methods.sampler import Sampler


def sampler_of(method: Method, sampling: ReleaseSampling) -> Sampler:
    """The method's sampler; without one that of the run's option, whose draws the accounting is told as `sampling`."""
    if method.sampler is not None:
        return method.sampler
    if sampling.draw == "poisson":
        return PoissonCohort()
    return UniformCohort()
