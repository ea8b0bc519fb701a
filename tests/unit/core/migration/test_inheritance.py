"""Tests of inheritance: the new pipeline that continues an old pipeline's requests."""

from __future__ import annotations

from dataclasses import replace

from spotwise.core.migration.deployment import Deployment, Instance, RunningRequest
from spotwise.core.migration.mapping.inheritance import Inheritance, inherit
from spotwise.core.parallel.config import ParallelConfig
from spotwise.core.parallel.model_shape import ModelShape

MODEL = ModelShape("small", 4, 8, 1000, 100, 100, 16)


def running(*decoded: list[int]) -> dict[int, tuple[RunningRequest, ...]]:
    """Requests by pipeline: 100 prompt tokens each, and so many decoded; named after pipeline and turn."""
    return {
        pipeline: tuple(RunningRequest(f"{pipeline}{'abcdefgh'[turn]}", 100 + d, d) for turn, d in enumerate(of_one))
        for pipeline, of_one in enumerate(decoded)
        if of_one
    }


def deployed(written: str, *decoded: list[int], leaves: tuple[int, ...] = (), size: int = 1) -> Deployment:
    """A deployment in order on instances of one size; some of which have had their notice since."""
    config = ParallelConfig.parse(written)
    instances = tuple(Instance(f"i{number}", size) for number in range(-(-config.devices // size)))
    whole = Deployment.in_order(config, instances, running(*decoded))
    left = tuple(replace(one, deadline_s=30.0) if n in leaves else one for n, one in enumerate(instances))
    return replace(whole, instances=left)


def after(before: Deployment, written: str) -> Inheritance:
    return inherit(before, ParallelConfig.parse(written), MODEL)


def ids(inheritance: Inheritance) -> dict[int, str]:
    return {number: " ".join(request.id for request in requests) for number, requests in inheritance.running.items()}


def waiting(inheritance: Inheritance) -> str:
    return " ".join(request.id for request in inheritance.waiting)


class TestKept:
    """The requests that continue and those that wait."""

    def test_the_most_decoded_requests_continue(self) -> None:
        """The requests with most decoded tokens continue, as many as the new batches hold; the others wait in that order."""
        inheritance = after(deployed("2,2,1,3", [1, 9, 5], [7, 3, 8]), "1,2,2,3")
        assert sorted(ids(inheritance)[0].split()) == ["0b", "1a", "1c"]
        assert waiting(inheritance) == "0c 1b 0a"

    def test_of_equals_the_earlier_continues(self) -> None:
        inheritance = after(deployed("2,2,1,2", [5, 5], [5, 5]), "1,2,1,3")
        assert ids(inheritance) == {0: "0a 0b 1a"}
        assert waiting(inheritance) == "1b"

    def test_a_request_whose_kv_is_in_part_lost_waits(self) -> None:
        """However much it has decoded: a device of its pipeline went without notice."""
        before = deployed("2,2,1,2", [50], [1])
        left = {device: place for device, place in before.positions.items() if place != (0, 1, 0)}
        inheritance = after(replace(before, positions=left), "1,2,1,2")
        assert ids(inheritance) == {0: "1a"}
        assert waiting(inheritance) == "0a"

    def test_a_device_that_held_no_layers_is_no_loss(self) -> None:
        """The fourth of 4 stages has none where there are 3 layers."""
        before = deployed("1,4,1,1", [5])
        left = {device: place for device, place in before.positions.items() if place.stage < 3}
        model = replace(MODEL, layers=3)
        assert inherit(replace(before, positions=left), ParallelConfig.parse("1,2,1,1"), model).running

    def test_tokens_are_counted_by_old_and_new_pipeline(self) -> None:
        """The tokens of a pair of pipelines are the KV that would be kept."""
        inheritance = after(deployed("2,1,1,2", [3, 4], [5]), "1,2,1,4")
        assert inheritance.tokens == {(0, 0): 207, (1, 0): 105}


class TestTogether:
    """Requests of a pipeline stay together."""

    def test_each_pipeline_keeps_its_number(self) -> None:
        inheritance = after(deployed("3,2,1,2", [1], [2, 3], [4]), "4,1,2,2")
        assert ids(inheritance) == {0: "0a", 1: "1a 1b", 2: "2a"}
        assert inheritance.predecessors == {0: 0, 1: 1, 2: 2}

    def test_a_smaller_batch_sends_on_those_with_least_kv(self) -> None:
        """A smaller batch keeps the requests with most KV; the others go together to a pipeline with free slots."""
        assert ids(after(deployed("1,1,1,4", [30, 10, 20, 40]), "2,1,2,2")) == {0: "0a 0d", 1: "0b 0c"}

    def test_pipelines_without_a_successor_join_others_whole(self) -> None:
        """Requests join the pipeline with slots for all of them, even if another has more slots for some."""
        before = deployed("4,2,1,4", [9, 9], [9, 9], [1], [1, 1])
        assert ids(after(before, "3,1,4,4")) == {0: "0a 0b", 1: "1a 1b", 2: "3a 3b 2a"}

    def test_a_room_that_has_less_but_too_little_space_is_passed_over(self) -> None:
        before = deployed("3,1,1,3", [300, 300, 300], [900, 900], [2, 2])
        assert ids(after(before, "2,2,1,4")) == {0: "0a 0b 0c", 1: "1a 1b 2a 2b"}

    def test_rooms_are_filled_tightly_where_that_keeps_requests_together(self) -> None:
        """Three more fit beside three, and two and two beside two, and only so."""
        before = deployed("5,1,1,3", [900, 900, 900], [800, 800], [5, 5, 5], [4, 4], [3, 3])
        assert ids(after(before, "2,2,1,6")) == {0: "0a 0b 0c 2a 2b 2c", 1: "1a 1b 3a 3b 4a 4b"}

    def test_kv_is_spread_evenly_where_that_cuts_nothing(self) -> None:
        """A new pipeline as large as two old ones continues both."""
        before = deployed("4,1,1,2", [900, 900], [800, 800], [5, 5], [4, 4])
        assert ids(after(before, "2,2,1,8")) == {0: "0a 0b 3a 3b", 1: "1a 1b 2a 2b"}

    def test_the_pipeline_with_most_kv_on_devices_that_stay_is_a_predecessor(self) -> None:
        before = deployed("3,1,1,2", [90, 90], [5], [7], leaves=(0,))
        assert after(before, "2,1,1,2").predecessors == {0: 2, 1: 1}
        assert after(deployed("3,1,1,4", [90, 90], [5], [7]), "2,1,1,4").predecessors == {0: 0, 1: 2}


class TestRunningOn:
    """The pipelines that need not stop."""

    def test_all_run_on_where_pipelines_are_added(self) -> None:
        inheritance = after(deployed("3,2,2,2", [1, 2], [], [3]), "5,2,2,2")
        assert inheritance.running_on == {0: 0, 1: 1, 2: 2}

    def test_one_that_loses_a_device_does_not(self) -> None:
        inheritance = after(deployed("3,2,1,2", [1], [2], [3], leaves=(2,)), "3,2,1,2")
        assert inheritance.running_on == {0: 0, 2: 2}
        assert inheritance.predecessors[1] == 1

    def test_another_degree_stops_all(self) -> None:
        before = deployed("2,2,2,2", [1], [2])
        assert after(before, "2,2,1,2").running_on == {}
        assert after(before, "2,4,2,2").running_on == {}

    def test_of_fewer_pipelines_those_that_may_run_on_are_kept(self) -> None:
        """A pipeline that may run on is kept, even if one that loses a device has more KV; the other's requests move."""
        inheritance = after(deployed("3,2,1,2", [1], [90, 91], [3], leaves=(2,)), "2,2,1,3")
        assert ids(inheritance) == {0: "0a 1a 1b", 1: "2a"}
        assert inheritance.running_on == {1: 2}

    def test_what_comes_on_top_goes_to_one_that_must_stop_anyway(self) -> None:
        """The first loses its device, so two more requests do no harm there."""
        before = deployed("3,1,1,4", [5], [5], [9, 8], leaves=(0,))
        grown = replace(before, running={**before.running, 2: before.running[2] + running([], [], [7, 6, 5, 4])[2]})
        inheritance = after(grown, "3,1,1,4")
        assert inheritance.running_on == {1: 1}
        assert {len(requests) for requests in inheritance.running.values()} == {1, 3, 4}

    def test_it_goes_there_even_if_there_is_more_kv_already(self) -> None:
        """Continuing a pipeline counts more than an even distribution."""
        inheritance = after(deployed("3,1,1,4", [900], [5], [9, 8, 7, 6], leaves=(0,)), "3,1,1,3")
        assert ids(inheritance) == {0: "0a 2d", 1: "1a", 2: "2a 2b 2c"}
        assert inheritance.running_on == {1: 1}

    def test_a_pipeline_that_gives_a_request_up_does_not(self) -> None:
        inheritance = after(deployed("2,1,1,2", [5, 4], [3]), "2,1,1,1")
        assert ids(inheritance) == {0: "0a", 1: "0b"}
        assert inheritance.running_on == {}

    def test_a_pipeline_that_takes_one_in_for_one_that_it_gives_up_does_not(self) -> None:
        inheritance = after(deployed("2,1,1,2", [9, 1], [8, 1]), "1,1,1,2")
        assert ids(inheritance) == {0: "0a 1a"}
        assert inheritance.running_on == {}

    def test_idle_ones_run_on_where_pipelines_are_left(self) -> None:
        inheritance = after(deployed("3,1,1,2", [], [], [4]), "2,1,1,2")
        assert inheritance.running_on == {0: 2, 1: 1}


class TestPhasesApart:
    """Prompts here, decoding there."""

    def test_only_pipelines_that_decode_continue_decoding(self) -> None:
        """A request without decoded tokens stays with the prompt pipelines."""
        inheritance = after(deployed("3,1,1,2", [5, 0], [6], [0]), "1+2,1,1,2")
        assert ids(inheritance) == {0: "2a 0b", 1: "0a", 2: "1a"}

    def test_each_kind_has_its_own_room(self) -> None:
        inheritance = after(deployed("2,1,1,2", [5, 9], [7, 8]), "1+1,1,1,2")
        assert ids(inheritance) == {1: "0b 1b"}
        assert waiting(inheritance) == "1a 0a"

    def test_each_kind_keeps_its_numbers(self) -> None:
        inheritance = after(deployed("1+2,2,1,2", [0], [5], [6, 7]), "2+3,2,1,2")
        assert ids(inheritance) == {0: "0a", 2: "1a", 3: "2a 2b"}
        assert inheritance.running_on == {0: 0, 2: 1, 3: 2}

    def test_idle_ones_stay_of_their_kind(self) -> None:
        """Idle pipelines keep their phase where the new configuration has positions, and change it otherwise."""
        assert after(deployed("1+2,1,1,2"), "1+2,1,1,2").running_on == {0: 0, 1: 1, 2: 2}
        assert after(deployed("2+1,1,1,2"), "1+2,1,1,2").running_on == {0: 0, 1: 2, 2: 1}
        assert after(deployed("1+2,1,1,2", leaves=(0,)), "1+1,1,1,2").running_on == {0: 2, 1: 1}

    def test_phases_can_be_put_together_again(self) -> None:
        inheritance = after(deployed("1+1,1,1,2", [0], [6]), "2,1,1,2")
        assert inheritance.running_on == {0: 0, 1: 1}
