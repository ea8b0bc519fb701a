"""Tasks that must be over."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from spotwise.mesh.process.background_work import end_tasks, uninterrupted


async def test_a_task_that_loses_a_cancellation_ends_all_the_same() -> None:
    """Server clients sometimes swallow a cancellation; a wait for such a task must end all the same."""
    lost = 0

    async def stubborn() -> None:
        nonlocal lost
        while lost < 2:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                lost += 1
        await asyncio.sleep(3600)

    tasks = [asyncio.create_task(stubborn()), asyncio.create_task(asyncio.sleep(3600))]
    await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await end_tasks(tasks)
    assert lost == 2
    assert all(task.cancelled() for task in tasks)


async def test_the_error_of_a_task_is_not_raised() -> None:
    """An error of a cancelled task is not raised to the caller, and an empty list ends at once."""

    async def fail() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(3600)
        raise RuntimeError("too late")

    task = asyncio.create_task(fail())
    await asyncio.sleep(0)
    await end_tasks([task])
    assert isinstance(task.exception(), RuntimeError)
    await end_tasks([])


async def test_work_that_must_not_be_interrupted_is_not() -> None:
    """However often its caller is cancelled; that is cancelled afterwards, and an error of the work comes first."""
    done = asyncio.Event()

    async def work(error: Exception | None = None) -> None:
        await asyncio.sleep(0.1)
        done.set()
        if error is not None:
            raise error

    for error in (None, ValueError("broken")):
        done.clear()
        caller = asyncio.create_task(uninterrupted(work(error)))
        for _ in range(3):
            await asyncio.sleep(0.01)
            caller.cancel()
        with pytest.raises(asyncio.CancelledError if error is None else ValueError):
            await caller
        assert done.is_set()
