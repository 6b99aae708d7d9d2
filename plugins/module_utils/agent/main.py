# SPDX-License-Identifier: Apache-2.0
"""Verbs of agent.pyz, the one archive with all programs of a run on a node.

The controller builds it (plugin_utils/agent/zipapp.py) from this package and the modules that it
imports. It needs only Python >= 3.8. `python3 -I agent.pyz` has nothing but the archive and the
standard library on its path.

    agent.pyz run ATTEMPT NODE              the attempt's unit: start the command, follow its ranks
    agent.pyz ended ATTEMPT NODE [CONFIG]   end of the unit: write exit.json, stop the peers
    agent.pyz guard ATTEMPT NODE            unit of the guard: end a hang, notice a lost peer
    agent.pyz stacks ATTEMPT NODE           write evidence/ of the ranks that run
    agent.pyz devices ATTEMPT NODE MOMENT   write evidence/ of the devices and the kernel's log
    agent.pyz gate RUN ATTEMPT PEER         forced command of sshd: carry out the call of a peer
    agent.pyz openmpi VERB ...              Open MPI's daemons and ranks (openmpi.py)
    agent.pyz send-logs                     send an attempt's logs to the controller
    agent.pyz listen DIRECTORY              unit of the network check: listen for the other nodes
"""

from __future__ import annotations

import os
import sys


def _run(words):
    from . import runner

    return runner.run(*words)


def _ended(words):
    from . import attempt_end

    return attempt_end.finish(*words)


def _guard(words):
    from . import guard

    return guard.watch(*words)


def _stacks(words):
    from . import stack_dump

    stack_dump.collect(*words)


def _devices(words):
    from . import device_report

    device_report.collect(*words)


def _gate(words):
    from . import peer_gate

    try:
        return peer_gate.main(words, os.path.dirname(os.path.abspath(sys.argv[0])))
    except BrokenPipeError:  # the caller has gone
        os._exit(0)


def _openmpi(words):
    from . import openmpi

    return openmpi.main(words)


def _send_logs(_words):
    from . import log_sender

    return log_sender.main()


def _listen(words):
    from . import network_listener

    return network_listener.main(*words)


VERBS = {
    "run": (_run, (2,)),
    "ended": (_ended, (2, 3)),
    "guard": (_guard, (2,)),
    "stacks": (_stacks, (2,)),
    "devices": (_devices, (3,)),
    "gate": (_gate, (3,)),
    "openmpi": (_openmpi, None),
    "send-logs": (_send_logs, (0,)),
    "listen": (_listen, (1,)),
}


def main(arguments):
    """Execute the program that the first word names and return its exit code.

    Each imports only what it needs.
    """
    program, counts = VERBS.get((arguments or [""])[0], (None, ()))
    words = arguments[1:]
    if program is None or (counts is not None and len(words) not in counts):
        raise SystemExit(__doc__)
    return program(words)
