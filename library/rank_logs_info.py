#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Read what one node's ranks logged and how they ended."""

from __future__ import annotations

DOCUMENTATION = r"""
module: rank_logs_info
short_description: Read the logs of an attempt's ranks on one node
description:
  - Finds the log of every rank that the plan puts on this node, maps the launcher's local index to
    the global rank, and reads the training steps, the last evaluation, the saved checkpoints, the
    first error with its cause, and how the process ended (as the node's agent saw it).
  - Lists the files to fetch, with their digests. Files that hold a whole environment
    (C(envlog.*), C(backup_env.*), C(default.*.log)) are never among them; of C(default.*.log) only
    the trainers' endpoints are returned.
  - Opens nothing outside the attempt's directory, follows no symbolic link, reads regular files
    only. Logs may have any size and any bytes.
  - Every text that is returned is safe to show. Secrets are masked and control characters escaped.
    The files themselves stay as they are.
options:
  attempt_dir:
    description: The attempt's directory on the node; it holds C(plan.json).
    type: path
    required: true
  node:
    description: The node's name in the plan.
    type: str
    required: true
  digest:
    description:
      - Read every log whole and compute its sha256 (about 50 MB/s). When false, only the end of
        each log is read, for a live view; line numbers, digests and the first step are then null.
    type: bool
    default: true
  mask:
    description:
      - Names of environment variables whose values must not be shown, beside those whose names
        sound secret. Values are found where a name is assigned in a log, and by themselves where
        the plan or the launcher's notes on this node hold them.
    type: list
    elements: str
    default: []
  known:
    description:
      - What the node has already answered about this attempt, C(answer), and when, C(received) (the
        controller's clock). Where it is not empty, the action plugin returns it and asks no node.
        M(trainyard.cluster.attempt_monitor) returns it as C(logs).
    type: dict
    default: {}
attributes:
  check_mode:
    support: full
    description: Reads only.
author: Trainyard
"""

EXAMPLES = r"""
- name: Read every rank's log on every node
  rank_logs_info:
    attempt_dir: "{{ launch_attempt_dir }}"
    node: "{{ inventory_hostname }}"
  register: rank_logs_info

- name: Look at the ends of the logs only
  rank_logs_info:
    attempt_dir: "{{ launch_attempt_dir }}"
    node: "{{ inventory_hostname }}"
    digest: false
  register: rank_logs_info

- name: Show each rank's latest loss
  ansible.builtin.debug:
    msg: >-
      {{ rank_logs_info.ranks | trainyard.cluster.query('[].{rank: rank, state: state, loss: last_step.loss}') }}
"""

RETURN = r"""
node:
  description: The node's name in the plan.
  type: str
  returned: success
now:
  description: The node's clock when the module began (unix time, seconds); it shows clocks that are
    apart.
  type: float
  returned: success
utc_offset:
  description: Seconds that the node's time zone is east of UTC, daylight saving included.
  type: int
  returned: success
ranks:
  description: One entry for each rank of this node, in the order of the local index.
  type: list
  elements: dict
  returned: success
  contains:
    rank: {description: Global rank., type: int}
    node: {description: The node's name., type: str}
    local_rank: {description: Index on this node; the N of C(workerlog.N)., type: int}
    device: {description: Device id from the plan., type: str}
    file:
      description: The log, relative to the attempt's directory; null without one.
      type: str
    home: {description: The log's name on the controller., type: str}
    bytes: {description: Size when it was read; null without a file., type: int}
    sha256: {description: Digest of the first C(bytes) bytes; null with O(digest=false)., type: str}
    lines: {description: "Lines, an unended last one too; null with O(digest=false).", type: int}
    mtime: {description: Time of the last write (unix time)., type: float}
    first_time:
      description: Time of its first line with a date, by the node's zone (unix time); null where
        none has one within the first 64 KiB.
      type: float
    last_time: {description: The same of the last line with a date., type: float}
    steps: {description: Number of step lines; null with O(digest=false)., type: int}
    first_step:
      description: "First step line's values: line, epoch, step, steps, loss, lr, ips, eta
        (seconds), batch_cost (seconds), as the suite has them."
      type: dict
    last_step:
      description: Last step line's values; a loss that is no finite number is null.
      type: dict
    evaluation:
      description: Values of the last evaluation, with the line and the epoch and step before it.
      type: dict
    nan:
      description: The first step whose loss was nan or infinite (line, epoch, step, loss as text),
        or null.
      type: dict
    saved:
      description: The last 20 saved checkpoints (path, line, epoch, step).
      type: list
      elements: dict
    saved_count: {description: Number of saved checkpoints; null with O(digest=false)., type: int}
    first_error:
      description: The error that best explains an end of this rank, or null.
      type: dict
      contains:
        kind: {description: Exception class or kind of message., type: str}
        text: {description: Its message., type: str}
        line: {description: Line in the log; null with O(digest=false)., type: int}
        file: {description: Source file of the innermost frame of a Python traceback., type: str}
        file_line: {description: Its line., type: int}
        context: {description: Lines around it., type: list, elements: str}
        origin: {description: "Where the message comes from: python, cpp or line.", type: str}
        cause: {description: Name in the catalogue of causes., type: str}
        grade:
          description: C(primary) can begin a failure, C(shared) is between ranks, C(secondary) is
            what follows another rank's end.
          type: str
        meaning: {description: What it means in a sentence., type: str}
        remedy: {description: What helps., type: str}
        source: {description: Where the rule comes from., type: str}
        root: {description: "Where exceptions are chained, the first of the chain.", type: str}
        peer: {description: The rank that gloo lost contact with., type: int}
        handled: {description: Whether code of the training printed it and went on., type: bool}
        survived: {description: Whether a training step followed it., type: bool}
        thread:
          description: Whether it ended a thread of the trainer; steps go on until the data that is
            loaded runs out.
          type: bool
        signal: {description: Signal that Paddle's handler named., type: str}
        sender: {description: Process that sent the signal., type: int}
        time: {description: Unix time that Paddle's handler named., type: int}
    last_line:
      description: The last line of its log that says something, glog's left out; null for an empty
        log.
      type: str
    pid: {description: Process id., type: int}
    started: {description: When the agent first saw it (unix time)., type: float}
    ended: {description: When the agent saw its end (unix time)., type: float}
    exit_code:
      description: Real exit code of the rank's process; null where it was not observed or a signal
        ended it.
      type: int
    signal: {description: "Signal that ended it, as C(SIGKILL).", type: str}
    observed:
      description: "Who saw the exit code or signal: C(agent), C(launcher) or null."
      type: str
    state: {description: "waiting, starting, training, done, failed, killed or stopped.", type: str}
files:
  description: The files to fetch.
  type: list
  elements: dict
  returned: success
  contains:
    file: {description: Path relative to the attempt's directory., type: str}
    home: {description: Name on the controller., type: str}
    bytes: {description: Size when it was read., type: int}
    sha256: {description: Digest of these bytes; null with O(digest=false)., type: str}
endpoints:
  description: The trainers' endpoints as the launcher wrote them down, in rank order; null where it
    did not.
  type: list
  elements: str
  returned: success
exit:
  description: exit.json with C(stopped_at), the time a stop was asked for; null while the unit has
    not ended.
  type: dict
  returned: success
launcher:
  description: The launcher's own start, end, exit code, signal, first error in its console, and
    what it said of children that ended.
  type: dict
  returned: success
scheduler:
  description: MindSpore's scheduler where it ran here, its log's name on the controller and first
    error; else null.
  type: dict
  returned: success
guard:
  description: "What the node's guard found: C(stall), a training that hung, C(loss), a neighbour
    that vanished, each null where nothing was found, and C(seen), what its ranks did when a hang
    was ended."
  type: dict
  returned: success
devices:
  description: "What the node's devices, its kernel's log and NCCL's RAS showed when the attempt hung
    or ended badly (C(cards), C(lost), C(users), C(kernel), C(ras)); null where nothing was asked."
  type: dict
  returned: success
free:
  description: Bytes that are free on the file system of the attempt (None where it does not say).
  type: int
  returned: success
has_checkpoint:
  description: Whether the training saved a checkpoint on this node, by the names of the files.
  type: bool
  returned: success
restarted:
  description: Whether the node was booted since the attempt began and no end of it is recorded.
  type: bool
  returned: success
by_nodes:
  description: Whether the nodes of a detached run began the attempt, and no controller did.
  type: bool
  returned: success
planned_by:
  description: The node that planned the attempt, where the nodes of a detached run began it.
  type: str
  returned: success
problems:
  description: Files that could not be read and logs that no rank of the plan owns.
  type: list
  elements: str
  returned: success
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.cluster.plugins.module_utils.agent import priority
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts.evidence import (
    EvidenceError,
    collect,
)


def main():
    module = AnsibleModule(
        argument_spec={
            "attempt_dir": {"type": "path", "required": True},
            "node": {"type": "str", "required": True},
            "digest": {"type": "bool", "default": True},
            "mask": {"type": "list", "elements": "str", "default": []},
            "known": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    where = module.params["attempt_dir"]
    priority.lower()  # the next attempt of the run may be starting on this node
    try:
        found = collect(
            where, module.params["node"], module.params["digest"], module.params["mask"]
        )
    except EvidenceError as error:
        module.fail_json(
            msg=(
                f"{module.params['node']}: {where}: {error}; start the attempt again or name"
                " another one"
            ),
            code=error.code,
        )
    module.exit_json(changed=False, **found)


if __name__ == "__main__":
    main()
