"""The threads that compute an operation together, in a program of their own: a team that hangs must not hang the tests."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from spotwise.engine.native import build

#: Each piece is computed once: the sum of their numbers is known, and so is how many there were.
PROGRAM = """
#include <cstdio>
#include <cstdlib>
#include "team.h"
int main(int, char** arguments) {
  spotwise::Team team(std::atoi(arguments[1]));
  const int64_t count = std::atoll(arguments[2]);
  std::atomic<int64_t> ran{0}, sum{0};
  for (int round = 0; round < 2; round++)
    team.each(count, [&](int64_t piece, int) { ran++; sum += piece; });
  std::printf("%lld %lld\\n", (long long)ran.load(), (long long)sum.load());
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled program."""
    compiler = shlex.split(os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++") or "")
    if not compiler:
        pytest.skip("there is no C++ compiler")
    folder = tmp_path_factory.mktemp("team")
    (folder / "team.cpp").write_text(PROGRAM)
    headers = Path(build.__file__).parent
    command = [*compiler, "-std=c++20", "-O1", "-pthread", f"-I{headers}", str(folder / "team.cpp"), "-o", "team"]
    subprocess.run(command, cwd=folder, check=True)
    return folder / "team"


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("count", [0, 1, 1000, (1 << 19) + 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1000, (1 << 21) + 5])
def test_every_piece_is_computed_once_however_many_there_are(program: Path, threads: int, count: int) -> None:
    """An operation of 2^20 pieces, a prompt of 14,000 tokens on the largest models, ends as one of a thousand does."""
    done = subprocess.run(
        [str(program), str(threads), str(count)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == [str(2 * count), str(count * (count - 1))]
