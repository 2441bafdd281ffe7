"""Fine-tuning as a user runs it: one folder of images, one file of weights, one command."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import timm
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file
from torchvision.transforms.v2 import functional as images

from fine_tuning_runs import CLASSES, MODEL, TRAINING, draw_folder, fine_tune, words, write_pretrained
from isda.lab.data import load
from isda.lab.engine import learning_rate
from isda.lab.tasks.classification.resolve import resolve
from isda.lab.tasks.classification.task import Classification, criteria_of
from isda.lab.train import Hook, Saving, Settings, load_trained, train
from many_processes import torchrun
from resumable_runs import saved
from small_runs import HERE, isda


@pytest.fixture(scope="module")
def material(tmp_path_factory) -> tuple[Path, Path]:
    """A folder of images and a file of weights."""
    folder = tmp_path_factory.mktemp("material")
    return draw_folder(folder / "images"), write_pretrained(folder / "weights.safetensors")


@pytest.fixture(scope="module")
def frozen(material, tmp_path_factory) -> Path:
    return fine_tune(*material, tmp_path_factory.mktemp("frozen") / "run", "--freeze", "--lr", 0.1)


@pytest.fixture(scope="module")
def full(material, tmp_path_factory) -> Path:
    return fine_tune(*material, tmp_path_factory.mktemp("full") / "run")


def settings_for(material, **further) -> Settings:
    folder, weights = material
    chosen = {"network": f"timm:{MODEL}", "pretrained": str(weights), "input_size": 32, "epochs": 2, "batch_size": 9}
    return Settings(**{"data": str(folder), **chosen, **further})


def job_for(material, **further):
    settings = settings_for(material, **further)
    data = load(settings.data)
    return Classification().start(resolve(settings, data), data, HERE)


def state_of(module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


def equal(one, two) -> bool:
    return one.keys() == two.keys() and all(torch.equal(value, two[name]) for name, value in one.items())


# -- what is trained ---------------------------------------------------------------------------------------------------


def test_a_frozen_backbone_is_the_file_to_the_bit_and_the_classifier_has_moved(frozen, material):
    weights, trained = load_file(material[1]), load_file(frozen / "model.safetensors")
    body = {name.removeprefix("body."): value for name, value in trained.items() if name.startswith("body.")}
    assert equal(body, {name: value for name, value in weights.items() if not name.startswith("fc.")})
    new = job_for(material, freeze=True, lr=0.1).network.classifier
    assert (trained["classifier.weight"] - new.weight).norm() > 10 * new.weight.norm()
    assert json.loads((frozen / "config.json").read_text())["freeze"] is True


def test_a_frozen_backbone_has_neither_gradients_nor_places_in_the_optimiser(material):
    job = job_for(material, freeze=True, ema=0.5)
    assert not job.network.body.training
    assert job.network.classifier.training
    graphs = []
    job.network.body.register_forward_hook(lambda module, inputs, output: graphs.append(output.requires_grad))
    job.step(next(job.batches(0)), 0)
    job.evaluate()
    assert not any(graphs)
    assert not job.network.body.training, "also after an evaluation"
    optimised = [parameter for group in job.optimiser.param_groups for parameter in group["params"]]
    assert {*map(id, optimised)} == {*map(id, job.network.classifier.parameters())}


def test_without_freezing_every_layer_moves(full, material):
    weights, trained = load_file(material[1]), load_file(full / "model.safetensors")
    names = [name for name in weights if name.endswith(("weight", "running_mean")) and not name.startswith("fc.")]
    assert len(names) > 20
    assert not any(torch.equal(trained[f"body.{name}"], weights[name]) for name in names)


def test_the_classifier_starts_near_zero_and_with_the_seed(material):
    first, second, again = (job_for(material, seed=seed).network.classifier.weight for seed in (0, 1, 0))
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    assert float(first.detach().std()) == pytest.approx(0.01, rel=0.2)


def test_layers_learn_at_their_own_rates(material):
    still = {"optimiser": "sgd", "weight_decay": 0.0, "warm_up": "0", "method": "cross-entropy", "precision": "float64"}
    plain, layered = (job_for(material, layer_decay=decay, **still) for decay in (1.0, 0.5))
    moves = []
    for job in (plain, layered):
        before = {name: value.detach().clone() for name, value in job.network.named_parameters()}
        job.step(next(job.batches(0)), 0)
        moves.append({name: value.detach() - before[name] for name, value in job.network.named_parameters()})
    layers = {"classifier": 0, "layer4": 1, "layer3": 2, "layer2": 3, "layer1": 4, "conv1": 5, "bn1": 5}
    for name, move in moves[0].items():
        depth = layers[name.removeprefix("body.").partition(".")[0]]
        torch.testing.assert_close(moves[1][name], 0.5**depth * move, rtol=1e-9, atol=1e-12)
    assert float(moves[0]["body.conv1.0.weight"].abs().max()) > 0


def test_the_rate_of_a_step_is_the_schedules_times_the_layers(material):
    job = job_for(material, warm_up="5steps", layer_decay=0.5)
    assert job.config.warm_up_steps == 5
    job.step(next(job.batches(0)), 2)
    rates = {id(p): group["lr"] for group in job.optimiser.param_groups for p in group["params"]}
    assert learning_rate(job.config, 2) == pytest.approx(3 / 5 * 2e-3 * (1 + torch.cos(torch.tensor(torch.pi / 4))) / 2)
    assert rates[id(job.network.classifier.weight)] == pytest.approx(learning_rate(job.config, 2))
    assert rates[id(job.network.body.conv1[0].weight)] == pytest.approx(learning_rate(job.config, 2) * 0.5**5)


# -- the first pass ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["isda:covariance=full", "label-smoothing+isda:covariance=diagonal"])
def test_the_first_pass_fills_the_statistics_and_moves_nothing(method, material):
    job = job_for(material, method=method, precision="float64")
    network, before = job.network, state_of(job.network)
    modes = [module.training for module in network.modules()]
    job.before_first_step()
    (criterion,) = criteria_of(job.method)
    covariance = criterion.covariance
    assert equal(state_of(network), before)
    assert [module.training for module in network.modules()] == modes
    assert (criterion.step, criterion.strength) == (0, 0.0)
    assert not job.optimiser.state
    # By hand: every training image once, as evaluation sees it.
    data = load(str(material[0]))
    network.eval()
    with torch.no_grad():
        rows = network.features(job.pipeline(data.x_train).double())
    for label in range(len(CLASSES)):
        own = rows[data.y_train == label]
        centred = own - own.mean(0)
        expected = centred.T @ centred / TRAINING
        if "diagonal" in method:
            expected = torch.diag(expected.diagonal())
        assert int(covariance.count[label]) == TRAINING
        torch.testing.assert_close(covariance.mean[label], own.mean(0), rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(covariance.covariance(label), expected, rtol=1e-8, atol=1e-10)


def test_a_run_begins_with_the_first_pass_and_others_do_not(material, tmp_path):
    seen = []

    class Look(Hook):
        def start(self, config, folder, step):
            seen.append(config.first_pass)

    settings = settings_for(material, method="isda")
    data = load(settings.data)
    config = resolve(settings, data)
    train(config, data, tmp_path / "with", saving=Saving(steps=8), hooks=[Look()])
    train(replace(config, first_pass=False), data, tmp_path / "without", saving=Saving(steps=8), hooks=[Look()])
    statistics = [saved(tmp_path / name)["method"] for name in ("with", "without")]
    counts = [int(tensors["criterion.covariance.count"].sum()) for tensors in statistics]
    assert seen == [True, False]
    assert counts == [36 + 72, 72]


def test_a_run_that_was_killed_goes_on_to_the_same_bits(full, material, tmp_path):
    class Killed(Exception):
        pass

    class Kill(Hook):
        def step(self, step):
            if step == 6:
                raise Killed

    settings = settings_for(material)
    data = load(settings.data)
    with pytest.raises(Killed):
        train(resolve(settings, data), data, tmp_path / "run", saving=Saving(steps=3), hooks=[Kill()])
    _, _, code = isda("train", "--out", tmp_path / "run", "--resume")
    assert code is None
    for name in ("model.safetensors", "timm.safetensors"):
        assert (tmp_path / "run" / name).read_bytes() == (full / name).read_bytes()


# -- what others load --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("run", ["full", "frozen"])
def test_plain_timm_loads_the_file_and_gives_the_same_logits(run, request):
    folder = request.getfixturevalue(run)
    model = timm.create_model(MODEL, num_classes=3, checkpoint_path=str(folder / "timm.safetensors")).eval()
    pixels = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(model(pixels), load_trained(folder).network(pixels), rtol=1e-6, atol=1e-6)
    with safe_open(folder / "timm.safetensors", "pt") as file:
        told = json.loads(file.metadata()["isda"])
    assert told == {
        "network": f"timm:{MODEL}",
        "classes": [*CLASSES],
        "mean": [0.5] * 3,
        "std": [0.5] * 3,
        "input_size": 32,
    }


def test_export_writes_the_same_file_again(full, tmp_path):
    _, _, code = isda("export", full, "--for", "timm", "--out", tmp_path / "again.safetensors")
    assert code is None
    assert equal(load_file(tmp_path / "again.safetensors"), load_file(full / "timm.safetensors"))


def test_predict_sees_the_image_as_timm_would(full, material):
    path = next((material[0] / "test" / "green").iterdir())
    out, _, code = isda("predict", full, path, "--json", "-")
    assert code is None
    said = {one["name"]: one["probability"] for one in json.loads(out)[0]["classes"]}
    model = timm.create_model(MODEL, num_classes=3, checkpoint_path=str(full / "timm.safetensors")).eval()
    # timm's configuration of the model: a crop of 95%, mean and deviation a half.
    image = images.pil_to_tensor(Image.open(path))
    pixels = images.center_crop(images.resize(image, [33], antialias=True), [32]).float() / 255
    with torch.no_grad():
        expected = model((pixels.unsqueeze(0) - 0.5) / 0.5).softmax(1)[0]
    assert [said[name] for name in CLASSES] == pytest.approx(expected.tolist(), abs=1e-5)


def test_grey_images_and_a_torch_file_will_do(material, tmp_path):
    grey = draw_folder(tmp_path / "grey", mode="L", size=(20, 20))
    run = fine_tune(grey, write_pretrained(tmp_path / "weights.pth"), tmp_path / "run", "--freeze")
    assert load_trained(run).config.channels == 3
    _, _, code = isda("evaluate", run)
    assert code is None


@pytest.mark.slow
def test_the_runs_of_a_search_begin_with_the_same_weights(material, tmp_path):
    search = ["--search", "lambda_0=1,2", "--widen", 0, "--no-retrain", "--seeds", 1]
    _, err, code = isda("tune", *words(*material), "--freeze", *search, "--out", tmp_path / "tune")
    assert code is None, (code, err)
    configs = [json.loads(path.read_text()) for path in (tmp_path / "tune").rglob("config.json")]
    assert len(configs) == 2
    assert len({config["pretrained_sha256"] for config in configs}) == 1
    assert all(config["freeze"] and config["optimiser"] == "adamw" for config in configs)


@pytest.mark.slow
def test_two_processes_fine_tune_what_one_does(material, tmp_path):
    # Batches of 9 leave 5 and 4 to two processes; a frozen body sees no batch in its running figures.
    further = ["--freeze", "--precision", "float64", "--method", "isda:lambda_0=5", "--checkpoint-steps", 8]
    one = fine_tune(*material, tmp_path / "one", *further)
    done = torchrun(2, "-m", "isda", "train", *words(*material), *further, "--threads", 1, "--out", tmp_path / "two")
    assert done.returncode == 0, done.stderr
    for group in ("model", "method"):
        mine, theirs = (saved(folder)[group] for folder in (one, tmp_path / "two"))
        assert mine.keys() == theirs.keys()
        for name, value in mine.items():
            torch.testing.assert_close(theirs[name], value, rtol=1e-9, atol=1e-9)


# -- what does not fit -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("option", "name"), [(["--freeze"], "freeze"), (["--input-size", "64"], "input_size")])
def test_options_of_pretrained_networks_do_not_stand_alone(option, name, material):
    _, _, code = isda("train", "--data", material[0], "--network", f"timm:{MODEL}", *option)
    assert f"{name} must come with pretrained" in str(code)


def test_weights_that_have_changed_are_noticed(material, tmp_path):
    weights = tmp_path / "weights.safetensors"
    weights.write_bytes(material[1].read_bytes())
    settings = settings_for((material[0], weights))
    data = load(settings.data)
    config = resolve(settings, data)
    write_pretrained(weights, num_classes=4)
    with pytest.raises(ValueError, match="holds other weights than when the run was planned"):
        Classification().network_for(config, HERE)
