# SPDX-License-Identifier: Apache-2.0
"""Command lines, word for word those of the documents (contract A1, A2, B2, B3, C1, C2)."""

from __future__ import annotations

import ast
import shlex

import pytest
import yaml
from ansible.module_utils.trainyard import launchers
from core_support import ADDRESSES, compiled

EIGHT = "0,1,2,3,4,5,6,7"
C1 = "fleetrun --selected_gpu 0,1,2,3,4,5,6,7 tools/train.py -c configs/ppyoloe/ppyoloe_crn_s_300e_coco.yml --eval"
C2 = (
    "fleetrun --ips=10.127.6.17,10.127.5.142,10.127.45.13,10.127.44.151 --selected_gpu 0,1,2,3,4,5,6,7 tools/train.py "
    "-c configs/ppyoloe/ppyoloe_crn_s_300e_coco.yml --eval"
)
C2_TWO = C2.replace(",10.127.45.13,10.127.44.151", "")
A1 = 'python3 -m paddle.distributed.launch --log_dir=./log/ --gpus "%s" tools/train.py -c configs/rec/rec_mv3_none_bilstm_ctc.yml' % EIGHT
A2 = A1.replace("--gpus", '--ips="10.127.6.17,10.127.5.142" --gpus')
SEG = "configs/pp_liteseg/pp_liteseg_stdc1_cityscapes_1024x512_scale0.5_160k.yml"
# Upstream has moved the script from train.py to tools/train.py (contract B2).
B2 = (
    'python -m paddle.distributed.launch --log_dir=./log/ --gpus "0,1,2,3,4,5,6,7" tools/train.py --config %s --save_dir output/pp_liteseg '
    "--save_interval 1000 --num_workers 3 --do_eval --use_vdl"
) % SEG
B3 = B2.replace("--gpus", "--ips=10.127.6.17,10.127.5.142 --gpus")
OCR = {"suite": {"python": "python3"}, "job": {"launcher": "paddle", "config": "configs/rec/rec_mv3_none_bilstm_ctc.yml", "arguments": []}}
SEGMENTATION = {
    "suite": {"config_flag": "--config"},
    "job": {
        "launcher": "paddle",
        "config": SEG,
        "arguments": ["--save_dir", "output/pp_liteseg", "--save_interval", "1000", "--num_workers", "3", "--do_eval", "--use_vdl"],
    },
}


@pytest.mark.parametrize(
    "arguments, document",
    [
        (dict(count=1), C1),
        (dict(count=2), C2_TWO),
        (dict(count=4), C2),
        (dict(count=1, **OCR), A1),
        (dict(count=2, **OCR), A2),
        (dict(count=1, **SEGMENTATION), B2),
        (dict(count=2, **SEGMENTATION), B3),
    ],
    ids=["C1", "C2 on two", "C2", "A1", "A2", "B2", "B3"],
)
def test_the_plan_holds_the_documents_command(arguments, document):
    assert compiled(**arguments)["argv"] == shlex.split(document)


@pytest.mark.parametrize(
    "name, accelerator, addresses, words",
    [
        ("fleetrun", "cpu", 1, "fleetrun --nproc_per_node=2"),
        ("fleetrun", "cpu", 2, "fleetrun --ips=10.127.6.17,10.127.5.142 --nproc_per_node=2"),
        ("paddle", "cpu", 1, "python -m paddle.distributed.launch --log_dir=./log/ --nproc_per_node=2"),
        ("paddle", "cpu", 2, "python -m paddle.distributed.launch --log_dir=./log/ --ips=10.127.6.17,10.127.5.142 --nproc_per_node=2"),
        ("paddle", "gpu", 1, "python -m paddle.distributed.launch --log_dir=./log/ --gpus 4,5"),
        ("fleetrun", "gpu", 1, "fleetrun --selected_gpu 4,5"),
    ],
)
def test_heads(name, accelerator, addresses, words):
    assert launchers.launcher_argv(name, accelerator, ADDRESSES[:addresses], ["4", "5"]) == words.split(" ")


def test_a_path_with_braces_or_spaces_is_one_word():
    assert launchers.launcher_argv("paddle", "cpu", ["a"], ["0"], "/opt/my {x}/python")[0] == "/opt/my {x}/python"


@pytest.mark.parametrize(
    "value",
    [
        True,
        False,
        None,
        3,
        -1,
        0.5,
        1e-05,
        1e22,
        2.5e-7,
        "text",
        "output/x",
        [1, 2.5, True],
        ["a", "b"],
        [1e-05],
        [],
        "weights/0123/model.pdparams",
        "https://host/x.pdparams",
        "yes",
        "1.0",
        "a: b",
        "null",
        ["a, b", "c"],
        [{"type": "Normalize", "size": [128, 64]}, {"a: b": None}],
    ],
)
def test_an_override_is_read_back_as_it_was_meant(value):
    word = launchers.override_words("-o", {"key": value})[1]
    assert yaml.safe_load(word.partition("=")[2]) == value  # the suites parse the right-hand side as YAML


@pytest.mark.parametrize("value", [True, None, 3, 0.5, "text", "None", "1.0", "output/x", [{"type": "Normalize", "size": [128, 64]}], ""])
def test_a_python_override_is_read_back_as_it_was_meant(value):
    """paddleseg/cvlibs/config.py: what literal_eval cannot read is taken for a text."""
    text = launchers.override_words("--opts", {"key": value}, "python")[1].partition("=")[2]
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        found = text
    assert found == value and type(found) is type(value)


def test_overrides_keep_their_order_and_none_adds_no_flag():
    assert launchers.override_words("-o", {"worker_num": 1, "a.b": "x y"}) == ["-o", "worker_num=1", "a.b=x y"]
    assert launchers.override_words("-o", {}) == []
