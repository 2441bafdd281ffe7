"""Training steps of the mean teacher and the Pi-model against the equations, written out, in float64."""

import copy
import math

import pytest
import torch
from torch.nn.functional import cross_entropy

from isda.lab import networks
from isda.lab.engine import learning_rate
from semi_runs import semi_job


def by_hand(job, regulariser):
    """The student and the teacher after each step of the first epoch; regulariser(second view's prediction)."""
    config = job.config
    torch.manual_seed(config.seed)
    student = networks.create(config.network, num_classes=10, **config.network_options).double().train()
    teacher = copy.deepcopy(student)
    parameters = list(student.parameters())
    velocities = [torch.zeros_like(p) for p in parameters]
    ramp_steps = round(config.method_options["ramp_up"] * config.total_steps)
    for step, batch in enumerate(job.batches(0)):
        first, second = batch.unlabelled.images.double(), batch.unlabelled.second.double()
        images, count = batch.images.double(), len(batch.targets)
        together = student(torch.cat([images, first]))
        labelled, others = together[:count], together[count:]
        ramp = math.exp(-5 * (1 - min(step / ramp_steps, 1)) ** 2)
        weight = config.method_options["eta_2"] * ramp
        # Labelled images are there in every pass, for its batch statistics.
        other_view = regulariser(student, teacher, torch.cat([images, second]))[count:]
        distance = (others.softmax(1) - other_view).square().mean()
        gradients = torch.autograd.grad(cross_entropy(labelled, batch.targets) + weight * distance, parameters)
        with torch.no_grad():
            for p, velocity, gradient in zip(parameters, velocities, gradients, strict=True):
                gradient = gradient + config.weight_decay * p
                velocity.mul_(config.momentum).add_(gradient)
                p.sub_(learning_rate(config, step) * (gradient + config.momentum * velocity))
            decay = min(1 - 1 / (step + 1), config.method_options.get("teacher_decay", 0))
            for mean, p in zip(teacher.parameters(), parameters, strict=True):
                mean.copy_(decay * mean + (1 - decay) * p)
        yield step, batch, parameters, teacher


def of_the_student(student, teacher, second):
    return student(second).softmax(1)


def of_the_teacher(student, teacher, second):
    with torch.no_grad():
        return teacher(second).softmax(1)


@pytest.mark.parametrize(
    ("method", "regulariser"), [("pi-model", of_the_student), ("mean-teacher:teacher_decay=0.7", of_the_teacher)]
)
def test_steps_equal_those_by_hand(method, regulariser):
    job = semi_job(
        method=f"{method}{',' if ':' in method else ':'}input_noise=0,ramp_up=0.2",
        precision="float64",
        weight_decay=0.01,
        lr=0.05,
        augment="translate",
    )
    for step, batch, expected, teacher in by_hand(job, regulariser):
        job.step(batch, step)
        for mine, theirs in zip(job.network.parameters(), expected, strict=True):
            torch.testing.assert_close(mine.detach(), theirs, rtol=1e-9, atol=1e-9)
        if method.startswith("mean-teacher"):
            assert job.evaluated is not job.network
            for mine, theirs in zip(job.evaluated.state_dict().values(), teacher.state_dict().values(), strict=True):
                torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9)
    assert step == 5


def test_the_teacher_is_judged_and_not_trained():
    job = semi_job(method="mean-teacher")
    teacher = job.method.objective.regulariser.teacher
    assert job.evaluated is teacher
    trained = {id(p) for group in job.optimiser.param_groups for p in group["params"]}
    assert trained == {id(p) for p in job.network.parameters()}


def test_other_methods_judge_the_student_or_its_average():
    assert (plain := semi_job(method="vat")).evaluated is plain.network
    averaged = semi_job(method="vat", ema=0.9)
    assert averaged.evaluated is averaged.average.module


@pytest.mark.parametrize("changes", [{"channels_last": True}, {"precision": "bfloat16"}])
@pytest.mark.parametrize("method", ["pi-model+isda"])
def test_every_view_comes_in_the_form_the_run_has(changes, method):
    job = semi_job(method=method, **changes)
    shapes = []
    job.network.register_forward_pre_hook(lambda module, inputs: shapes.append(inputs[0]))
    for step, batch in enumerate(job.batches(0)):
        job.step(batch, step)
    assert len(shapes) == 12
    form = torch.channels_last if "channels_last" in changes else torch.contiguous_format
    assert all(images.is_contiguous(memory_format=form) for images in shapes[1::2])
    assert math.isfinite(job.finish_epoch(1, 6)["train/loss"])
