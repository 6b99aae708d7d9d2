# SPDX-License-Identifier: Apache-2.0
"""The codes of Ascend's software: each family has its cause, and none of them is unknown."""

from __future__ import annotations

import re

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.logs import (
    error_patterns,
    parser,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.logs.error_scanner import ErrorScan
from ansible_collections.trainyard.cluster.plugins.module_utils.logs.failure_catalogue import (
    ascend_codes,
    classify,
    entry_of,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.logs.root_error import GENERAL

# The templates of error_code.json (CANN 9), of hcomm's err_msg.cc and of opbase's log.cpp.
TEMPLATES = {
    "device_setting": (
        "E10001: Value %s for parameter %s is invalid. Reason: %s.",
        "E11001: [input_dim] and [input_shape] are mutually exclusive in [NetParameter]",
        "E12009: Op [%s]'s input [%s] is not found in graph_def.",
        "E13014: Value [%s] for Op [%s] is invalid. Reason: %s.",
        "E14001: Argument [%s] for Op [%s, optype [%s]], is invalid. Reason: %s.",
        "E16001: Model has no [%s] node.",
        "E19010: No parser is registered for Op [%s, optype [%s]].",
        "E20001: Operator %s compilation failed. Optype is %s.",
        "E21002: Failed to parse file %s. Reason: %s.",
        "E22001: Compilation result for operator %s not found. Optype is %s.",
        "E39001: The argument is invalid.",
        "E40021: Failed to compile Op %s. oppath is %s and optype is %s.",
        "E50058: In op [%s], [%s]",
        "E60119: In op[%s], Input is too large, the minimum tiling may exceed UB_Buffer",
        "E70012: In op[%s], the inputs[%s][%s] could not be broadcast together with shapes",
        "E80012: In op[%s], the num of dimensions of input/output[%s] should be in the range",
        "E90003: Compile operator failed, cause: Template constraint, detailed information: %s.",
        "EB0000: Failed to compile the operator. Reason:%s, %s",
        "EB3000: Memory allocation check failed. Reason: %s",
        "EC0005: Value for parameter [--soc_version] is invalid",
        "EE1001: The argument is invalid. Reason: %s",
        "EE1005: The current system or device does not support %s.",
        "EE1017: %s failed. Parameter %s is invalid. Reason: %s.",
        "EE2002: Value %s for environment variable %s is invalid. Expected value: %s.",
        "EF2003: Dynamic shape is not allowed in computation graphs.",
        "EH0006: %s is not supported. Reason: %s.",
        "EK0001: Value %s for parameter %s is invalid. Reason: %s.",
        "EL0014: The operation is unsupported.",
        "EN0001: Value [%s] for [%s] is invalid. Reason: %s.",
        "EO0003: The model is invalid. Reason: %s.",
        "EP0005: Conflict of configuration items in configuration file %s. Reason: %s.",
        "EZ0007: Input parameter %s of operator %s has incorrect dtype %s.",
        "EZ0501: IR for Op [%s, optype [%s]], is not registered.",
        "EZ3003: No supported Ops kernel and engine are found for [%s], optype [%s].",
        "EZ9010: No parser is registered for Op [%s, optype [%s]].",
    ),
    "version_mismatch": (
        "E30004: The binary file of the user processes on the device is damaged.",
        "E30006: Failed to verify the OPP.",
        "E30009: Failed to verify the signature of package %s on the device. Reason: %s.",
        "E39011: Failed to load the package %s on the device.",
        "E40002: Unsupported Python version: %s. Expected: %s or later.",
        "E80001: The %s information is missing in the %s configuration file of OPP package",
        "EE1015: %s failed. Reason: The driver version capability is insufficient. %s",
    ),
    "import_error": (
        "E40020: Failed to import Python module %s. Reason: %s.",
        "EC0010: Failed to import Python module [%s].",
        "EF1005: Failed to import the pulp module.",
    ),
    "device_unavailable": (
        "E30005: Failed to connect the device.",
        "E39002: Failed to obtain the number of devices and the device list.",
        "E39005: The TSDaemon process initialization is abnormal.",
        "EL0001: Device not found or invalid.",
        "EL0002: The device ID is invalid.",
        "EL0015: The device access is invalid.",
        "EM9001: Failed to attach the queue_schedule process to the shared memory group.",
    ),
    "device_busy": (
        "E30003: The number of started user processes on the device exceeds the limit.",
        "EJ0001: Failed to initialize the HCCP process.",
        "EL0005: The resources are busy.",
    ),
    "out_of_memory": (
        "EE1013: Failed to allocate %s bytes of host memory via %s to Runtime.",
        "EH0010: Failed to allocate %s bytes of host memory via %s to ACL.",
        "EK0201: Failed to allocate %s host memory for Profiling.",
        "E10044: The available memory is [%s KB], which is less than the required minimum",
    ),
    "device_out_of_memory": (
        "EI0011: Failed to allocate %s bytes of NPU memory.",
        "EL0004: Failed to allocate memory requested by %s module.",
    ),
    "kernel_error": (
        "EZ2001: %s Fault %s occurs in the system: %s",
        "E30008: AI CPU operator execution timed out. %s",
    ),
    "permission": ("EL0007: You have no permission.",),
    "resource_limit": ("EE1021: The runtime module failed to create host %s through API %s.",),
    "data_missing": ("E10410: File [%s] does not exist.",),
    "disk_full": ("EK0204: Insufficient disk space. Reason: %s.",),
    "collective_timeout": ("EE1002: Stream synchronize timeout. %s",),
    # They say which part failed, and not why.
    "accelerator_call": (
        "E19999: Unknown error occurred. Please check the log.",
        "E30007: Failed to add the AI CPU scheduler to the Cgroup.",
        "EE1009: Failed to execute model (model_id=%s). Reason: %s.",
        "EE1023: %s failed. Reason: %s.",
        "EE4001: Failed to bind the stream to the model. %s",
        "EK9999: An unknown error occurred. Please check the log.",
        "EL0006: The resources are insufficient.",
        "EL0009: The stream resources are insufficient.",
        "EZ9903: An error of the runtime",
        "EE9999: Inner Error!",
    ),
}
# Numbers of rt_error_codes.h, ge_error_codes.h, acl_base.h and aclnn_base.h with their names.
NUMBERS = {
    "device_setting": (
        (100000, "ACL_ERROR_INVALID_PARAM"),
        (100024, "ACL_ERROR_OP_NOT_FOUND"),
        (100039, "ACL_ERROR_COMPILING_STUB_MODE"),
        (107000, "ACL_ERROR_RT_PARAM_INVALID"),
        (107003, "ACL_ERROR_RT_STREAM_CONTEXT"),
        (107030, "ACL_ERROR_RT_CAPTURE_MODE_NOT_SUPPORT"),
        (145021, "ACL_ERROR_GE_SHAPE_INVALID"),
        (148049, "ACL_ERROR_INVALID_OPP_PATH"),
        (161002, "ACLNN_ERR_PARAM_INVALID"),
        (200003, "ACL_ERROR_MEMORY_ADDRESS_UNALIGNED"),
        (207000, "ACL_ERROR_RT_FEATURE_NOT_SUPPORT"),
        (561002, "ACLNN_ERR_INNER_TILING_ERROR"),
        (561107, "ACLNN_ERR_INNER_OPP_PATH_NOT_FOUND"),
    ),
    "version_mismatch": (
        (207019, "ACL_ERROR_RT_FEATURE_NOT_SUPPORT_UPDATE_OP"),
        (561003, "ACLNN_ERR_INNER_FIND_KERNEL_ERROR"),
        (561112, "ACLNN_ERR_INNER_OPP_KERNEL_PKG_NOT_FOUND"),
    ),
    "device_out_of_memory": (
        (200000, "ACL_ERROR_BAD_ALLOC"),
        (207001, "ACL_ERROR_RT_MEMORY_ALLOCATION"),
        (207018, "ACL_ERROR_RT_DEVICE_OOM"),
        (245002, "ACL_ERROR_GE_DEVICE_MEMORY_ALLOCATION_FAILED"),
    ),
    "device_unavailable": (
        (107001, "ACL_ERROR_RT_INVALID_DEVICEID"),
        (200002, "ACL_ERROR_INVALID_DEVICE"),
        (207004, "ACL_ERROR_RT_NO_DEVICE"),
        (507008, "ACL_ERROR_RT_SOC_VERSION"),
        (507033, "ACL_ERROR_RT_DEV_SETUP_ERROR"),
    ),
    "device_error": (
        (507010, "ACL_ERROR_RT_LOST_HEARTBEAT"),
        (507053, "ACL_ERROR_RT_DEVICE_MEM_ERROR"),
        (507054, "ACL_ERROR_RT_HBM_MULTI_BIT_ECC_ERROR"),
    ),
    "kernel_error": (
        (507011, "ACL_ERROR_RT_MODEL_EXECUTE"),
        (507014, "ACL_ERROR_RT_AICORE_TIMEOUT"),
        (507018, "ACL_ERROR_RT_AICPU_EXCEPTION"),
        (507035, "ACL_ERROR_RT_VECTOR_CORE_EXCEPTION"),
        (507045, "ACL_ERROR_RT_VECTOR_CORE_TRAP_WRITE_OVERFLOW"),
        (507050, "ACL_ERROR_RT_FFTS_PLUS_TRAP_EXCEPTION"),
    ),
    "collective_timeout": (
        (107020, "ACL_ERROR_RT_TASK_TIMEOUT"),
        (507046, "ACL_ERROR_RT_STREAM_SYNC_TIMEOUT"),
        (507048, "ACL_ERROR_RT_FFTS_PLUS_TIMEOUT"),
        (507915, "ACL_ERROR_RT_CCU_TIMEOUT"),
    ),
    "hccl_link": (
        (507055, "ACL_ERROR_RT_SUSPECT_DEVICE_MEM_ERROR"),
        (507056, "ACL_ERROR_RT_LINK_ERROR"),
        (507904, "ACL_ERROR_RT_COMM_OP_RETRY_FAIL"),
        (507914, "ACL_ERROR_RT_L3_PORT_ERROR"),
    ),
    "permission": ((207006, "ACL_ERROR_RT_NO_PERMISSION"),),
    "nan": (
        (207003, "ACL_ERROR_RT_AICORE_OVER_FLOW"),
        (207017, "ACL_ERROR_RT_OVER_FLOW"),
    ),
    "terminated": (
        (107022, "ACL_ERROR_RT_DEVICE_TASK_ABORT"),
        (107035, "ACL_ERROR_RT_TASK_ABORT_STOP"),
    ),
    "accelerator_call": (
        (207008, "ACL_ERROR_RT_NO_STREAM_RESOURCE"),
        (300000, "ACL_ERROR_STORAGE_OVER_LIMIT"),
        (361001, "ACLNN_ERR_RUNTIME_ERROR"),
        (500002, "ACL_ERROR_GE_FAILURE"),
        (507000, "ACL_ERROR_RT_INTERNAL_ERROR"),
        (507899, "ACL_ERROR_RT_DRV_INTERNAL_ERROR"),
        (545000, "ACL_ERROR_GE_INTERNAL_ERROR"),
        (561000, "ACLNN_ERR_INNER"),
    ),
}
# torch_npu's codes (NPUException.h) and HCCL's names (hccl_types.h).
OTHERS = {
    "device_setting": (
        "ERR00001 PTA invalid parameter",
        "ERR01002 OPS invalid type",
        "ERR02001 DIST invalid parameter",
        "ERR01007 OPS feature not supported",
    ),
    "device_out_of_memory": ("ERR00006 PTA memory error", "ret=HCCL_E_OOM(24)"),
    "collective_timeout": ("ERR02011 DIST timeout error",),
    "permission": ("ERR00012 PTA permission error",),
    "hccl_link": ("ret=HCCL_E_ROCE_CONNECT(12)", "ret=HCCL_E_REMOTE(21)"),
    "collective_error": (
        "ERR02005 DIST internal error",
        "ERR02200 DIST call hccl api failed",
        "ret=HCCL_E_TIMEOUT(9)",
        "call trace: hcclRet -> 4",
    ),
    "accelerator_call": ("ERR00005 PTA internal error", "ERR00100 PTA call acl api failed"),
    "python_exception": ("ERR99999 UNKNOWN application exception",),
}


# What the runtime says below its code (errcode_manage.cc).
REASONS = {
    "device_out_of_memory": ("driver error:out of memory", "device oom"),
    "device_error": ("lost heartbeat", "device mem error", "hbm Multi-bit ECC error"),
    "device_unavailable": ("device retain error", "driver error:no valid device"),
    "permission": ("driver error:operation no permitted",),
    "nan": ("aicore overflow", "sdma overflow"),
    "terminated": ("device task abort", "stream abort stop before post process"),
    "hccl_link": ("device network link error", "suspect remote error"),
    "collective_timeout": ("task timeout", "event sync timeout", "ccu timeout"),
    "kernel_error": ("aicore exception", "the model stream execute failed"),
    "device_setting": ("the feature is not supported", "invalid memory type"),
    "accelerator_call": (
        "the context is a null pointer",
        "driver error:internal error",
        "driver error:invalid value",
        "task bus error",
    ),
}


def _pairs(table):
    return [(text, cause) for cause, texts in table.items() for text in texts]


@pytest.mark.parametrize(("text", "cause"), _pairs(TEMPLATES))
def test_a_code_of_cann_has_the_cause_of_its_template(text, cause):
    kind, _colon, message = text.partition(": ")
    assert classify(kind, message, "cpp")["cause"] == cause
    assert classify("RuntimeError", f"x failed [{text}]", "python")["cause"] == cause


@pytest.mark.parametrize(("pair", "cause"), _pairs(NUMBERS))
def test_a_return_code_has_its_cause_by_number_and_by_name(pair, cause):
    number, name = pair
    for text in (f"NPU function error: f(x), error code is {number}", f"the call gave {name}"):
        assert classify("RuntimeError", text, "python")["cause"] == cause, text


# How torch_npu, MindSpore, AscendCL's own log, Paddle and C++ code print a return code.
FORMS = (
    "f:x.cpp:12 NPU function error: aclrtX(a, b), error code is {}",
    "Device 0 call aclrtX failed, ret[{}]",
    "Call runtime rtX failed, error code: {}",
    "wait for compute device to finish failed, runtime result = {}.[FUNC:ReportCallError]",
    "(External) ACL error, the error code is : {}.  (at /x/npu_op_runner.cc:480)",
    "aclrtX failed, errorCode: {}",
)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("pair", "cause"), _pairs(NUMBERS))
def test_a_return_code_is_read_in_each_form(form, pair, cause):
    assert classify("RuntimeError", form.format(pair[0]), "python")["cause"] == cause


@pytest.mark.parametrize(("text", "cause"), _pairs(OTHERS))
def test_a_code_of_torch_npu_or_hccl_has_its_cause(text, cause):
    assert classify("RuntimeError", text, "python")["cause"] == cause


@pytest.mark.parametrize(("reason", "cause"), _pairs(REASONS))
def test_a_reason_of_the_runtime_has_its_cause(reason, cause):
    text = f"rtStreamSynchronize execute failed, reason=[{reason}][FUNC:FuncErrorReason]"
    assert classify("EE9999", text, "cpp")["cause"] == cause


def _choose(*lines):
    scan = ErrorScan()
    for number, line in enumerate(lines, 1):
        scan.line(number, line)
    return scan.finish()


@pytest.mark.parametrize(("text", "cause"), _pairs(TEMPLATES))
def test_a_code_that_says_why_wins_over_a_general_one(text, cause):
    stamp = ": [PID: 22] 2026-03-04-11:21:05.612.749 "
    special = text.replace(": ", stamp, 1)
    general = "EE9999" + stamp + "Foo failed[FUNC:Foo][FILE:foo.cc][LINE:1]"
    call = "Call aclInit(nullptr) failed : 500002 at file /paddle/runtime.cc line 403"
    if text.startswith("EE1001"):
        cause = "accelerator_call"  # it stands below other errors, too
    for above in (general, call):
        assert _choose("loading", above, special)["cause"] == cause
    assert _choose("loading", special, general)["cause"] in (cause, "device_setting")


def test_each_row_has_a_sample_and_a_cause_that_says_why():
    samples = [text for text, _cause in _pairs(TEMPLATES) + _pairs(OTHERS)]
    for number, name in (pair for pair, _cause in _pairs(NUMBERS)):
        samples += [f"NPU function error: f(x), error code is {number}", name]
    for entry in ascend_codes.CODES:
        assert entry["cause"] not in GENERAL
        assert entry_of(entry["cause"])["meaning"]
        assert any(re.search(entry["pattern"], text) for text in samples), entry["cause"]


@pytest.mark.parametrize("code", ("EC0010", "EP0001", "EZ0012", "E50058", "EN0007"))
def test_a_line_with_any_code_is_read(code):
    gate = parser._gate([{"has": "step"}])
    line = f"{code}: [PID: 22] 2026-03-04-11:21:05.612.749 A message"
    assert gate.search(line.encode())
    assert error_patterns.ASCEND.match(line).group("kind") == code
    assert not gate.search(b"loss 0.25 of epoch 3")
