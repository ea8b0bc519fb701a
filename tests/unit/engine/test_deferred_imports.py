"""What a worker never runs is not imported, and is there for what does use it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.unit.engine.tiny_models import llama_config, save_model

ROOT = Path(__file__).parents[3]

#: A package with a submodule that it imports, and one that it does not.
PACKAGE = {
    "__init__.py": """
from heavy import part
marked = []
def mark(function):
    marked.append(function)
    return function
def disable(function, by=1):
    return lambda *args: ("disabled", by, *args)
def double(number):
    return 2 * number
""",
    "part.py": "class Part:\n    pass\n",
    "apart.py": "here = 1\n",
}
DEFERRED = """
import sys
from spotwise.engine.model.deferred_imports import DeferredPackage
called = {"heavy": ["double"], "heavy.part": ["Part"]}
DeferredPackage("heavy", called, marking=["mark"], disabling=["disable"]).install()
from heavy import disable, double, mark
from heavy.part import Part
import heavy
assert mark(len) is len
own = disable(lambda *args: args, by=2)
assert own(1) == disable()(lambda *args: args)(1) == (1,)
assert not hasattr(heavy, "__file__")
def is_imported():
    return "__file__" in vars(sys.modules["heavy"])
assert not is_imported()
"""
USED = """
assert is_imported()
assert sys.modules["heavy"].marked == [len]
assert own(1) == ("disabled", 2, 1)
"""


def run(folder: Path, code: str) -> str:
    """What a program prints, run in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={"PYTHONPATH": f"{folder}:{ROOT}", "PATH": ""},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_with_package(tmp_path: Path, code: str) -> str:
    (tmp_path / "heavy").mkdir()
    for name, text in PACKAGE.items():
        (tmp_path / "heavy" / name).write_text(text)
    return run(tmp_path, f"{DEFERRED}{code}\nassert is_imported()\nassert sys.modules['heavy'].marked == [len]")


def test_a_call_imports_the_package(tmp_path: Path) -> None:
    run_with_package(tmp_path, "assert double(4) == 8")


def test_an_object_of_a_class_is_one_of_the_imported_class(tmp_path: Path) -> None:
    run_with_package(
        tmp_path, "part = Part()\nfrom heavy.part import Part as Real\nassert type(part) is Real is not Part"
    )


def test_another_name_imports_the_package(tmp_path: Path) -> None:
    run_with_package(tmp_path, "assert heavy.part is sys.modules['heavy.part'] and heavy.part.__file__")


def test_a_name_set_is_set_in_the_package(tmp_path: Path) -> None:
    run_with_package(tmp_path, "heavy.level = 3\nassert sys.modules['heavy'].level == 3")


def test_a_submodule_imports_the_package_and_there_is_one_of_it(tmp_path: Path) -> None:
    code = "import heavy.part\nassert sys.modules['heavy'].part is sys.modules['heavy.part']"
    run_with_package(tmp_path, f"del sys.modules['heavy.part']\n{code}")


def test_a_submodule_that_the_package_does_not_import_is_found(tmp_path: Path) -> None:
    run_with_package(tmp_path, "import heavy.apart\nassert sys.modules['heavy'].apart.here == 1")


def test_a_submodule_that_is_none_is_refused_as_ever(tmp_path: Path) -> None:
    code = """
try:
    import heavy.none
except ModuleNotFoundError as error:
    assert error.name == "heavy.none"
else:
    raise AssertionError
"""
    run_with_package(tmp_path, code)


def test_an_imported_package_is_left_alone(tmp_path: Path) -> None:
    run_with_package(
        tmp_path,
        "assert double(1) == 2\nreal = sys.modules['heavy']\nDeferredPackage('heavy', {}).install()\n"
        "assert sys.modules['heavy'] is real",
    )


def test_a_package_that_is_not_installed_stays_away(tmp_path: Path) -> None:
    run_with_package(
        tmp_path,
        "DeferredPackage('no_such_package', {}).install()\nassert 'no_such_package' not in sys.modules\ndouble(1)",
    )


def test_a_model_is_loaded_and_computes_without_the_compiler(tmp_path: Path) -> None:
    """Neither a worker's imports nor a model's tokens import `torch._dynamo`, sympy's printers and scipy's optimizers."""
    folder = save_model(llama_config(), tmp_path / "llama")
    run(
        tmp_path,
        f"""
import sys
from pathlib import Path
import spotwise.worker.groups.serve, spotwise.worker.serve
from tests.unit.engine.tiny_models import Driver, load_engine, record
for native in (True, False):
    driver = Driver(load_engine(Path({str(folder)!r}), native=native))
    driver.add(record("a", [1, 2, 3, 4, 5]))
    assert driver.finish()
heavy = ("torch._dynamo.config", "torch._inductor", "scipy.linalg", "botocore")
imported = [name for name in heavy if name in sys.modules]
assert imported == [], imported
""",
    )


def test_the_compiler_and_the_optimizer_are_there_for_their_users(tmp_path: Path) -> None:
    """What transformers imported before them calls them; what it decorated is marked; a function is compiled."""
    run(
        tmp_path,
        """
import sys
import spotwise.worker.serve
import numpy, torch
from transformers import PreTrainedModel
from transformers.integrations.eager_paged import eager_paged_attention_forward
from transformers.loss import loss_for_object_detection
from transformers.masking_utils import TransformGetItemToIndex

rows, columns = loss_for_object_detection.linear_sum_assignment(1 - numpy.eye(3))
assert rows.tolist() == columns.tolist() == [0, 1, 2]
assert "torch._dynamo.config" not in sys.modules

import torch._dynamo.config
assert torch._dynamo.config is sys.modules["torch._dynamo.config"]
from torch._dynamo import trace_rules
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex as Real
assert id(PreTrainedModel.can_record_outputs.fget) in trace_rules._allowed_callable_ids
assert type(TransformGetItemToIndex()) is Real
assert eager_paged_attention_forward.__wrapped__.__module__ == eager_paged_attention_forward.__module__
assert torch.compile(lambda x: 2 * x + 1, backend="eager")(torch.ones(2)).tolist() == [3, 3]
""",
    )
