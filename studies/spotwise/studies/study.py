"""Studies of a paper: lines compared at several places, the runs behind each point, and the paper's claims beside ours. A paper
subclasses `Finding`; a figure is a mean over the seeds of the runs' own figures."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Generic, Protocol, TypeVar

_Case = TypeVar("_Case", bound=Hashable)
_Run = TypeVar("_Run", bound="StudyRun")
_Finding = TypeVar("_Finding", bound="Finding[Any, Any]")


class StudyRun(Protocol):
    """What a paper's runs have in common."""

    @property
    def is_steady(self) -> bool:
        """Whether it reached a steady state."""


#: Where a point lies: a value for each of its study's axes.
PointPlace = tuple[float | str, ...]


@dataclass(frozen=True, slots=True)
class StudyPoint(Generic[_Case]):
    """One line of a study at one place: a value for each axis, and the same run with each seed."""

    place: PointPlace
    line: str
    cases: tuple[_Case, ...]


@dataclass(frozen=True, slots=True)
class Study(Generic[_Case]):
    """Lines compared at several places.

    Attributes:
        name: name of its files and documents.
        axes: what varies, with units.
        points: points by place, then by line.
    """

    name: str
    title: str
    axes: tuple[str, ...]
    points: tuple[StudyPoint[_Case], ...]

    @property
    def lines(self) -> list[str]:
        """The compared lines, in order."""
        return list(dict.fromkeys(point.line for point in self.points))

    @property
    def cases(self) -> list[_Case]:
        """All runs of all points."""
        return [case for point in self.points for case in point.cases]


@dataclass(frozen=True, slots=True)
class Finding(Generic[_Case, _Run]):
    """A point and its runs, one per seed."""

    study: Study[_Case]
    point: StudyPoint[_Case]
    runs: tuple[_Run, ...]

    @property
    def is_steady(self) -> bool:
        """Whether all its runs reached a steady state."""
        return all(run.is_steady for run in self.runs)

    def mean(self, figure: str) -> float:
        """Return the mean over the runs of a number."""
        return fmean(getattr(run, figure) for run in self.runs)

    def means(self, figures: str) -> dict[str, float]:
        """Return the means over the runs of a mapping's figures, as far as every run has them."""
        mappings: list[Mapping[str, float]] = [getattr(run, figures) for run in self.runs]
        return {
            name: fmean(own[name] for own in mappings)
            for name in (mappings[0] if mappings else ())
            if all(name in own for own in mappings)
        }


@dataclass(frozen=True, slots=True)
class Findings(Generic[_Finding]):
    """A study and its findings, in the study's order."""

    study: Study[Any]
    points: tuple[_Finding, ...]

    def line(self, name: str) -> dict[PointPlace, _Finding]:
        """Return a line's findings by place."""
        return {finding.point.place: finding for finding in self.points if finding.point.line == name}

    def over(self, line: str, other: str, figure: Callable[[_Finding], float | None]) -> dict[PointPlace, float]:
        """Return one line's figure over another's by place, where both have it."""
        own, base = self.line(line), self.line(other)
        ratios = {}
        for place in own:
            if place in base:
                numerator, denominator = figure(own[place]), figure(base[place])
                if numerator is not None and denominator:
                    ratios[place] = numerator / denominator
        return ratios


def findings_of(
    study: Study[_Case],
    runs: Mapping[_Case, _Run],
    kind: Callable[[Study[_Case], StudyPoint[_Case], tuple[_Run, ...]], _Finding],
) -> Findings[_Finding]:
    """Gather a study's runs into a paper's kind of findings."""
    return Findings(
        study, tuple(kind(study, point, tuple(runs[case] for case in point.cases)) for point in study.points)
    )


@dataclass(frozen=True, slots=True)
class Headline:
    """A claim of a paper beside ours.

    Attributes:
        paper: lowest and highest of the paper's range, equal for one number; `None` where it prints none.
        ours: the same of ours.
        why: why they may differ.
        is_close: our number is about the paper's; `None` where the paper has no number.
    """

    name: str
    paper: tuple[float, float] | None
    ours: tuple[float, float]
    why: str
    is_close: bool | None


def ends(values: Iterable[float]) -> tuple[float, float]:
    """Return the lowest and the highest value."""
    ordered = sorted(values)
    return ordered[0], ordered[-1]
