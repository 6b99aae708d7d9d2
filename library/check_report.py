#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Show the findings of a check."""

from __future__ import annotations

DOCUMENTATION = r"""
module: check_report
short_description: Show all findings of a check as one table
description:
  - Runs on the controller. Fails with the table where a finding keeps a training from starting.
options:
  findings: {description: "What was found, see plugins/module_utils/base/findings.py.", type: list, elements: dict, required: true}
attributes:
  check_mode: {support: full, description: Shows only.}
author: Trainyard
"""

EXAMPLES = r"""
- name: Show the findings
  check_report:
    findings: [{check: clock, level: warn, nodes: [node1], text: is 31 s ahead, remedy: start an NTP service}]
"""

RETURN = r"""
lines: {description: "The table, and READY or NOT READY as its last line.", type: list, elements: str, returned: success}
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.cluster.plugins.module_utils.base import findings
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import printable


def main():
    module = AnsibleModule(
        argument_spec={"findings": {"type": "list", "elements": "dict", "required": True}},
        supports_check_mode=True,
    )
    found = module.params["findings"]
    lines, stops = (
        [printable(line) for line in findings.lines(found)],
        len(findings.stops(findings.merged(found))),
    )
    if stops:
        head = "NOT READY: %d finding%s keep%s this job from starting" % (
            stops,
            "s" if stops > 1 else "",
            "" if stops > 1 else "s",
        )
        module.fail_json(msg=head, lines=lines + [head])
    module.exit_json(changed=False, lines=lines + ["READY: nothing keeps this job from starting"])


if __name__ == "__main__":
    main()
