#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Write a run's last figures as a text file for Prometheus."""

from __future__ import annotations

DOCUMENTATION = r"""
module: run_metrics
short_description: Write a run's figures for the node exporter of Prometheus
description:
  - Writes C(metrics.prom) into the run's directory from its C(run.json) and C(plan.json), in the exposition format that the textfile
    collector of the node exporter reads. No log is read.
  - With O(directory), the same text goes there as C(trainyard-<site>-<job>.prom), readable by all, so that the newest run of a job takes the
    place of the one before. The file of a run that was started later is left alone.
  - Files appear whole or not at all. A directory that cannot be written is a warning, since a training's end does not hang on it.
options:
  runs_dir: {description: Where the controller keeps its runs., type: path, required: true}
  run_id: {description: The run., type: str, required: true}
  directory: {description: The collector's directory on this machine; none where it is empty., type: path}
attributes:
  check_mode: {support: full, description: Writes nothing and tells what would change.}
author: Trainyard
"""

EXAMPLES = r"""
- name: Write the run's figures for the node exporter
  run_metrics:
    runs_dir: runs
    run_id: 20261120-103501-ppyoloe-1f2e
    directory: /var/lib/prometheus/node-exporter
"""

RETURN = r"""
path: {description: The file in the run's directory., type: str, returned: success}
copy: {description: The file in O(directory); null where there is none., type: str, returned: success}
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import (
    attempt_dir,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.base import manifest
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import printable
from ansible_collections.trainyard.cluster.plugins.module_utils.report import prometheus

ARGUMENTS = {
    "runs_dir": {"type": "path", "required": True},
    "run_id": {"type": "str", "required": True},
    "directory": {"type": "path"},
}


def main():
    module = AnsibleModule(
        argument_spec=ARGUMENTS,
        supports_check_mode=True,
    )
    if not attempt_dir.RUN_ID.match(module.params["run_id"]):
        module.fail_json(msg=printable("{!r} is no run id".format(module.params["run_id"])))
    run_dir = os.path.join(module.params["runs_dir"], module.params["run_id"])
    directory = module.params["directory"]
    plan, record = (
        manifest.read_json(os.path.join(run_dir, name)) for name in ("plan.json", "run.json")
    )
    if not record:
        module.fail_json(
            msg=(
                f"{run_dir}/run.json is missing or no JSON; it is written when a run starts and"
                " when it ends"
            )
        )
    text = prometheus.text_of(plan or {}, record)
    path = os.path.join(run_dir, prometheus.NAME)
    copy = None
    changed = prometheus.put(path, text, 0o600, not module.check_mode)
    if directory:
        copy = os.path.join(directory, prometheus.file_name(plan or {}, record))
        try:
            changed = (
                not prometheus.newer(copy, text)
                and prometheus.put(copy, text, 0o644, not module.check_mode)
            ) or changed
        except OSError as error:
            module.warn(
                f"{copy}: {error.strerror}; the node exporter does not see this run, {path} has its"
                " figures"
            )
            copy = None
    module.exit_json(changed=changed, path=path, copy=copy)


if __name__ == "__main__":
    main()
