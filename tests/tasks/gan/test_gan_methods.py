"""What each method minimises, against its formula, and whom it moves: one player in its turn, and nobody else."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from generative_runs import METHODS, small_job
from isda.lab.tasks.gan.data import draw_latents
from isda.lab.tasks.gan.methods import PlayerInputs

SEED = 0
PLAYERS = ("generator", "discriminator")


@pytest.fixture(params=METHODS)
def job(request, finished_run):
    return small_job(finished_run, method=request.param, precision="float64")


def turn(job, real):
    """A turn of either player, as the job makes it in step 3."""
    batch = next(job.batches(0)) if real else None
    return PlayerInputs(draw_latents(job.players.generator, 20, (SEED, 3, 7), job.processes), batch)


def moved(job, terms):
    """Which players a gradient of these terms reaches."""
    for parameter in job.players.parameters():
        parameter.grad = None
    sum(terms.values()).backward(retain_graph=True)
    reached = set()
    for name in PLAYERS:
        grads = [p.grad for p in getattr(job.players, name).parameters() if p.grad is not None]
        if any((grad != 0).any() for grad in grads):
            reached.add(name)
    return reached


def log_sigmoid(scores):
    return torch.log(1 / (1 + torch.exp(-scores)))


# -- formulas --------------------------------------------------------------------------------------------------------


def expected_terms(job, real, drawn):
    """(discriminator's, generator's) terms from the published formulas."""
    players = job.players
    made = players.generator(drawn.latent, drawn.labels)
    seen, told = players.discriminator(*real), players.discriminator(made, drawn.labels)
    if job.config.method == "wgan":
        first = {"critic": told.scores.mean() - seen.scores.mean()}
        if job.method.options.penalty:
            total = 0.0
            for i in range(20):
                between = drawn.share[i] * real.images[i] + (1 - drawn.share[i]) * made[i]
                between = between.detach()[None].requires_grad_()
                score = players.discriminator(between, real.labels[i : i + 1]).scores
                (slope,) = torch.autograd.grad(score.sum(), between)
                total += (slope.square().sum().sqrt() - 1) ** 2 / 20
            first["penalty"] = 10 * total
        return first, {"critic": -told.scores.mean()}
    first = {"adversarial": -log_sigmoid(seen.scores).mean() - log_sigmoid(-told.scores).mean()}
    second = {"adversarial": -log_sigmoid(told.scores).mean()}
    if job.config.method == "cgan":
        return first, second
    rows = torch.arange(20)
    of_real = -torch.log(seen.class_logits.softmax(1))[rows, real.labels].mean()
    of_made = -torch.log(told.class_logits.softmax(1))[rows, drawn.labels].mean()
    if job.config.method == "acgan":
        return first | {"class": of_real + of_made}, second | {"class": of_made}
    normal = torch.distributions.Normal(told.code_mean, torch.exp(told.code_log_variance / 2))
    codes = -0.1 * normal.log_prob(drawn.latent[:, 100:]).sum(1).mean()
    information = {"class": of_made, "codes": codes}
    return first | information | {"real_class": of_real}, second | information


def test_the_terms_of_both_players_are_their_formulas(job):
    drawn, real = turn(job, real=True)
    expected = expected_terms(job, real, drawn)
    for wanted, asked in zip(expected, (PlayerInputs(drawn, real), PlayerInputs(drawn, None)), strict=True):
        terms = job.method(job.players, asked).terms
        assert terms.keys() == wanted.keys()
        for name, value in wanted.items():
            torch.testing.assert_close(terms[name], value, rtol=1e-9, atol=1e-10)


# -- whom a term moves -----------------------------------------------------------------------------------------------


def test_every_term_of_the_discriminator_moves_it_and_nobody_else(job):
    terms = job.method(job.players, turn(job, real=True)).terms
    for name, term in terms.items():
        assert moved(job, {name: term}) == {"discriminator"}, name


def test_every_term_of_the_generator_reaches_it(job):
    terms = job.method(job.players, turn(job, real=False)).terms
    for name, term in terms.items():
        assert "generator" in moved(job, {name: term}), name


def snapshot(job):
    return {name: [p.clone() for p in getattr(job.players, name).parameters()] for name in PLAYERS}


def changed(before, after):
    return {
        name
        for name, tensors in before.items()
        if any(not torch.equal(a, b) for a, b in zip(tensors, after[name], strict=True))
    }


@pytest.mark.parametrize("player", ["generator", "discriminator"])
def test_the_turn_of_a_player_changes_it_and_leaves_the_other_to_the_bit(job, player):
    before = snapshot(job)
    job._turn(player, next(job.batches(0)) if player == "discriminator" else None, 0)
    assert changed(before, snapshot(job)) == {player}
    assert all(p.grad is None for p in job.players.parameters())


def test_the_generator_has_its_turn_after_as_many_of_the_discriminator_as_the_method_says(finished_run):
    job = small_job(finished_run, method="wgan:n_critic=3", epochs=3)
    moves = []
    for step, batch in enumerate(job.batches(0)):
        before = snapshot(job)
        job.step(batch, step)
        moves.append(sorted(changed(before, snapshot(job))))
    assert moves == [["discriminator"], ["discriminator"], ["discriminator", "generator"]] + [["discriminator"]] * 2
    assert small_job(finished_run, method="wgan").method.discriminator_steps == 5
    assert small_job(finished_run, method="acgan").method.discriminator_steps == 1


# -- what is particular ----------------------------------------------------------------------------------------------


def test_wgan_clips_all_weights_of_critics_and_with_a_penalty_none(finished_run):
    for method, clipped in (("wgan", True), ("wgan:penalty=10", False)):
        job = small_job(finished_run, method=method)
        job.step(next(job.batches(0)), 0)
        largest = max(float(p.detach().abs().max()) for p in job.players.discriminator.parameters())
        assert (largest <= 0.01) is clipped
        # The generators' weights are nobody's to clip.
        assert max(float(p.detach().abs().max()) for p in job.players.generator.parameters()) > 0.05


@pytest.mark.parametrize(
    ("method", "optimiser", "lr", "betas"),
    [
        ("wgan", torch.optim.RMSprop, 5e-5, None),
        ("wgan:penalty=10", torch.optim.Adam, 1e-4, (0.0, 0.9)),
        ("cgan", torch.optim.Adam, 2e-4, (0.5, 0.999)),
        ("acgan", torch.optim.Adam, 2e-4, (0.5, 0.999)),
        ("infogan", torch.optim.Adam, 2e-4, (0.5, 0.999)),
    ],
)
def test_players_are_trained_as_published(finished_run, method, optimiser, lr, betas):
    for made in small_job(finished_run, method=method).optimisers.values():
        assert type(made) is optimiser
        assert made.param_groups[0]["lr"] == lr
        assert made.param_groups[0].get("betas") == betas


def test_a_critic_sees_images_of_its_own_class_only(finished_run):
    """The slope of class 3's images reaches the weights of critic 3, and no others."""
    job = small_job(finished_run, method="wgan", precision="float64")
    images = torch.randn(4, 1, 8, 8, dtype=torch.float64)
    job.players.discriminator(images, torch.full((4,), 3)).scores.sum().backward()
    for parameter in job.players.discriminator.parameters():
        parts = parameter.grad.chunk(10)
        assert all((part == 0).all() for label, part in enumerate(parts) if label != 3)
        assert (parts[3] != 0).any()


def test_cgan_tells_the_discriminator_the_class(finished_run):
    job = small_job(finished_run, method="cgan")
    images = torch.randn(4, 1, 8, 8)
    one, other = (job.players.discriminator(images, torch.full((4,), label)).scores for label in (1, 2))
    assert (one - other).abs().min() > 1e-6


def test_infogan_reads_two_codes_that_reach_the_images(finished_run):
    job = small_job(finished_run, method="infogan")
    latent = job.players.generator.draw(3, torch.Generator().manual_seed(0))
    assert latent.shape == (3, 102)
    other = torch.cat([latent[:, :100], -latent[:, 100:]], 1)
    labels = torch.tensor([0, 1, 2])
    assert not torch.equal(job.players.generator(latent, labels), job.players.generator(other, labels))
    assert small_job(finished_run, method="infogan:code_weight=0").method.options.code_weight == 0


def test_cross_entropy_of_labels_on_the_host_is_torchs():
    from isda.lab.tasks.gan.methods import class_loss

    logits, labels = torch.randn(5, 3), torch.tensor([0, 2, 1, 1, 0])
    torch.testing.assert_close(class_loss(logits, labels), F.cross_entropy(logits, labels))


OWN = """
from isda.lab.tasks.gan.methods import wasserstein_generator
from isda.lab.tasks.gan.methods import CGAN


class Mine(CGAN):
    def generator_terms(self, network, generated, drawn):
        return {"mine": wasserstein_generator(network(*generated).scores)}
"""


def test_a_method_of_ones_own_is_found_by_its_name(finished_run, tmp_path, monkeypatch):
    (tmp_path / "own_gan.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    job = small_job(finished_run, method="own_gan.Mine")
    job.step(next(job.batches(0)), 0)
    assert "generator_mine" in job.sums
