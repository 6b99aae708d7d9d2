# SPDX-License-Identifier: Apache-2.0
"""Causes by the codes of Ascend's software. The package explains the entries.

Every part of CANN has a table of codes: `E`, the letter of the part, a number. AscendCL has return
codes with a number and a name, torch_npu and HCCL have a few of their own. One row is a cause and
all codes that say it. A code that does not say why is in no row, and is left to the general entries
of accelerator.py. Most words are asked before the codes: a code often stands beside a clearer
sentence.
"""

from __future__ import annotations

# A number of CANN's runtime where a message gives it.
RESULT = (
    r"(?:(?:\b|_)(?i:code|result|ret|retcode|errno|err(?:or)?code)\b(?: is)?\s*[:=\[(]*"
    r"|\b(?i:return|error|failed)\b\s*[:=\[(]+)\s*(?:%s)\b"
)
# What stands before a number of CANN that is only known by its family.
ACL = r"(?i:\bacl|npu|hccl|\brt(?=[a-z]\w+ )|ascend|\bruntime\b).{0,160}"
_TABLES = (
    "CANN 9: error_code.json of its runtime (all parts), hcomm's err_msg.cc, opbase's log.cpp,"
    " acl_base.h, rt_error_codes.h, ge_error_codes.h, aclnn_base.h, hccl_types.h; torch_npu,"
    " NPUException.h"
)

# A row has a cause and what says it: `codes` of CANN, `acl` (numbers of AscendCL), `family` (those
# that other software has, too), `names` (behind `ACL_ERROR_`), `aclnn` (names behind `ACLNN_ERR_`),
# `hccl` (names behind `HCCL_E_`), `reasons` (what the runtime says in brackets, errcode_manage.cc),
# and `torch` (the last three digits of torch_npu's codes, which follow the number of its part).
_ROWS = (
    {
        "cause": "device_out_of_memory",
        "codes": "EL0004|EI0011|EN0012",
        "acl": "200000|207001|207018|245000|245002",
        "names": r"BAD_ALLOC|(?:GE|GE_DEVICE|RT)_MEMORY_ALLOCATION(?:_FAILED)?|RT_DEVI[CD]E_OOM",
        "hccl": "OOM",
        "reasons": "driver error:out of memory|device oom|alloc memory error",
        "torch": "006",
    },
    # Memory of the host.
    {"cause": "out_of_memory", "codes": "EE1013|EH0010|EK020[12]|EN001[01]|E10044"},
    {"cause": "disk_full", "codes": "EK0204"},
    {"cause": "resource_limit", "codes": "EK0203|EE1021"},
    {
        "cause": "device_error",
        "acl": "507010|507053|507054",
        "names": "RT_LOST_HEARTBEAT|RT_DEVICE_MEM_ERROR|RT_HBM_MULTI_BIT_ECC_ERROR",
        "reasons": "lost heartbeat|device (?:local )?mem error|hbm Multi-bit ECC error",
    },
    # A training that ended a moment ago may still have the device.
    {"cause": "device_busy", "codes": "EJ0001|EL0005|E30003|EN0013"},
    {
        "cause": "device_unavailable",
        "codes": "EL000[12]|EL0015|E30005|E3900[245679]|EM900[12]",
        "acl": "107001|200002|207004|507008|507033",
        "names": "(?:RT_)?INVALID_DEVICE(?:ID)?|RT_NO_DEVICE|RT_SOC_VERSION|RT_DEV_SETUP_ERROR",
        "reasons": (
            "device (?:pointer null|retain error|id error)|driver error:(?:invalid|no valid) device"
            "|soc version error"
        ),
    },
    {
        "cause": "version_mismatch",
        "codes": "E3000[469]|E39008|E39011|E40002|E80001|EE101[45]",
        "acl": "561003|56110[89]|56111[0-6]|207019",
        "names": (
            "DESERIALIZE_MODEL|PARSE_MODEL|MODEL_MISSING_ATTR|RT_FEATURE_NOT_SUPPORT_UPDATE_OP"
        ),
        "aclnn": r"INNER_(?:FIND_KERNEL|LOAD_JSON|JSON_|OPP_KERNEL|OP_FILE)\w*",
    },
    {"cause": "import_error", "codes": "E40020|EC0010|EF100[56]"},
    {"cause": "data_missing", "codes": "E10410|EC0003"},
    {
        "cause": "permission",
        "codes": "EL0007|EC0001|EC0004|EC0011",
        "acl": "207006",
        "names": "RT_NO_PERMISSION",
        "reasons": "driver error:operation no permitted",
        "torch": "012",
    },
    # A result of an operator is no finite number.
    {
        "cause": "nan",
        "acl": "207003|20701[67]",
        "names": r"RT_(?:\w+_)?OVER_FLOW",
        "reasons": r"\w+ overflow",
    },
    # The framework ends what is on a device, after another rank or device has failed.
    {
        "cause": "terminated",
        "acl": "10702[23]|107035",
        "names": "RT_DEVICE_TASK_ABORT|RT_STREAM_ABORT|RT_TASK_ABORT_STOP",
        "reasons": r"device task abort|stream abort[\w ]{0,60}",
    },
    {
        "cause": "hccl_link",
        "acl": "50705[567]|507904|507914",
        "names": r"RT_(?:SUSPECT_\w+|LINK|L3_PORT)_ERROR|RT_COMM_OP_RETRY_FAIL",
        "reasons": (
            "device (?:ub mem|network link|remote mem) error|suspect (?:device mem|remote) error"
            "|hccl op retry failed"
        ),
        "hccl": "ROCE_CONNECT|ROCE_TRANSFER|TCP_TRANSFER|REMOTE|OPRETRY_FAIL",
    },
    {
        "cause": "collective_timeout",
        "acl": "107019|107020|50704[678]|507915",
        "names": "RT_(?:WAIT|TASK|STREAM_SYNC|EVENT_SYNC|FFTS_PLUS|CCU)_TIMEOUT",
        "reasons": "(?:task|wait|ccu|fftsplus|stream sync|event sync) timeout",
        "torch": "011",
    },
    {
        "cause": "kernel_error",
        "codes": "EZ2001|E30008|EN0007",
        "reasons": "fftsplus exception|(?:the )?model (?:stream )?execute failed",
        "acl": "5070(?:1[14-8]|3[4-6]|4[2-5]|49|50)",
        "names": (
            r"RT_(?:AICORE|AICPU|VECTOR_CORE|FFTS_PLUS)_(?:TIMEOUT|EXCEPTION|TRAP_\w+)"
            r"|RT_MODEL_EXECUTE"
        ),
    },
    # The words of these codes refuse an argument, an operator or a setting.
    {
        "cause": "device_setting",
        "codes": (
            r"E1(?!0404)[0-46]\d{3}|E190\d\d|E2[0-2]\d{3}|E39001|E400\d\d|E[5-9][0-8]\d{3}|EB[0-4]\d{3}"
            r"|EB9000|EC00\d\d|ED000\d|EE1(?!00[1279]|019|023)\d{3}|EE2002|EF[0-2]\d{3}|EG00\d\d"
            r"|EE1001(?!.{0,80}context (?:pointer|is a) null)|EH0\d{3}|EK000\d|EL0014"
            r"|EN00(?!1[45])\d\d|EO000\d|EP000\d|EZ0\d{3}|EZ1001|EZ300\d|EZ9010"
        ),
        "acl": "20000[13-7]|207000|207015|207021|56100[12]|56110[4-7]",
        "family": r"1000\d\d|107\d{3}|145\d{3}|148\d{3}|161\d{3}",
        "names": (
            r"INVALID_\w+|UNINITIALIZE|REPEAT_\w+|OP_\w+|(?:FILE|MODEL|KERNEL|BIN_SELECTOR)_\w+"
            r"|(?:STREAM|THREAD|GROUP|PROF|DUMP|RELATIVE|UNSUPPORTED)_(?!FAILURE)\w+|WRITE_FILE"
            r"|PARSE_FILE|READ_MODEL_FAILURE|NOT_STATIC_AIPP|COMPILING_STUB_MODE|FORMAT_NOT_MATCH"
            r"|API_NOT_SUPPORT|FEATURE_UNSUPPORTED|MEMORY_ADDRESS_UNALIGNED|RESOURCE_NOT_MATCH"
            r"|RT_(?:PARAM|EVENT_TIMESTAMP|ADDR|INVALID|GROUP|FEATURE|FILE|SYSPARAMOPT)_\w+"
            r"|RT_(?:CONTEXT_NULL|STREAM_(?:CONTEXT|MODEL|SUBSCRIBE|NO_CB_REG|UNJOINED)|MODEL_CONTEXT)"
            r"|RT_(?:THREAD_SUBSCRIBE|REPEATED_INIT|LINK_TYPE_NOT_SUPPORTED|\w*CAPTUR(?!\w*DATED)\w*)"
            r"|RT_(?:MODEL_RUNNING|MODEL_UPDATE_FAILED|INSUFFICIENT_INPUT_ARRAY|SYMBOL_NOT_FOUND)"
            r"|GE_(?:PARAM|EXEC_NOT|EXEC_MODEL|DYNAMIC|AIPP|OP|FORMAT|SHAPE|DATATYPE)_\w+"
        ),
        "aclnn": r"PARAM_\w+|INNER_(?:INFERSHAPE|TILING|INVALID_IMPL|OPP_PATH|WRONG_ATTR)\w*",
        "reasons": (
            r"(?:driver error:|the )?feature (?:is )?not support(?:ed)?|memory address unaligned"
            r"|invalid (?:funcHandle|memory type|link type)|(?:stream|model) not in current \w+"
            r"|(?:stream|model|event) is captured"
        ),
        "torch": "00[12347]",
    },
)
# The form in which each field of a row is printed.
_FORMS = {
    "codes": r"\b(?:%s)\b",
    "acl": RESULT,
    "family": ACL + RESULT,
    "names": r"\bACL_ERROR_(?:%s)\b",
    "aclnn": r"\bACLNN_ERR_(?:%s)\b",
    "hccl": r"\bHCCL_E_(?:%s)\b",
    "reasons": r"\breason=\[(?:%s) ?\]",
    "torch": r"\bERR0[0-4](?:%s)\b",
}


def _entry(row):
    """Return the entry of a row."""
    forms = [form % row[field] for field, form in _FORMS.items() if field in row]
    return {"cause": row["cause"], "tagged": True, "pattern": "|".join(forms), "source": _TABLES}


CODES = tuple(map(_entry, _ROWS))
