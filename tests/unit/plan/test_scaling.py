# SPDX-License-Identifier: Apache-2.0
"""Advice on batch, learning rate and iterations by the rule of the suite's documentation and by
upstream's formula. Each has its source. The tests also cover what `apply` sets.
"""

from __future__ import annotations

import re

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.plan import scaling

# As much of the suites' tables as the advice reads; tests/system/test_shipped_jobs.py holds the
# shipped jobs against the real ones.
TABLES = {
    "paddledetection": {
        "config_keys": {
            "epochs": "epoch",
            "batch": "TrainReader.batch_size",
            "learning_rate": "LearningRate.base_lr",
        },
        "argument_keys": {},
    },
    "paddleocr": {
        "config_keys": {
            "epochs": "Global.epoch_num",
            "batch": "Train.loader.batch_size_per_card",
            "learning_rate": "Optimizer.lr.learning_rate",
        },
        "argument_keys": {},
    },
    "paddleseg": {
        "config_keys": {
            "iterations": "iters",
            "batch": "batch_size",
            "learning_rate": "lr_scheduler.learning_rate",
        },
        "argument_keys": {"--iters": "iterations", "--batch_size": "batch"},
    },
}
DETECTION = {"epoch": 300, "TrainReader": {"batch_size": 8}, "LearningRate": {"base_lr": 0.01}}
TABLE = {"Global": {"epoch_num": 100}, "Train": {"loader": {"batch_size_per_card": 48}},
         "Optimizer": {"lr": {"learning_rate": 0.001, "values": [0.001, 0.0001, 0.00005]}}}  # fmt: skip
SEGMENTATION = {"iters": 160000, "batch_size": 2, "lr_scheduler": {"learning_rate": 0.00006}}

C6 = {
    "machines": 4, "devices": 8, "per_card_batch": {"value": 8, "source": "C6"}, "learning_rate": {"rule": "unchanged", "source": "C6"},
    "accuracy": "DistributedTraining_cn.md",
}  # fmt: skip
README = {
    "commit": "666f597",
    "per_card_batch": 8,
    "learning_rate": 0.01,
    "cards": 8,
    "rule": "linear",
    "source": "configs/ppyoloe/README.md",
}
A9 = {
    "machines": 3, "devices": 8, "per_card_batch": {"value": 48, "source": "A9"}, "accuracy": "A10",
    "learning_rate": {"rule": "times", "factor": 2, "default": {"factor": 3, "accuracy": "73.42 %"}, "key": "Optimizer.lr.values", "source": "A9"},
}  # fmt: skip
OCR = {"commit": "bf1c33f", "learning_rate": [0.001, 0.0001, 0.00005]}
B6 = {
    "machines": 3, "devices": 8, "per_card_batch": {"value": 2, "source": "the config"}, "learning_rate": {"rule": "unstated"}, "accuracy": "B6",
    "iterations": {"rule": "divide", "cards": 4, "source": "B6"},
}  # fmt: skip
SET_35K = dict(B6, iterations={"rule": "set", "value": 35000, "source": "B6"})


def advise(
    suite,
    document,
    effective,
    nodes,
    devices=8,
    given=None,
    upstream=None,
    arguments=(),
    mode="advise",
):
    """Return (advice, its lines as one text)."""
    job = {
        "document": document,
        "upstream": upstream or {},
        "arguments": list(arguments),
        "scaling": mode,
    }
    advice = scaling.advise(job, TABLES[suite], effective, given or {}, nodes, devices)
    return advice, "\n".join(scaling.lines(advice))


# --- the rule of the documentation and upstream's formula, both with their source


def test_pp_yoloe_on_four_machines_shows_both_rules():
    advice, text = advise("paddledetection", C6, DETECTION, 4, upstream=README)
    batch, rate = advice["batch"], advice["settings"][0]
    assert (batch["now"], batch["all"], batch["base"], batch["source"]) == (8, 256, 64, "C6")
    assert "256 in total; " in text and "8 x 8 = 64 (C6)" in text
    assert (rate["name"], rate["now"]) == ("learning rate", 0.01)
    assert (rate["document"]["value"], rate["document"]["source"]) == (0.01, "C6")
    assert "0.01, unchanged, " in text
    assert rate["upstream"]["value"] == 0.04 and "0.04 by upstream" in text
    assert "(configs/ppyoloe/README.md): LearningRate.base_lr=0.04" in text
    assert advice["epochs"] == 300 and "4 times fewer" in text
    assert "about 1 %" in text and "(DistributedTraining_cn.md)" in text
    # the rule of the documentation changes nothing, and upstream's formula is never applied
    assert (advice["overrides"], advice["arguments"]) == ({}, [])


def test_upstreams_rule_counts_images_not_cards():
    """The README's formula: lr x (batch x cards) / (batch then x cards then)."""
    effective = dict(DETECTION, TrainReader={"batch_size": 4})
    advice, text = advise(
        "paddledetection", C6, effective, 4, given={"TrainReader.batch_size": 4}, upstream=README
    )
    assert "LearningRate.base_lr=0.02" in text
    batch = advice["batch"]
    assert (batch["now"], batch["own"], batch["documented"]) == (4, True, 8)
    assert "the site or the job" in text and "for another batch" in text


def test_slanet_doubles_on_three_machines_and_names_the_default():
    advice, text = advise("paddleocr", A9, TABLE, 3, upstream=OCR)
    (rate,) = advice["settings"]
    assert (rate["name"], rate["now"]) == ("learning rate", [0.001, 0.0001, 0.00005])
    rule = rate["document"]
    assert (rule["value"], rule["source"]) == ([0.002, 0.0002, 0.0001], "A9")
    assert "[0.002, 0.0002, 0.0001]" in text and "[0.001, 0.0001, 0.00005]" in text
    assert (rule["default"]["factor"], rule["default"]["accuracy"]) == (3, "73.42 %")
    assert rule["default"]["value"] == [0.003, 0.0003, 0.00015]
    assert "[0.003, 0.0003, 0.00015]" in text and "gave 73.42 % (A9)" in text
    # Piecewise reads values; learning_rate beside it has no effect
    assert advice["overrides"] == {"Optimizer.lr.values": [0.002, 0.0002, 0.0001]}
    assert "Optimizer.lr.values=[0.002,0.0002,0.0001]; `scaling: apply`" in text


@pytest.mark.parametrize("nodes, devices", [(2, 8), (4, 8), (3, 4)])
def test_what_is_said_of_three_machines_is_not_guessed_for_others(nodes, devices):
    advice, text = advise("paddleocr", A9, TABLE, nodes, devices, mode="apply")
    rule = advice["settings"][0]["document"]
    assert advice["overrides"] == {} and (rule["value"], rule["source"]) == (None, "A9")
    assert rule["why"].startswith("x2 ") and "3 machines x 8 only" in rule["why"]
    assert f"is unknown: {rule['why']} (A9)" in text
    assert "changes nothing here" in scaling.apply(advice)[2][0]


@pytest.mark.parametrize(
    "document, nodes, value", [(B6, 3, 26667), (B6, 4, 20000), (SET_35K, 3, 35000)]
)
def test_segformer_iterations(document, nodes, value):
    advice, text = advise("paddleseg", document, SEGMENTATION, nodes)
    setting = advice["settings"][-1]
    assert (setting["name"], setting["now"]) == ("iterations", 160000)
    assert (setting["document"]["value"], setting["document"]["source"]) == (value, "B6")
    assert f"{value:,}, from 160,000, " in text
    assert (advice["overrides"], advice["arguments"]) == ({}, ["--iters", str(value)])


def test_iterations_without_an_option_go_into_the_config():
    table = dict(TABLES["paddleseg"], argument_keys={})
    job = {"document": B6, "arguments": [], "scaling": "apply"}
    assert scaling.advise(job, table, SEGMENTATION, {}, 3, 8)["overrides"] == {"iters": 26667}


def test_the_division_counts_images_too():
    """With a per-card batch of 4 instead of 2, half of the steps show the model as many images."""
    advice, _text = advise(
        "paddleseg", B6, dict(SEGMENTATION, batch_size=4), 3, given={"batch_size": 4}
    )
    assert advice["arguments"] == ["--iters", "13333"]


def test_35k_is_said_of_three_machines_only():
    advice, text = advise("paddleseg", SET_35K, SEGMENTATION, 2)
    rule = advice["settings"][-1]["document"]
    assert advice["arguments"] == [] and (rule["value"], rule["source"]) == (None, "B6")
    assert rule["why"].startswith("35,000 ") and "3 machines x 8 only" in rule["why"]
    assert f"{rule['why']} (B6)" in text


# --- a rule that was measured with one batch and one rate


def seg(batch):
    return dict(SEGMENTATION, batch_size=batch)


def table(batch):
    return dict(TABLE, Train={"loader": {"batch_size_per_card": batch}})


@pytest.mark.parametrize("suite, document, effective, words", [
    ("paddleocr", A9, table(24), "x2 is documented for 48 per card only"), ("paddleocr", A9, table(96), "x2 is documented for 48 per card only"),
    ("paddleocr", A9, table(None), "x2 is documented for 48 per card, and the batch of this config is unknown"),
    ("paddleseg", SET_35K, seg(4), "35,000 is documented for 2 per card only"), ("paddleseg", SET_35K, seg(1), "35,000 is documented for 2 per card only"),
])  # fmt: skip
def test_what_is_said_of_one_batch_is_not_guessed_for_others(suite, document, effective, words):
    advice, text = advise(suite, document, effective, 3, upstream=OCR, mode="apply")
    rule = advice["settings"][-1]["document"]
    assert rule["why"] == words and f"24 cards is unknown: {words} ({rule['source']})" in text
    assert "73.42" not in text and advice["settings"][-1]["document"]["value"] is None
    overrides, arguments, (line,) = scaling.apply(advice)
    assert (overrides, arguments) == ({}, [])
    assert "changes nothing here" in line and line.endswith(f": {words}")


@pytest.mark.parametrize("upstream, batch, nodes, devices, shown", [
    (OCR, 48, 3, 8, True),
    (dict(OCR, learning_rate=[0.001, 0.0001, 0.0001]), 48, 3, 8, False), (dict(OCR, learning_rate=0.001), 48, 3, 8, False),
    ({}, 48, 3, 8, False), (OCR, 24, 3, 8, False), (OCR, 48, 2, 8, False), (OCR, 48, 4, 6, False), (OCR, 48, 3, 16, False),
])  # fmt: skip
def test_the_defaults_accuracy_is_shown_with_exactly_what_it_was_measured_with(
    upstream, batch, nodes, devices, shown
):
    _advice, text = advise("paddleocr", A9, table(batch), nodes, devices, upstream=upstream)
    assert ("gave 73.42 % (A9)" in text) is shown


def test_a_batch_that_the_document_does_not_give_is_not_the_one_that_it_measured():
    document = {key: value for key, value in A9.items() if key != "per_card_batch"}
    for batch in (48, None):
        advice, text = advise("paddleocr", document, table(batch), 3, upstream=OCR)
        assert (
            advice["overrides"] == {"Optimizer.lr.values": [0.002, 0.0002, 0.0001]}
            and "73.42" not in text
        )


@pytest.mark.parametrize("nodes, devices, batch, words", [
    (4, 8, 8, "4 times fewer"), (4, 8, 4, "2 times fewer"), (1, 8, 16, "2 times fewer"), (3, 7, 8, "2.625 times fewer"), (1, 3, 8, "2.667 times more"),
    (1, 8, 4, "2 times more"), (1, 2, 8, "4 times more"), (4, 8, 2, None), (1, 8, 8, None), (4, 8, None, None),
])  # fmt: skip
def test_steps_follow_from_the_images_a_step(nodes, devices, batch, words):
    """An epoch shows all images once. Four times the cards with a quarter of the batch need as many
    steps as before.
    """
    _advice, text = advise(
        "paddledetection", C6, dict(DETECTION, TrainReader={"batch_size": batch}), nodes, devices
    )
    said = [line for line in text.splitlines() if "epochs stay" in line]
    assert len(said) == bool(words)
    assert all(f" {words} steps " in line and "stay 300, " in line for line in said)


def test_steps_are_not_compared_where_the_document_gives_no_batch():
    document = {key: value for key, value in C6.items() if key != "per_card_batch"}
    assert "epochs stay" not in advise("paddledetection", document, DETECTION, 4)[1]


# --- where nothing is to be said


@pytest.mark.parametrize("suite, document, effective, upstream", [
    ("paddledetection", C6, DETECTION, README), ("paddleocr", A9, TABLE, None),
    ("paddleseg", B6, SEGMENTATION, None), ("paddleseg", SET_35K, SEGMENTATION, None),
])  # fmt: skip
@pytest.mark.parametrize("nodes, devices", [(1, 8), (2, 4)])
def test_no_advice_at_the_documents_one_machine(
    suite, document, effective, upstream, nodes, devices
):
    advice, text = advise(
        suite, document, effective, nodes, devices, upstream=upstream, mode="apply"
    )
    assert "nothing changes" in text and "accuracy" not in text and "as documented (" not in text
    assert (advice["overrides"], advice["arguments"]) == ({}, [])
    overrides, arguments, lines = scaling.apply(advice)
    assert (overrides, arguments) == ({}, []) and "changes nothing here" in lines[0]


def test_one_machines_iterations_are_named_as_a_gap():
    advice, text = advise("paddleseg", B6, SEGMENTATION, 1)
    assert advice["settings"][-1]["one_machine"] == {"value": 80000, "source": "B6"}
    assert "(B6) would give 80,000" in text


def test_fewer_cards_than_the_document_has():
    linear = dict(C6, learning_rate={"rule": "linear", "source": "x"})
    for document, suite, effective in (
        (linear, "paddledetection", DETECTION),
        (B6, "paddleseg", SEGMENTATION),
    ):
        advice, text = advise(suite, document, effective, 2, 1)
        assert (advice["cards"], advice["base"]) == (2, 8) and "no rule is for fewer" in text
        assert (advice["overrides"], advice["arguments"]) == ({}, [])


def test_a_job_without_a_document_gets_its_batch_and_nothing_else():
    advice, text = advise("paddledetection", None, DETECTION, 4)
    assert advice["base"] is None and "no documented setting" in text
    assert (advice["batch"]["now"], advice["batch"]["all"]) == (8, 256)
    assert "8 per card, 256 in total" in text and "0.01, as the config says" in text
    assert advice["overrides"] == {}


def test_a_config_that_is_not_upstreams_gets_no_number_of_its_rule():
    advice, text = advise(
        "paddledetection", C6, dict(DETECTION, LearningRate={"base_lr": 0.02}), 4, upstream=README
    )
    rule = advice["settings"][0]["upstream"]
    assert rule["value"] is None and rule["why"] in text
    assert "0.01 for 8 cards x 8" in rule["why"] and rule["why"].endswith(" 0.02")


def test_unknown_values_are_called_unknown():
    advice, text = advise(
        "paddledetection", C6, {"LearningRate": {"base_lr": "half"}}, 4, upstream=README
    )
    assert "batch: unknown" in text and "learning rate: unknown" in text
    assert advice["overrides"] == {}
    advice, text = advise(
        "paddledetection", C6, {"LearningRate": {"base_lr": 0.01}}, 4, upstream=README
    )
    rule = advice["settings"][0]["upstream"]
    assert rule["value"] is None and f"no number here: {rule['why']}" in text
    assert "the batch of this config" in rule["why"]
    advice, text = advise("paddleseg", B6, {"iters": 160000, "batch_size": "auto"}, 3)
    rule = advice["settings"][-1]["document"]
    assert (rule["value"], rule["source"], advice["arguments"]) == (None, "B6", [])
    assert "the batch of this config" in rule["why"] and f"{rule['why']} (B6)" in text


@pytest.mark.parametrize("values", [None, "warm", ["a", 0.1], [], [True], {"a": 1}])
def test_a_piecewise_rate_that_is_no_list_of_numbers_is_unknown(values):
    advice, text = advise(
        "paddleocr",
        A9,
        dict(TABLE, Optimizer={"lr": {"learning_rate": 0.001, "values": values}}),
        3,
    )
    assert "learning rate: unknown" in text and advice["overrides"] == {}


def test_upstream_without_a_rule_or_of_the_same_mind_adds_no_line():
    advice, text = advise(
        "paddledetection",
        C6,
        DETECTION,
        4,
        upstream=dict(README, rule="unstated", notes=["it has another config"]),
    )
    assert "upstream's rule" not in text and advice["notes"] == ["it has another config"]
    assert text.endswith(f"upstream: {advice['notes'][0]}")
    linear = dict(C6, learning_rate={"rule": "linear", "source": "x"})
    advice, text = advise("paddledetection", linear, DETECTION, 4, upstream=README)
    rule = advice["settings"][0]["document"]
    assert (rule["value"], rule["source"]) == (0.04, "x")
    assert "0.04, from 0.01, " in text and "(x)" in text and "upstream" not in text


# --- the choice of a user is left alone


@pytest.mark.parametrize("suite, document, effective, nodes, given, arguments, words", [
    ("paddleocr", A9, TABLE, 3, {"Optimizer.lr.values": [0.001, 0.0001, 0.00005]}, (),
     "learning rate: [0.001, 0.0001, 0.00005], as the site or the job sets it; left alone"),
    ("paddleseg", B6, SEGMENTATION, 3, {"iters": 160000}, (), "iterations: 160,000, as the site or the job sets it; left alone"),
    ("paddleseg", B6, SEGMENTATION, 3, {}, ("--iters", "5000"), "iterations: 5,000, as the site or the job sets it; left alone"),
    ("paddleseg", SET_35K, SEGMENTATION, 3, {}, ("--iters=5000",), "iterations: 5,000, as the site or the job sets it; left alone"),
])  # fmt: skip
def test_a_value_of_the_jobs_own_is_respected(
    suite, document, effective, nodes, given, arguments, words
):
    advice, text = advise(
        suite, document, effective, nodes, given=given, arguments=arguments, mode="apply"
    )
    assert words in text
    name = words.partition(":")[0]
    overrides, given_arguments, (line,) = scaling.apply(advice)
    assert (overrides, given_arguments) == ({}, [])
    assert "changes nothing here" in line and line.endswith(f" sets the {name} itself")


@pytest.mark.parametrize("key", ["Optimizer", "Optimizer.lr", "Optimizer.lr.values"])
def test_a_key_above_is_a_choice_too(key):
    """A user who gives the whole of Optimizer.lr has chosen the rates in it. One more key in it
    would mix two choices.
    """
    advice, text = advise("paddleocr", A9, TABLE, 3, given={key: {}}, upstream=OCR, mode="apply")
    (rate,) = advice["settings"]
    assert (rate["now"], rate["own"]) == ([0.001, 0.0001, 0.00005], True)
    assert (rate["document"], rate["upstream"]) == (None, None)
    assert "[0.001, 0.0001, 0.00005]" in text and "; left alone" in text
    overrides, arguments, (line,) = scaling.apply(advice)
    assert (overrides, arguments) == ({}, []) and "the learning rate itself" in line
    gone, text = advise(
        "paddleocr", A9, dict(TABLE, Optimizer={"lr": None}), 3, given={key: None}, mode="apply"
    )
    (rate,) = gone["settings"]
    assert (rate["now"], rate["own"]) == (None, True) and scaling.apply(gone)[:2] == ({}, [])
    assert "rate: unknown, as the " in text and "; left alone" in text


@pytest.mark.parametrize(
    "key",
    ["Opt", "Optimizer.l", "Optimizer.lr.learning_rate", "lr.values", "Optimizer.lr.values_too"],
)
def test_another_key_is_no_choice_of_this_one(key):
    advice, _text = advise("paddleocr", A9, TABLE, 3, given={key: 1})
    assert advice["overrides"] == {"Optimizer.lr.values": [0.002, 0.0002, 0.0001]}


def test_an_own_learning_rate_silences_upstreams_rule():
    effective = dict(DETECTION, LearningRate={"base_lr": 0.03})
    advice, text = advise(
        "paddledetection", C6, effective, 4, given={"LearningRate.base_lr": 0.03}, upstream=README
    )
    assert (advice["settings"][0]["now"], advice["settings"][0]["own"]) == (0.03, True)
    assert "0.03, as the site or the" in text and "upstream" not in text
    assert advice["settings"][0]["upstream"] is None


# --- apply


def test_apply_gives_exactly_the_documents_rule_and_says_so():
    advice, text = advise("paddleocr", A9, TABLE, 3, mode="apply")
    overrides, arguments, lines = scaling.apply(advice)
    assert (overrides, arguments) == ({"Optimizer.lr.values": [0.002, 0.0002, 0.0001]}, [])
    (line,) = lines
    assert "set the learning rate " in line
    assert re.findall(r"\[.*?\]", line) == [
        "[0.001, 0.0001, 0.00005]",
        "[0.002, 0.0002, 0.0001]",
        "[0.002,0.0002,0.0001]",
    ]
    assert " Optimizer.lr.values=[" in line and line.endswith("] (A9)")
    assert "-e scaling=apply" not in text  # it is on


def test_apply_never_takes_upstreams_rule():
    advice, _text = advise("paddledetection", C6, DETECTION, 4, upstream=README, mode="apply")
    overrides, arguments, lines = scaling.apply(advice)
    assert (overrides, arguments) == ({}, []) and "changes nothing here" in lines[0]


def test_a_linear_rule_of_the_document_is_applied():
    document = dict(C6, learning_rate={"rule": "linear", "source": "x"})
    advice, _text = advise("paddledetection", document, DETECTION, 4, mode="apply")
    assert scaling.apply(advice)[0] == {"LearningRate.base_lr": 0.04}


def test_a_rate_that_the_config_keeps_elsewhere_is_not_set_by_the_scripts_option():
    table = dict(TABLES["paddleocr"], argument_keys={"--learning_rate": "learning_rate"})
    job = {"document": A9, "arguments": [], "scaling": "apply"}
    overrides, arguments, _lines = scaling.apply(scaling.advise(job, table, TABLE, {}, 3, 8))
    assert (list(overrides), arguments) == (["Optimizer.lr.values"], [])


def test_numbers_are_given_as_people_write_them():
    """0.0001 x 3 is 0.00030000000000000003 to a computer."""
    tripled = dict(A9, learning_rate=dict(A9["learning_rate"], factor=3))
    assert advise("paddleocr", tripled, TABLE, 3)[0]["overrides"] == {
        "Optimizer.lr.values": [0.003, 0.0003, 0.00015]
    }


def test_advise_applies_nothing():
    advice, _text = advise("paddleocr", A9, TABLE, 3)
    assert advice["overrides"] and scaling.apply(advice) == ({}, [], [])
