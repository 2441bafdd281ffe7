"""The names users import: nothing vanishes silently, everything is documented, and importing isda stays cheap."""

import importlib
import inspect
import json
import subprocess
import sys

import pytest

PUBLIC = {
    "isda": ["ExplicitLoss", "ISDABCELoss", "ISDAClassifier", "ISDALoss", "__version__", "bounds"],
    "isda.bounds": ["augmented_logits", "consistency", "expected_cross_entropy", "tilted_variance"],
    "isda.covariance": [
        "Covariance",
        "DiagonalCovariance",
        "FullCovariance",
        "IdentityCovariance",
        "LearnedCovariance",
        "LowRankCovariance",
        "SharedCovariance",
        "WithinCovariance",
        "create",
    ],
    "isda.lab.data": ["load"],
    "isda.lab.networks": ["create"],
    "isda.lab.report.statistics": ["many_to_one"],
}

MEMBERS = {
    "ISDALoss": [
        "attach",
        "augmented_logits",
        "consistency",
        "covariance",
        "detach",
        "forward",
        "lambda_0",
        "set_step",
        "step",
        "strength",
        "total_steps",
    ],
    "ExplicitLoss": ["attach", "consistency", "detach", "forward", "set_step", "step", "strength"],
    "ISDABCELoss": ["attach", "consistency", "detach", "forward", "set_step", "step", "strength"],
}
"""Of a criterion; some are attributes of its instances."""

COVARIANCE_MEMBERS = ["count", "covariance", "margins", "mean", "merge", "product", "reset", "sample", "update"]
KINDS = ["full", "diagonal", "low_rank", "shared", "within", "identity", "learned"]
HEAVY = ["torchvision", "timm", "transformers", "sklearn", "scipy", "matplotlib", "PIL", "rich", "tyro", "pandas"]


def public_objects():
    for module_name in ("isda.bounds", "isda.covariance"):
        module = importlib.import_module(module_name)
        for name in PUBLIC[module_name]:
            yield pytest.param(getattr(module, name), id=f"{module_name}.{name}")
    for name in MEMBERS:
        yield pytest.param(getattr(importlib.import_module("isda"), name), id=name)


@pytest.mark.parametrize("module_name", PUBLIC)
def test_no_public_name_vanishes(module_name):
    module = importlib.import_module(module_name)
    assert [name for name in PUBLIC[module_name] if not hasattr(module, name)] == []
    exported = getattr(module, "__all__", PUBLIC[module_name])
    assert len(set(exported)) == len(exported)
    assert set(PUBLIC[module_name]) <= set(exported)


def test_an_unknown_name_is_an_attribute_error():
    import isda

    with pytest.raises(AttributeError, match="ISDALos"):
        _ = isda.ISDALos


@pytest.mark.parametrize("class_name", MEMBERS)
def test_no_public_member_vanishes(class_name):
    import isda

    criterion = getattr(isda, class_name)(3, 4, 0.5, 10)
    assert [name for name in MEMBERS[class_name] if not hasattr(criterion, name)] == []


@pytest.mark.parametrize("kind", KINDS)
def test_covariances_are_made_by_name_and_have_the_members_of_the_protocol(kind):
    from isda import covariance

    model = covariance.create(kind, 3, 4)
    assert [name for name in COVARIANCE_MEMBERS if not hasattr(model, name)] == []
    assert int(model.count.sum()) == 0


@pytest.mark.parametrize("value", list(public_objects()))
def test_everything_public_has_a_docstring(value):
    assert inspect.getdoc(value)
    if inspect.isclass(value):
        assert vars(value)["__doc__"], "an inherited docstring describes another class"
        members = {name: member for name, member in vars(value).items() if not name.startswith("_")}
        functions = {
            name: member.fget if isinstance(member, property) else getattr(value, name)
            for name, member in members.items()
            if inspect.isfunction(member) or isinstance(member, (property, classmethod, staticmethod))
        }
        assert [name for name, function in functions.items() if not inspect.getdoc(function)] == []


def test_the_constructor_takes_the_documented_arguments():
    import isda

    parameters = inspect.signature(isda.ISDALoss).parameters
    expected = {
        "lambda_0": 0.5,
        "total_steps": None,
        "covariance": "full",
        "bound": "jensen",
        "ignore_index": -100,
        "reduction": "mean",
        "label_smoothing": 0.0,
        "class_weight": None,
        "align_corners": False,
        "max_ratio": None,
        "device": None,
        "dtype": None,
    }
    assert list(parameters)[:4] == ["num_classes", "feature_dim", "lambda_0", "total_steps"]
    assert {name: parameters[name].default for name in expected} == expected
    assert list(inspect.signature(isda.ISDALoss.forward).parameters)[1:] == [
        "input",
        "target",
        "features",
        "weight",
        "strength",
    ]


def modules_after(statement):
    code = f"import json, sys; {statement}; print(json.dumps(sorted(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    return set(json.loads(result.stdout))


def test_using_the_core_loads_no_heavy_library_and_no_laboratory():
    loaded = modules_after(
        "import torch; from isda import ISDALoss;"
        "m = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2));"
        "c = ISDALoss.attach(m, 0.5, 10); c(m(torch.zeros(2, 3)), torch.tensor([0, 1])).backward()"
    )
    assert [name for name in HEAVY if name in loaded] == []
    assert [name for name in loaded if name.startswith("isda.lab")] == []


def test_torch_is_imported_when_a_name_that_needs_it_is_first_asked_for():
    assert "torch" not in modules_after("import isda")
    assert {"torch", "isda.bounds"} <= modules_after("import isda; isda.bounds.consistency")
