"""Semi-supervised methods as methods of the engine."""

from __future__ import annotations

from torch import Tensor, nn

from isda import ISDALoss
from isda.lab.engine.method import Method, Outcome
from isda.lab.methods.options import DIVERGENCE_HINT
from isda.lab.methods.semi import RampedWeight, SemiSupervised, create
from isda.lab.methods.semi.methods import ISDA_SUFFIX
from isda.lab.networks import Network
from isda.lab.tasks.semi_supervised.data import SemiBatch
from isda.lab.tasks.semi_supervised.settings import SemiConfig, isda_options


class SemiMethod(Method):
    """The paper's overall objective on labelled and unlabelled images.

    Args:
        objective: its terms.
        labelled: labelled images per step, over all processes together.
        unlabelled: unlabelled images per step.
    """

    divergence_hint = DIVERGENCE_HINT

    def __init__(self, objective: SemiSupervised, labelled: int, unlabelled: int) -> None:
        super().__init__()
        self.objective, self.labelled, self.unlabelled = objective, labelled, unlabelled

    def forward(self, network: nn.Module, batch: SemiBatch) -> Outcome:
        """The terms "labelled", and "consistency" and "regulariser" if the method has them."""
        terms, logits = self.objective(network, batch.images, batch.targets, batch.unlabelled)
        if batch.unlabelled is not None:
            terms = self._rebalanced(terms, len(batch.targets), len(batch.unlabelled.images))
        return Outcome(terms, logits)

    def measures(self) -> dict[str, float]:
        """ISDA's strength and the weights as they are now."""
        return self.objective.measures()

    def after_step(self, network: nn.Module) -> None:
        """Move the teacher and the ramps."""
        self.objective.after_step(network)

    def after_epoch(self) -> None:
        """Move the ensemble's targets."""
        self.objective.after_epoch()

    def evaluated(self, network: nn.Module) -> nn.Module:
        """The teacher if there is one."""
        return self.objective.evaluated(network)

    def _rebalanced(self, terms: dict[str, Tensor], labelled: int, unlabelled: int) -> dict[str, Tensor]:
        """The terms, scaled such that those of all processes together are means over the whole batch.

        The trainer weights a process by its share of the labelled images; its share of the unlabelled ones can differ
        by one image. With one process nothing changes.
        """
        shares = labelled / self.labelled, unlabelled / self.unlabelled
        if shares[0] == shares[1]:
            return terms
        factors = dict.fromkeys(terms, shares[1] / shares[0])
        factors["labelled"] = 1.0
        if self.objective.mean_over == "batch":
            own, overall = labelled / (labelled + unlabelled), self.labelled / (self.labelled + self.unlabelled)
            factors["labelled"] = overall / own
        return {name: factors[name] * term for name, term in terms.items()}


def create_method(config: SemiConfig, network: Network) -> SemiMethod:
    """The method of a configuration for a network that is not yet wrapped or compiled."""
    isda, options = isda_options(config.method_options)
    ramp_up_steps = round(options.pop("ramp_up", 0.0) * config.total_steps)
    if config.method.endswith(ISDA_SUFFIX):
        options["consistency_weight"] = options.pop("eta_1")
        options |= isda.criterion_settings(network.classifier, config.total_steps)
    options.setdefault("total_steps", config.total_steps)
    options["regulariser_weight"] = RampedWeight(options.pop("eta_2", 0.0), steps=ramp_up_steps)
    objective = create(
        config.method,
        network,
        labels=config.labels,
        samples=config.train_images,
        ramp_up_steps=ramp_up_steps,
        **options,
    )
    if isinstance(objective.criterion, ISDALoss):
        isda.started(objective.criterion)
    return SemiMethod(objective, config.labelled_per_batch, config.batch_size)
