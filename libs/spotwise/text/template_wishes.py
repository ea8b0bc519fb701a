"""Wishes of how a model thinks and writes, as the variables of its chat template.

Templates have no common names. A wish reaches the template under the names that it reads, and is ignored where it reads none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

#: What clients call efforts, the least first. A template may take some of them only.
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_EFFORT, _VERBOSITY, _BUDGET = "reasoning_effort", "verbosity", "thinking_budget"
#: Names of a template's switch of thinking.
_SWITCHES = ("enable_thinking", "thinking")
#: Verbosity of an answer that nothing is wished of.
_USUAL_VERBOSITY = "medium"


class WishedTemplate(Protocol):
    """A chat template, as wishes see it.

    Attributes:
        variables: names that it reads.
        efforts: values of `reasoning_effort` that it takes.
    """

    variables: frozenset[str]
    efforts: tuple[str, ...]


def wished_variables(
    effort: str | None, verbosity: str | None, template: WishedTemplate, *, is_thinker: bool
) -> tuple[dict[str, Any], list[str]]:
    """Return the template's variables for an effort and a verbosity, and the names of those that it has none for.

    Args:
        effort: one of `EFFORTS`; the nearest that the template takes is given, and any other text is ignored. A template
            that only switches thinking on or off does so.
        verbosity: given as it is.
        template: of the model.
        is_thinker: the model's thinking is known to be split off.
    """
    variables = dict[str, Any]()
    ignored = list[str]()
    if effort is not None:
        found = _of_effort(effort, template)
        variables |= found
        if not found and (is_thinker or effort != "none"):
            ignored.append(_EFFORT)
    if verbosity is not None:
        if _VERBOSITY in template.variables:
            variables[_VERBOSITY] = verbosity
        elif verbosity != _USUAL_VERBOSITY:
            ignored.append(_VERBOSITY)
    return variables, ignored


def thinking_variables(
    template: WishedTemplate, *, enabled: bool, budget_tokens: int | None = None
) -> Mapping[str, bool | int]:
    """Return the template's variables that switch thinking on, for so many tokens at most, or off; none where it has none."""
    variables: dict[str, bool | int] = {name: enabled for name in _SWITCHES if name in template.variables}
    if enabled and budget_tokens is not None and _BUDGET in template.variables:
        variables[_BUDGET] = budget_tokens
    return variables


def takes_effort(template: WishedTemplate) -> bool:
    """Whether a template reads an effort, beside any switch of thinking."""
    return bool(template.efforts)


def _of_effort(effort: str, template: WishedTemplate) -> dict[str, Any]:
    if effort not in EFFORTS:
        return {}
    switch = dict(thinking_variables(template, enabled=effort != "none"))
    if not template.efforts or (effort == "none" and switch and "none" not in template.efforts):
        return switch
    place = EFFORTS.index(effort)
    nearest = min(template.efforts, key=lambda each: abs(EFFORTS.index(each) - place))
    return {_EFFORT: nearest} | (switch if effort == "none" else {})
