"""Each sentence of README's known limits is held by tests that exist: of what is refused, lost or different there."""

from __future__ import annotations

import ast
import functools
import re
import tomllib

import pytest

from tests.unit.docs.docs_pages import README, ROOT, section

#: How each sentence begins, and the tests that fail where it is not true.
HELD_BY = {
    "A request without a stream ends with the gateway": (
        "tests/live/test_gateway_loss.py::test_a_gateway_that_is_stopped_tells_those_whom_it_has_not_answered",
        "tests/unit/gateway/test_found_requests.py::test_a_request_that_none_could_find_again_is_not_kept",
        "tests/unit/gateway/test_resumed_mesh.py::test_an_answer_with_a_key_is_taken_over_whole",
    ),
    "Streams continue at another gateway": (
        "tests/live/test_gateway_loss.py::test_streams_go_on_at_another_gateway_when_theirs_is_killed",
        "tests/live/test_gateway_loss.py::test_a_restarted_gateway_goes_on_with_its_own_streams",
    ),
    "A request whose prompt is still computed": (
        "tests/unit/core/planner/test_evacuation.py::test_prompts_are_waited_for_until_the_last_moment",
        "tests/live/test_faults.py::test_the_only_prompt_worker_is_killed_while_it_computes",
        "tests/live/test_faults.py::test_a_token_worker_is_killed",
    ),
    "LoRA adapters": (
        "tests/unit/cli/test_adapter_options.py::test_several_processes_a_worker_are_refused",
        "tests/unit/cli/test_adapter_options.py::test_workers_that_cannot_serve_adapters",
    ),
    "Workers of several processes": (
        "tests/unit/engine/test_kv_size.py::test_a_group_on_a_gpu_is_refused_with_a_remedy",
    ),
    "`spotwise reshape` and the planner's own re-shapes": (
        "tests/unit/core/planner/test_reshape_orders.py::test_workers_without_devices_are_no_groups",
        "tests/unit/core/planner/test_reshaping.py::test_requests_move_at_once_to_the_new_group_and_the_old_one_leaves",
        "tests/live/test_reshapes.py::test_requests_go_on_through_another_shape",
    ),
    "How long it takes until new groups serve": (
        "tests/unit/core/planner/test_learned_costs.py"
        "::test_forming_depends_on_the_processes_and_on_the_weights_that_travel",
    ),
    "EC2's part of the fleet": ("tests/unit/cloud/test_ec2_instances.py::test_boto3_itself_is_called",),
    "While Redis is unavailable": ("tests/live/test_store_unavailable.py::test_a_stopped_store_is_called_so_and_soon",),
    "Interrupted requests give the same tokens": (
        "tests/live/test_faults.py::test_answers_of_all_kinds_are_the_same_through_a_kill",
        "tests/unit/engine/test_batch_invariance.py::test_a_resumed_request_continues_with_the_same_tokens",
        "tests/unit/engine/test_one_order.py::test_a_model_gives_the_same_logits",
    ),
    "Without native kernels the rounding": (
        "tests/unit/engine/test_native_linear.py::test_torch_alone_rounds_a_row_by_what_is_computed_beside_it",
    ),
    "Requests stay in their class": (
        "tests/property/test_crossings.py::test_every_crossing_is_counted_once",
        "tests/property/test_crossings.py::test_nothing_crosses_where_crossings_are_refused",
        "tests/live/test_crossings.py::test_crossings_are_counted_and_explained",
    ),
    "Decoder-only models with one KV shape": (
        "tests/unit/engine/test_compatibility.py::test_a_model_that_would_be_computed_wrongly_is_refused_with_the_reason",
        "tests/unit/engine/test_compatibility.py::test_an_encoder_decoder_model_is_refused",
        "tests/unit/engine/test_kv_size.py::test_a_window_needs_no_less",
    ),
    "Linux only": ("tests/unit/docs/test_known_limits.py::test_the_package_is_for_linux",),
    "The CUDA path": ("tests/unit/docs/test_known_limits.py::test_the_cuda_path_ran_where_its_adr_says",),
}
TESTS = sorted({test for tests in HELD_BY.values() for test in tests})


def said() -> str:
    """The section."""
    return section(README.read_text(), "Known limits")


def sentences(text: str) -> list[str]:
    """Its sentences, each in one line."""
    points = [" ".join(point.split()) for point in re.split(r"^- ", text, flags=re.MULTILINE)[1:]]
    return [sentence for point in points for sentence in re.split(r"(?<=\.) (?=[A-Z`])", point)]


def held_by_none(text: str) -> list[str]:
    """Sentences that begin like none of those that are held, or like several."""
    return [each for each in sentences(text) if sum(each.startswith(start) for start in HELD_BY) != 1]


@functools.cache
def names_of(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text())
    functions = (node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(node.name for node in functions if node.name.startswith("test_"))


def test_every_sentence_is_held() -> None:
    """And nothing is held that is not said."""
    assert held_by_none(said()) == []
    assert [start for start in HELD_BY if not any(each.startswith(start) for each in sentences(said()))] == []


@pytest.mark.parametrize("added", ["- It flies.\n", "- Linux only. It flies.\n"])
def test_a_sentence_that_no_test_holds_is_found(added: str) -> None:
    assert held_by_none(said() + added) == ["It flies."]


@pytest.mark.parametrize("test", TESTS)
def test_what_holds_a_sentence_exists(test: str) -> None:
    path, _, function = test.partition("::")
    assert function in names_of(path)


def test_the_package_is_for_linux() -> None:
    """As its metadata say, for those who have not read that far."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    systems = [each for each in project["classifiers"] if each.startswith("Operating System ::")]
    assert systems == ["Operating System :: POSIX :: Linux"]


def test_the_cuda_path_ran_where_its_adr_says() -> None:
    """A run elsewhere is written into both."""
    adr = " ".join((ROOT / "docs" / "adr" / "0011-cuda-path.md").read_text().split())
    assert re.search(r"passed on one H100 80GB with torch 2\.11 .* Not run: several cards, RDMA,", adr)
    (sentence,) = (each for each in sentences(said()) if each.startswith("The CUDA path"))
    assert "on one H100 with torch 2.11, with no other card, several cards or RDMA" in sentence
