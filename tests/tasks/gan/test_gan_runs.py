"""Runs that train generators: interruptions, several processes, other devices, judges, and what they leave behind."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
import torch
from generative_worker import WRITTEN, run

from generative_runs import METHODS, small_config, small_job
from isda.lab.engine import Hook, Saving, Stopped, train
from isda.lab.seeds import generator
from isda.lab.tasks.common.generators import load_generator, make_images
from isda.lab.tasks.gan.job import GenerationJob
from isda.lab.tasks.gan.task import Generation
from many_processes import side_by_side
from resumable_runs import outcome, saved
from small_runs import ALONE, digits, train_small
from two_devices import assert_the_same, needs_a_device, on_host_and_device

HERE = Path(__file__).parent
# Ten steps do not make a generator.
pytestmark = pytest.mark.filterwarnings("ignore:the generator has collapsed", "ignore:the discriminator tells")


class StopAt(Hook):
    """Ends a run after a step."""

    def __init__(self, step: int) -> None:
        self.at = step

    def step(self, step: int) -> None:
        if step == self.at:
            raise Stopped("enough")


# -- interruptions ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_a_run_that_was_stopped_twice_ends_in_the_bits_of_one_that_was_not(finished_run, tmp_path, method):
    """Steps 3 and 8 of 10: within epochs, and between two turns of WGAN's generators."""
    config = small_config(finished_run, method=method, ema=0.9)
    saving = Saving(steps=1)
    train(config, digits(), tmp_path / "whole", task=Generation(), saving=saving)
    for step in (3, 8):
        with pytest.raises(Stopped):
            train(config, digits(), tmp_path / "again", task=Generation(), saving=saving, hooks=[StopAt(step)])
    train(config, digits(), tmp_path / "again", task=Generation(), saving=saving)
    whole, again = outcome(tmp_path / "whole"), outcome(tmp_path / "again")
    expected = {"pictures/1-generated.png"}
    assert expected <= whole.keys()
    assert again == whole


def test_a_run_that_was_killed_after_its_last_step_concludes_alike(finished_run, tmp_path):
    config = small_config(finished_run)
    train(config, digits(), tmp_path / "run", task=Generation(), saving=Saving(steps=5))
    before = outcome(tmp_path / "run")
    for name in ("result.json", "model.safetensors", "pictures/1-generated.png"):
        (tmp_path / "run" / name).unlink()
    train(config, digits(), tmp_path / "run", task=Generation(), saving=Saving(steps=5))
    assert outcome(tmp_path / "run") == before


def test_the_state_of_another_run_is_refused(finished_run):
    job, other = small_job(finished_run), small_job(finished_run, width=0.2)
    with pytest.raises(ValueError, match="the checkpoint does not fit this run"):
        job.restore(other.state())


# -- several processes, other devices --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def one_and_two(finished_run, tmp_path_factory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("processes")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, method in WRITTEN.items():
            run(method, finished_run, folder / "one" / name, ALONE)
    side_by_side(2, HERE / "generative_worker.py", finished_run, folder / "two")
    return folder / "one", folder / "two"


@pytest.mark.parametrize("method", WRITTEN)
def test_two_processes_equal_one(one_and_two, method):
    """Networks, averages and figures: normalisation is per image, and all draws are made for the whole batch."""
    folders = [folder / method for folder in one_and_two]
    for group in ("generator", "discriminator", "average"):
        one, two = (saved(folder)[group] for folder in folders)
        for name, expected in one.items():
            torch.testing.assert_close(two[name], expected, rtol=1e-6, atol=1e-8)
    for one, two in zip(*(outcome(folder)["metrics"] for folder in folders), strict=True):
        assert two == pytest.approx(one, rel=1e-5, abs=1e-8)


@needs_a_device
@pytest.mark.parametrize("method", ["wgan:penalty=10,n_critic=2", "infogan"])
def test_a_run_off_the_cpu_is_the_same_and_its_steps_wait_for_nothing(finished_run, method, tmp_path):
    config = small_config(finished_run, method=method, precision="float64", ema=0.9)
    host, device = on_host_and_device(Generation(), config, digits(), tmp_path, steps=2, evaluated=True)
    assert_the_same(host, device, rtol=1e-7, figures=1e-5)
    assert device.waits == [[], []]


def test_mixed_precision_trains(finished_run):
    job = small_job(finished_run, method="wgan:penalty=10,n_critic=1", precision="bfloat16")
    for step, batch in enumerate(job.batches(0)):
        job.step(batch, step)
    job.check()


# -- what a run leaves -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(finished_run, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("generator") / "run"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        train(small_config(finished_run), digits(), folder, task=Generation())
    return folder


def test_a_finished_run_holds_figures_grids_and_a_generator_that_makes_the_same_images(trained, finished_run):
    result = json.loads((trained / "result.json").read_text())
    assert {"fid", "kid", "diversity", "accuracy", "per_class", "judge_sha256"} <= result.keys()
    assert set(result["per_class"]) == {"diversity", "accuracy"}
    assert {path.name for path in (trained / "pictures").iterdir()} == {"1-generated.png", "2-real.png"}
    loaded = load_generator(trained)
    assert loaded.classes == digits().classes
    labels = torch.tensor([3, 1, 4, 1, 5])
    images = make_images(loaded.network, labels, generator(7))
    assert images.dtype == torch.uint8
    assert torch.equal(images, make_images(loaded.network, labels, generator(7)))
    assert not torch.equal(images, make_images(loaded.network, labels, generator(8)))
    # As the job has it after its last step.
    job = small_job(finished_run)
    for epoch in range(2):
        for step, batch in enumerate(job.batches(epoch)):
            job.step(batch, 5 * epoch + step)
    assert torch.equal(images, make_images(job.evaluated, labels, generator(7)))


def test_the_kept_generator_is_the_averaged_one(finished_run):
    job = small_job(finished_run, ema=0.9)
    for step, batch in enumerate(job.batches(0)):
        job.step(batch, step)
    plain, kept = job.players.generator.state_dict(), job.weights()
    assert plain.keys() == kept.keys()
    assert any(not torch.equal(plain[name], kept[name]) for name in kept)


# -- judges ----------------------------------------------------------------------------------------------------------


def test_a_run_without_a_judge_trains_one_beside_it_and_uses_it_again(tmp_path, monkeypatch):
    monkeypatch.setattr("isda.lab.tasks.gan.evaluation.MOST_EPOCHS", 1)
    monkeypatch.setattr("isda.lab.tasks.gan.evaluation.WIDTH", 0.1)
    job = small_job(folder=tmp_path)
    first = job._measure()
    weights = tmp_path / "judge" / "model.safetensors"
    written = weights.stat().st_mtime_ns
    again = small_job(folder=tmp_path)._measure()
    assert again == first
    assert weights.stat().st_mtime_ns == written
    assert json.loads((tmp_path / "judge" / "config.json").read_text())["train_images"] == 1297


def test_a_judge_that_has_changed_is_noticed(tmp_path, finished_run):
    train_small(tmp_path / "judge", "--epochs", 1)
    job = small_job(tmp_path / "judge")
    for file in ("config.json", "result.json", "model.safetensors", "metrics.jsonl"):
        (tmp_path / "judge" / file).write_bytes((finished_run / file).read_bytes())
    with pytest.raises(ValueError, match="holds another classifier than when the run was planned"):
        job._measure()


def test_figures_of_a_generator_that_copies_real_images_are_as_good_as_can_be(finished_run):
    """Of each class its own test images, one after the other: what a judge sees is what it sees in real ones."""
    job = small_job(finished_run)
    job._measure()
    comparison = job._comparison
    assert comparison is not None

    class Copies(type(job.evaluated)):  # type: ignore[misc]
        def draw(self, count, chance):
            return torch.arange(count, dtype=torch.float32)[:, None]

        def forward(self, latent, labels):
            from isda.lab.networks.generative import from_pixels

            return from_pixels(digits().x_test[latent[:, 0].long()])

    copies = Copies(10, 1, 8, width=0.1)
    measured = comparison.measure(copies, 0)
    assert measured.fid == pytest.approx(0, abs=1e-6)
    assert measured.mean_diversity == pytest.approx(1)
    seen = comparison.real.classes == digits().y_test
    assert measured.right == pytest.approx(100 * float(seen.double().mean()))


def test_held_out_images_are_not_learnt_from_and_judge(finished_run):
    job = small_job(finished_run, held_out=100, labels=None)
    assert isinstance(job, GenerationJob)
    assert job.config.evaluated_on == "held-out"
    assert not set(job.training.tolist()) & set(job.evaluation.indices.tolist())
    assert len(job.training) == 1197
