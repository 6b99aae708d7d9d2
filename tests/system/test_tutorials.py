# SPDX-License-Identifier: Apache-2.0
"""The sites of the tutorials are valid, and the pages show their files as they are."""

from __future__ import annotations

import re

import pytest
import yaml
from ansible.inventory.manager import InventoryManager
from ansible.parsing.dataloader import DataLoader
from ansible.vars.hostvars import HostVars
from ansible.vars.manager import VariableManager
from bad_input_support import Bench
from core_support import ROOT, put

SITES = ROOT / "examples" / "sites"
# Each site with its job, the number of its nodes, and the devices of each node.
JOBS = {"two-workstations": ("receipts.yml", 2, 1), "four-by-eight": ("parts.yml", 4, 8)}
LISTING = re.compile(
    r"^`(examples/sites/[\w./-]+)`:\n\n```yaml\n(.*?)^```$", re.MULTILINE | re.DOTALL
)
PAGES = [
    path.relative_to(ROOT).as_posix()
    for folder in ("docs/tutorials", "docs/zh-CN/tutorials")
    for path in sorted((ROOT / folder).glob("*.md"))
]


@pytest.fixture
def bench(tmp_path, load_plugin, monkeypatch):
    return Bench(tmp_path, load_plugin("action", "job_config"), monkeypatch)


@pytest.mark.parametrize("site", JOBS)
def test_site_and_job_of_a_tutorial_are_valid(bench, site):
    job, nodes, devices = JOBS[site]
    found, lines = bench.ask(
        sources=[str(SITES / site)], job=None, words=[f"config={SITES / site / job}"]
    )
    assert lines == []
    assert len(found["nodes"]) == nodes
    assert all(len(node["devices"]) == devices for node in found["nodes"])


# The data keys of the two configs as upstream has them, and the files of the tutorials' data sets.
OCR_DATA = "{name: SimpleDataSet, data_dir: ./train_data, label_file_list: [./train_data/list.txt]}"
CODE = {
    "two-workstations": {
        "tools/train.py": "",
        "configs/rec/ch_ppocr_v2.0/rec_chinese_lite_train_v2.0.yml": (
            f"Global: {{epoch_num: 500}}\nTrain:\n  dataset: {OCR_DATA}\n"
            f"  loader: {{batch_size_per_card: 256}}\nEval:\n  dataset: {OCR_DATA}\n"
        ),
    },
    "four-by-eight": {
        "tools/train.py": "",
        "configs/ppyoloe/ppyoloe_crn_s_300e_coco.yml": "num_classes: 80\n"
        "TrainDataset: !COCODataSet {dataset_dir: dataset/coco, image_dir: train2017,"
        " anno_path: annotations/instances_train2017.json}\n"
        "EvalDataset: !COCODataSet {dataset_dir: dataset/coco, image_dir: val2017,"
        " anno_path: annotations/instances_val2017.json}\n",
    },
}
RECEIPTS = {"train.txt": "images/1.jpg\tTOTAL\n", "val.txt": "", "images/1.jpg": "x"}


@pytest.fixture
def inputs_of(bench, run_action, tmp_path):
    """Read a tutorial's inputs on the controller, with its data where data says, or as it is."""

    def read(site, data=None):
        words = [f"config={SITES / site / JOBS[site][0]}"]
        found, _lines = bench.ask(sources=[str(SITES / site)], job=None, words=words)
        return run_action(
            "job_inputs",
            {
                "suite": found["suite"],
                "job": found["job"],
                "code": str(put(tmp_path / "code", CODE[site])),
                "data": data or found["source"]["data"],
                "accelerator": "gpu",
                "nodes": len(found["nodes"]),
                "devices": len(found["nodes"][0]["devices"]),
                "cache_dir": str(tmp_path / "cache"),
            },
        )

    return read


@pytest.mark.parametrize("missing", [None, "val.txt", "train.txt"])
def test_the_receipts_are_read_where_the_page_puts_them(inputs_of, tmp_path, missing):
    files = {name: text for name, text in RECEIPTS.items() if name != missing}
    receipts = str(put(tmp_path / "receipts", files))
    result = inputs_of("two-workstations", {"receipts": {"path": receipts}})
    if missing:
        assert result["failed"] and missing in result["msg"]
    else:
        assert set(result["data"]) == {"receipts"}


def test_the_parts_are_asked_of_the_nodes_with_all_their_paths(inputs_of):
    (placed,) = inputs_of("four-by-eight")["placed"]
    assert (placed["path"], placed["placement"]) == ("/home/shared/parts", "shared")
    below = {"", "/train", "/val", "/annotations/train.json", "/annotations/val.json"}
    assert set(placed["needs"]) == {placed["path"] + path for path in below}


def test_the_shared_home_of_a_tutorial_gives_each_node_its_own_directory(bench):
    """Two nodes with one product directory would overwrite each other's runs."""
    loader = DataLoader()
    inventory = InventoryManager(loader=loader, sources=[str(SITES / "four-by-eight")])
    manager = VariableManager(loader=loader, inventory=inventory)
    hostvars = HostVars(inventory, manager, loader)
    names = inventory.get_groups_dict()["trainers"]
    assert len({hostvars[name]["trainyard_home"] for name in names}) == len(names) == 4


def test_the_groups_of_the_cloud_inventory_are_the_products(tmp_path):
    """The page's file for `constructed`, behind machines with tags as a cloud has them."""
    page = (ROOT / "docs" / "runbooks" / "cloud-inventory.md").read_text(encoding="utf-8")
    groups = page.split("`20-groups.yml`:\n\n```yaml\n")[1].partition("```")[0]
    roles = {"gpu-02": "trainer", "gpu-01": "trainer", "gpu-03": "spare", "login": None}
    hosts = {name: {"tags": {"role": role} if role else {}} for name, role in roles.items()}
    put(tmp_path, {"10-cloud.yml": yaml.safe_dump({"all": {"hosts": hosts}}, sort_keys=False)})
    put(tmp_path, {"20-groups.yml": groups})
    inventory = InventoryManager(loader=DataLoader(), sources=[str(tmp_path)])
    found = inventory.get_groups_dict()
    assert (found["trainers"], found["spares"]) == (["gpu-02", "gpu-01"], ["gpu-03"])


@pytest.mark.parametrize("page", PAGES)
def test_a_tutorial_shows_every_file_of_its_site_as_it_is(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    shown = dict(LISTING.findall(text))
    folder = SITES / page.rpartition("/")[2].removesuffix(".md")
    files = {path.relative_to(ROOT).as_posix(): path for path in folder.rglob("*.yml")}
    assert set(shown) == set(files)
    for name, path in files.items():
        assert shown[name] == path.read_text(encoding="utf-8"), name
