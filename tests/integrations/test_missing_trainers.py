"""Lightning, skorch and fastai: where one is not installed, its integration names the extra in one sentence."""

import importlib
import sys

import pytest


class NotInstalled:
    """Finds a library as little as Python does where it is not installed."""

    def __init__(self, library):
        self.library = library

    def find_spec(self, name, *_):
        if name == self.library:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@pytest.mark.parametrize("library", ["lightning", "skorch", "fastai"])
def test_a_library_that_is_not_installed_is_one_sentence(library, monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] in (library, "pytorch_lightning")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [NotInstalled(library), *sys.meta_path])
    monkeypatch.delitem(sys.modules, f"isda.integrations.{library}", raising=False)
    with pytest.raises(ImportError, match=rf"is not installed; pip install .*\[{library}\]"):
        importlib.import_module(f"isda.integrations.{library}")
