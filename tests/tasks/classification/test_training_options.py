"""Options of a run do what they say: averaged weights, precisions, memory format, compilation, smoothing."""

import json
from functools import partial

import pytest
import torch
from safetensors.torch import load_file

from isda.lab.train import load_trained, train
from small_runs import digits, small_config, small_job


def losses_of(job, epochs=6):
    """The training loss of each epoch."""
    losses, step = [], 0
    for epoch in range(epochs):
        for batch in job.batches(epoch):
            job.step(batch, step)
            step += 1
        losses.append(float(job.sums["loss"]) / 100)
        job.sums.clear()
    return losses


def test_the_moving_average_is_the_one_by_hand():
    job = small_job(ema=0.8, precision="float64", epochs=3)
    average, step = None, 0
    for epoch in range(3):
        for batch in job.batches(epoch):
            job.step(batch, step)
            step += 1
            state = {name: value.clone() for name, value in job.network.state_dict().items()}
            floating = {name: value for name, value in state.items() if value.is_floating_point()}
            if average is None:
                average = floating
            average = {name: 0.8 * average[name] + 0.2 * value for name, value in floating.items()}
    averaged = job.evaluated.state_dict()
    assert job.evaluated is not job.network
    for name, value in average.items():
        torch.testing.assert_close(averaged[name], value, rtol=1e-10, atol=1e-12)
        assert not torch.equal(averaged[name], job.network.state_dict()[name])


def test_the_averaged_weights_are_measured_and_written(tmp_path):
    result = train(small_config(ema=0.5), digits(), tmp_path / "ema")
    measured = load_trained(tmp_path / "ema").measure(digits(), torch.device("cpu"))
    assert measured["error"] == pytest.approx(result["error_last"])
    train(small_config(), digits(), tmp_path / "plain")
    names = ("ema", "plain")
    averaged, plain = (load_file(tmp_path / name / "model.safetensors")["classifier.weight"] for name in names)
    assert not torch.equal(averaged, plain)


def test_averaging_does_not_change_what_is_learnt():
    plain, averaged = small_job(), small_job(ema=0.9)
    losses_of(plain, 2)
    losses_of(averaged, 2)
    for mine, theirs in zip(plain.network.parameters(), averaged.network.parameters(), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_mixed_precision_computes_in_16_bits_and_keeps_weights_and_statistics_in_32(precision):
    job = small_job(precision=precision, epochs=6, lr=0.05)
    made = []
    job.network.classifier.register_forward_hook(lambda module, inputs, output: made.append(output.dtype))
    losses = losses_of(job)
    assert set(made) == {getattr(torch, precision)}
    assert losses[-1] < 0.7 * losses[0]
    statistics = job.method.criterion.covariance.state_dict()
    for state in (job.network.state_dict(), statistics):
        assert {value.dtype for value in state.values() if value.is_floating_point()} == {torch.float32}
    assert job.scaler.is_enabled() == (precision == "float16")
    assert int(job.method.criterion.covariance.count.sum()) == 600


def test_float64_is_float64_throughout():
    job = small_job(precision="float64")
    seen = []
    job.network.register_forward_hook(lambda module, inputs, output: seen.extend([inputs[0].dtype, output.dtype]))
    losses_of(job, 1)
    job.evaluate()
    assert set(seen) == {torch.float64}
    for state in (job.network.state_dict(), job.method.state_dict()):
        assert {value.dtype for value in state.values() if value.is_floating_point()} == {torch.float64}


def test_channels_last_changes_the_memory_format_and_not_the_numbers():
    plain, last = (
        small_job(precision="float64", network="resnet-8", channels_last=channels_last)
        for channels_last in (False, True)
    )
    formats = []
    last.network.register_forward_hook(
        lambda module, inputs, output: formats.append(inputs[0].is_contiguous(memory_format=torch.channels_last))
    )
    assert losses_of(last, 2) == pytest.approx(losses_of(plain, 2), rel=1e-8)
    last.evaluate()
    assert all(formats)
    kernels = [p for p in last.network.parameters() if p.ndim == 4]
    assert all(kernel.is_contiguous(memory_format=torch.channels_last) for kernel in kernels)


@pytest.mark.parametrize("method", ["isda", "cross-entropy"])
def test_label_smoothing_raises_the_loss_of_certain_predictions(method):
    plain, smooth = (small_job(method=method + text, lr=0.0, lambda_0=0.0) for text in ("", ":label_smoothing=0.2"))
    batch = next(plain.batches(0))
    for job in (plain, smooth):
        with torch.no_grad():
            job.network.classifier.weight.mul_(20)
        job.step(batch, 0)
    # (1 - s) (cross-entropy) + s (mean over classes of -log p), by hand.
    logits = plain.network(batch.images).detach().double()
    logs = logits - logits.exp().sum(1, keepdim=True).log()
    rows = torch.arange(20)
    by_hand = (-0.8 * logs[rows, batch.targets] - 0.2 * logs.mean(1)).mean()
    assert float(smooth.sums["loss"]) / 20 == pytest.approx(float(by_hand), rel=1e-4)
    assert float(plain.sums["loss"]) / 20 == pytest.approx(float(-logs[rows, batch.targets].mean()), rel=1e-4)


@pytest.mark.parametrize("method", ["cross-entropy", "isda", "isda-tilted", "isda:covariance=learned"])
def test_every_method_learns(method):
    losses = losses_of(small_job(method=method, epochs=6, lr=0.05))
    assert losses[-1] < 0.6 * losses[0]


def test_a_learned_covariance_is_trained_with_the_network():
    job = small_job(method="isda:covariance=learned,lambda_0=5")
    before = [p.detach().clone() for p in job.method.parameters()]
    losses_of(job, 2)
    assert before
    assert not any(torch.equal(p, q) for p, q in zip(before, job.method.parameters(), strict=True))


@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_a_compiled_network_learns_the_same(backend, monkeypatch):
    # The compiler that writes machine code takes a minute; tracing alone takes a second.
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    plain, compiled = small_job(precision="float64"), small_job(precision="float64", compile=True)
    assert compiled.forward is not compiled.network
    assert losses_of(compiled, 2) == pytest.approx(losses_of(plain, 2), rel=1e-8)
    assert compiled.network.state_dict().keys() == plain.network.state_dict().keys()


def test_options_stand_in_the_configuration_and_the_metrics_say_the_rest(tmp_path):
    config = small_config(ema=0.9, precision="bfloat16", channels_last=True, method="isda-tilted:memory=30")
    result = train(config, digits(), tmp_path)
    stored = json.loads((tmp_path / "config.json").read_text())
    assert (stored["ema"], stored["precision"], stored["channels_last"]) == (0.9, "bfloat16", True)
    assert stored["method_options"]["memory"] == 30
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [1, 2]
    assert result["error_last"] == lines[-1]["test/error"]
