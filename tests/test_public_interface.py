"""The names users import: nothing vanishes silently, everything is documented, and importing isda stays cheap."""

import importlib
import inspect
import json
import subprocess
import sys

import pytest

PUBLIC = {
    "isda": [
        "ISDABCELoss",
        "ISDAClassifier",
        "ISDALoss",
        "__version__",
        "covariance",
        "data",
        "functional",
        "losses",
        "networks",
        "refit",
        "report",
        "semi",
        "train",
    ],
    "isda.estimator": ["ISDAClassifier", "RefitResult", "refit"],
    "isda.lab.report": ["statistics"],
    "isda.losses": [
        "AugmentedLoss",
        "CenterLoss",
        "ConfidencePenalty",
        "DistributionNet",
        "DisturbLabel",
        "ExplicitLoss",
        "FocalLoss",
        "ISDABCELoss",
        "ISDALoss",
        "LabelSmoothing",
        "LargeMarginLoss",
        "LqLoss",
        "SemanticLoss",
    ],
    "isda.losses.rivals": [
        "centre_steps",
        "disturb_labels",
        "focal_rows",
        "large_margin_logits",
        "lq_rows",
        "margin_function",
        "prediction_entropy",
        "sampled_cross_entropy",
    ],
    "isda.losses.long_tail": [
        "ConfusionShift",
        "LDAMMargins",
        "LogitAdjustment",
        "MeanShift",
        "MetaLearner",
        "Offset",
        "meta_gradient",
    ],
    "isda.covariance": [
        "MODELS",
        "ConfusionCovariance",
        "CovarianceModel",
        "CovarianceTooLarge",
        "DiagonalCovariance",
        "FullCovariance",
        "IdentityCovariance",
        "LearnedCovariance",
        "LowRankCovariance",
        "OnlineCovariance",
        "ScaledCovariance",
        "SharedCovariance",
        "ShrunkCovariance",
        "WithinCovariance",
        "create",
    ],
    "isda.functional": [
        "Estimate",
        "augmented_logits",
        "binary_expectation",
        "binary_jensen_bound",
        "class_balanced_weights",
        "diagonal_gaussian_entropy",
        "expected_softplus",
        "explicit_consistency",
        "explicit_logits",
        "explicit_loss",
        "feature_uncertainty_loss",
        "gaussian_entropy",
        "jensen_bound",
        "jensen_consistency",
        "label_margins",
        "margin_variance",
        "mean_shift",
        "monte_carlo",
        "prior_offsets",
        "tilted_bound",
        "tilted_consistency",
        "tilted_variance",
    ],
    "isda.lab.data": [
        "CATALOGUE",
        "ChannelStatistics",
        "DataSet",
        "HoldOut",
        "ImageFiles",
        "SemiSupervisedSplit",
        "ZCAWhitening",
        "balanced_sample",
        "channel_statistics",
        "hold_out",
        "load",
        "long_tailed",
        "normalise_per_image",
        "semi_supervised_split",
        "zca_whitening",
    ],
    "isda.lab.data.augment": [
        "OPERATION_NAMES",
        "AutoAugment",
        "Compose",
        "Cutout",
        "Draws",
        "HorizontalFlip",
        "Normalize",
        "RandAugment",
        "RandomCrop",
        "RandomResizedCrop",
        "RandomTranslation",
        "ResizeCenterCrop",
        "Transform",
        "apply_operations",
        "crop_flip",
        "imagenet_evaluation",
        "imagenet_training",
        "translate_flip",
    ],
    "isda.lab.networks": [
        "Network",
        "additional_multiply_adds",
        "count_multiply_adds",
        "count_parameters",
        "create",
        "names",
    ],
    "isda.lab.semi": [
        "NAMES",
        "VAT",
        "FixMatch",
        "Losses",
        "MeanTeacher",
        "PiModel",
        "RampedWeight",
        "Regulariser",
        "SemiSupervised",
        "TemporalEnsembling",
        "UnlabelledBatch",
        "create",
        "defaults_for",
        "entropy",
        "frozen_batch_norm",
        "gaussian_ramp_down",
        "gaussian_ramp_up",
        "inputs_for",
        "kl_divergence",
        "linear_ramp_up",
        "mean_squared_error",
        "averaging_decay",
    ],
}

MEMBERS = {
    "ISDALoss": ["attach", "strength", "step", "advance_every", "consistency", "augmented_logits", "forward"],
    "ISDABCELoss": ["attach", "strength", "step", "advance_every", "consistency", "forward"],
    "CovarianceModel": [
        "mean",
        "covariance",
        "sample",
        "update",
        "margin_variance",
        "merge",
        "reset",
        "dtype",
        "num_matrices",
    ],
}

HEAVY = ["torchvision", "timm", "transformers", "sklearn", "scipy", "matplotlib", "PIL", "rich", "tyro", "pandas"]


def public_objects():
    for module_name in PUBLIC:
        module = importlib.import_module(module_name)
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.isclass(value) or inspect.isfunction(value):
                yield pytest.param(value, id=f"{module_name}.{name}")


@pytest.mark.parametrize("module_name", PUBLIC)
def test_no_public_name_vanishes(module_name):
    module = importlib.import_module(module_name)
    assert set(PUBLIC[module_name]) <= set(module.__all__)


@pytest.mark.parametrize("module_name", PUBLIC)
def test_every_public_name_exists_once(module_name):
    module = importlib.import_module(module_name)
    assert len(set(module.__all__)) == len(module.__all__)
    assert all(hasattr(module, name) for name in module.__all__)


def test_an_unknown_name_is_an_attribute_error():
    import isda

    with pytest.raises(AttributeError, match="ISDALos"):
        _ = isda.ISDALos


@pytest.mark.parametrize("class_name", MEMBERS)
def test_no_public_member_vanishes(class_name):
    import isda

    owner = getattr(isda, class_name, None) or getattr(isda.covariance, class_name)
    assert [name for name in MEMBERS[class_name] if not hasattr(owner, name)] == []


def test_the_covariance_names_of_the_interface_exist():
    import isda

    names = {"full", "diagonal", "low_rank", "shared", "within", "shrunk", "identity", "learned"}
    assert names <= set(isda.covariance.MODELS)
    for name in names:
        model = isda.covariance.create(name, 3, 4)
        assert model.count.tolist() == [0, 0, 0]


@pytest.mark.parametrize("value", list(public_objects()))
def test_everything_public_has_a_docstring(value):
    assert inspect.getdoc(value)
    if inspect.isclass(value):
        assert "__doc__" in vars(value)
        assert vars(value)["__doc__"], "an inherited docstring describes another class"
        undocumented = [
            name
            for name, member in vars(value).items()
            if not name.startswith("_")
            and (inspect.isfunction(member) or isinstance(member, (property, classmethod, staticmethod)))
            and not inspect.getdoc(getattr(value, name) if not isinstance(member, property) else member.fget)
        ]
        assert undocumented == []


def test_the_constructor_takes_the_documented_arguments():
    import isda

    parameters = inspect.signature(isda.ISDALoss).parameters
    expected = {
        "lambda_0": 0.5,
        "total_steps": None,
        "covariance": "auto",
        "bound": "jensen",
        "ignore_index": -100,
        "reduction": "mean",
        "label_smoothing": 0.0,
    }
    assert list(parameters)[:4] == ["num_classes", "feature_dim", "lambda_0", "total_steps"]
    assert {name: parameters[name].default for name in expected} == expected


def modules_after(statement):
    code = f"import json, sys; {statement}; print(json.dumps(sorted(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    return set(json.loads(result.stdout))


def test_importing_isda_loads_torch_and_numpy_and_next_to_nothing_else():
    with_isda = modules_after("import torch, numpy, isda")
    assert [name for name in HEAVY if name in with_isda] == []
    extra = with_isda - modules_after("import torch, numpy")
    own = {name for name in extra if name == "isda" or name.startswith("isda.")}
    assert own, "isda itself was imported"
    # What torch loads lazily (checkpointing, collectives; sympy in torch 2.4) is part of torch.
    strangers = {name for name in extra - own if name.split(".")[0] not in ("torch", "sympy", "mpmath")}
    assert {name for name in strangers if name.split(".")[0] not in sys.stdlib_module_names} == set()


def test_rooms_are_imported_when_they_are_first_asked_for():
    """In a process of its own, where nothing has imported them before."""
    rooms = ["data", "networks", "semi", "report", "train"]
    statement = (
        f"import isda; loaded = [r for r in {rooms} if 'isda.' + r in sys.modules]; assert not loaded, loaded;"
        f"assert set({rooms}) <= set(dir(isda)); assert [getattr(isda, r).__name__[5:] for r in {rooms}] == {rooms}"
    )
    assert {f"isda.{room}" for room in rooms} <= modules_after(statement)


def test_using_the_core_loads_no_other_library():
    statement = (
        "import torch, isda; m = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2));"
        "c = isda.ISDALoss.attach(m, 0.5, 10); c(m(torch.zeros(2, 3)), torch.tensor([0, 1])).backward()"
    )
    loaded = modules_after(statement)
    assert [name for name in HEAVY if name in loaded] == []
