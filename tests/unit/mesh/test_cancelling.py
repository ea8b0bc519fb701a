"""Tasks that must be over."""

from __future__ import annotations

import asyncio
import contextlib

from spotwise.mesh.cancelling import end_tasks


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
