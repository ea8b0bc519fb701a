"""Maximum-weight matching, flat and on two levels.

Law: every column (a position, or a group) gets a row of its own (a device, or an instance) so that the gains add up to the most
(Kuhn-Munkres; SpotServe, section 4.2). On two levels, an instance's gain by a group is the optimum of its devices and the
group's positions. Of equal rows the earlier is used. Equal blocks, frequent as pipelines are alike, are solved once.
Gains are exact up to 2**53 bytes (8 PiB), the integers of a float64.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

Gains = NDArray[np.int64]


def fill_columns(gains: Gains | NDArray[np.float64]) -> list[int]:
    """Return the row of each column, so that the gains add up to the most; `ValueError`: no matching fills every column.
    `gains`: rows x columns, at least as many rows as columns; `-inf` where a row cannot have a column.
    """
    if gains.shape[0] < gains.shape[1]:
        raise ValueError(f"{gains.shape[0]} rows cannot fill {gains.shape[1]} columns; give fewer columns")
    _, found = linear_sum_assignment(gains.T, maximize=True)
    rows = np.asarray(found, dtype=np.int64)
    taken = np.zeros(gains.shape[0], dtype=bool)
    taken[rows] = True
    for row in range(gains.shape[0]):
        if taken[row]:
            continue
        as_good = np.flatnonzero((rows > row) & (gains[row] == gains[rows, np.arange(len(rows))]))
        if len(as_good):  # idle becomes the latest row that this one can replace; that row's own turn is still to come
            column = as_good[np.argmax(rows[as_good])]
            taken[rows[column]], taken[row] = False, True
            rows[column] = row
    return [int(row) for row in rows]


def most_gained(gains: Gains) -> int:
    """Return the gain of a flat matching: an upper bound for any matching on two levels."""
    return int(gains[linear_sum_assignment(gains, maximize=True)].sum())


def match_groups(
    gains: Gains, instances: Sequence[Sequence[int]], groups: Sequence[Sequence[int]]
) -> tuple[int, dict[int, int]]:
    """Match instances with groups, and the devices of each with the positions of its group.

    Args:
        gains: gains of devices x positions, in bytes.
        instances, groups: the rows of each instance's devices; the columns of each group, every column in one.

    Returns:
        The total gain, and the row of each column.

    Raises:
        ValueError: there are not enough instances with capacity for the groups.
    """
    chosen = fill_columns(_worth(gains, instances, groups))
    rows: dict[int, int] = {}
    gained = 0
    for group, instance in zip(groups, chosen, strict=True):
        block = gains[np.ix_(instances[instance], group)]
        for place, device in enumerate(fill_columns(block)):
            rows[group[place]] = instances[instance][device]
            gained += int(block[device, place])
    return gained, rows


def bundle(
    gains: Gains, instances: Sequence[Sequence[int]], bundles: Sequence[Sequence[int]]
) -> tuple[tuple[int, ...], ...] | None:
    """Group whole bundles of positions that are best on the same instance, for `match_groups`; `None`: capacity is missing.

    Each instance is split into benches as large as a bundle, in the order of its devices; the bundles matched with an
    instance's benches are a group. All `bundles` (columns that belong together) are of one size.
    """
    size = len(bundles[0])
    benches: list[Sequence[int]] = []
    owners: list[int] = []
    for owner, rows in enumerate(instances):
        starts = range(0, len(rows) - size + 1, size)
        benches += [rows[start : start + size] for start in starts]
        owners += [owner] * len(starts)
    if len(benches) < len(bundles):
        return None
    groups: dict[int, list[int]] = {}
    for columns, bench in zip(bundles, fill_columns(_worth(gains, benches, bundles)), strict=True):
        groups.setdefault(owners[bench], []).extend(columns)
    return tuple(tuple(groups[owner]) for owner in sorted(groups))


def _worth(gains: Gains, instances: Sequence[Sequence[int]], groups: Sequence[Sequence[int]]) -> NDArray[np.float64]:
    """Return what each instance gains by each group at best; `-inf` where the group does not fit."""
    worth = np.full((len(instances), len(groups)), -np.inf)
    for size in sorted({len(rows) for rows in instances}):
        of_size = [index for index, rows in enumerate(instances) if len(rows) == size]
        rows = np.array([instances[index] for index in of_size], dtype=np.intp)
        for length in sorted({len(columns) for columns in groups if len(columns) <= size}):
            of_length = [index for index, columns in enumerate(groups) if len(columns) == length]
            columns = np.array([groups[index] for index in of_length], dtype=np.intp)
            blocks = gains[rows[:, None, :, None], columns[None, :, None, :]]
            worth[np.ix_(of_size, of_length)] = _optima(blocks)
    return worth


def _optima(blocks: Gains) -> NDArray[np.float64]:
    """Return the optimum of each block, for instances x groups x devices x positions."""
    instances, groups, devices, positions = blocks.shape
    if positions == 1:
        return np.asarray(blocks.max(axis=(2, 3)), dtype=np.float64)
    flat = np.ascontiguousarray(blocks).reshape(instances * groups, devices * positions)
    written, width = flat.tobytes(), flat.itemsize * devices * positions
    known: dict[bytes, float] = {}
    optima = np.empty(instances * groups)
    for index in range(instances * groups):
        key = written[index * width : (index + 1) * width]
        optimum = known.get(key)
        if optimum is None:
            block = flat[index].reshape(devices, positions)
            optimum = known[key] = most_gained(block)
        optima[index] = optimum
    return optima.reshape(instances, groups)
