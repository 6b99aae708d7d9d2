# SPDX-License-Identifier: Apache-2.0
"""The nodes of a resumed run, as the role launch takes them from its answers."""

from __future__ import annotations

import random

import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template
from core_support import ROOT

SITE = [f"node{number}" for number in range(1, 21)]


def test_the_nodes_of_a_resumed_run_keep_their_rank_order():
    """The first node of the list has the model."""
    values = yaml.safe_load((ROOT / "roles/launch/vars/main.yml").read_text(encoding="utf-8"))
    expression = trust_as_template(values["__launch_resumed_nodes"])
    ranks = random.Random(7).sample(SITE, 20)
    for unfinished, wanted in ((False, ranks), (True, [name for name in ranks if name != "node3"])):
        variables = {
            "launch_resume_decision": {"nodes": ranks, "unfinished": unfinished},
            "__launch_site": SITE,
            "__launch_answering": [name for name in SITE if name != "node3"],
        }
        assert Templar(loader=DataLoader(), variables=variables).template(expression) == wanted
