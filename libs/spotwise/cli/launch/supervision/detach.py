"""`spotwise up --detach`: a supervisor that outlives the command."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time

from spotwise.cli.launch.options import MeshOptions
from spotwise.cli.launch.run_folder import run_folder
from spotwise.cli.launch.supervision.run_state import read_state
from spotwise.cli.launch.supervision.service_logs import log_tail
from spotwise.cli.launch.supervision.stop_signals import StopSignals
from spotwise.cli.launch.supervision.supervisor import EXIT_FAILED, EXIT_INTERRUPTED
from spotwise.cli.report import Report

_POLL_S = 0.05
#: A detached supervisor's only output.
_REFUSAL = re.compile(r"error: \S+ cannot serve: ")


def start_detached(options: MeshOptions, report: Report, signals: StopSignals) -> int:
    """Start a supervisor in a session of its own and wait until its mesh is up.

    Returns:
        The command's exit status: 0 the mesh is up, 1 it failed, 130 interrupted. Unless 0, every process has ended.

    Raises:
        CommandError: a mesh of that name runs.
    """
    folder = run_folder(options.name)
    with folder.claimed():
        pass  # Found out here, it shows at once; the supervisor claims the name for itself.
    folder.supervisor_log_path.unlink(missing_ok=True)
    # It appends, as all writers of logs that are rotated must.
    with open(folder.supervisor_log_path, "ab", opener=lambda name, flags: os.open(name, flags, 0o600)) as log:
        supervisor = subprocess.Popen(
            [sys.executable, "-P", "-m", "spotwise.cli.launch.supervision.supervise"],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    if supervisor.stdin is not None:
        with supervisor.stdin:
            supervisor.stdin.write(options.model_dump_json().encode())
    interrupted = False
    with report.starting():
        while supervisor.poll() is None:
            state = read_state(folder.state_path)
            if state is not None and state.supervisor.pid == supervisor.pid:
                report.progress({service_id: service.state for service_id, service in state.services.items()})
                if state.ready:
                    return 0
            if signals.stop_requested and not interrupted:
                interrupted = True
                supervisor.send_signal(signal.SIGTERM)
            time.sleep(_POLL_S)
    if interrupted:
        return EXIT_INTERRUPTED
    log_path = folder.supervisor_log_path
    refusals = [line for line in log_tail(log_path, 60) if _REFUSAL.match(line)]
    if refusals:
        report.say(refusals[-1], style="bold red")
        return EXIT_FAILED
    report.log_end(f"the mesh did not come up; the end of {log_path}:", log_tail(log_path, 60))
    return EXIT_FAILED
