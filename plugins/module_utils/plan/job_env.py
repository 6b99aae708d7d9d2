# SPDX-License-Identifier: Apache-2.0
"""Environment variables that a job and a site may set.

A job is a file that is passed around, and a node may have written the copy that a run is resumed
from. It sets what the training reads. A variable that makes every process of the training load
other code, or trust or talk to others, belongs to the keeper of the site.
"""

from __future__ import annotations

import re

# Python's own that change no code path.
_PLAIN_PYTHON = (
    "UNBUFFERED",
    "HASHSEED",
    "FAULTHANDLER",
    "DONTWRITEBYTECODE",
    "IOENCODING",
    "UTF8",
    "OPTIMIZE",
    "MALLOC",
    "TRACEMALLOC",
    "DEVMODE",
    "ASYNCIODEBUG",
    "NOUSERSITE",
    "WARNINGS",
    "VERBOSE",
    "PROFILEIMPORTTIME",
    "INTMAXSTRDIGITS",
    "COERCECLOCALE",
)
# Nothing of a training reads these. They make a shell, git or ssh run something.
_DANGEROUS = (
    r"BASH_ENV$|ENV$|BASHOPTS$|SHELLOPTS$|BASH_FUNC|PS4$|PROMPT_COMMAND$|IFS$|GCONV_PATH$|GIT_|SSH_"
    r"|SUDO_|LD_AUDIT|LD_PRELOAD"
)
_SITE = (
    r"LD_|PYTHON(?!(?:{})$)|PERL|RUBY|NODE_OPTIONS$|NODE_PATH$|JAVA_TOOL_OPTIONS$|_JAVA_OPTIONS$"
    r"|JDK_JAVA_OPTIONS$|CLASSPATH$|LOCPATH$|GLIBC_TUNABLES$|HOSTALIASES$|LOCALDOMAIN$"
    r"|RES_OPTIONS$|XDG_(?!CACHE_HOME$)|DBUS_|SYSTEMD_|NOTIFY_SOCKET$|OPENSSL_|SSL_CERT_|CURL_"
    r"|REQUESTS_CA_BUNDLE$|PIP_|UV_|CONDA|VIRTUAL_ENV$|SHELL$|LOGNAME$|EDITOR$|VISUAL$|PAGER$"
    r"|TERMINFO"
).format("|".join(_PLAIN_PYTHON))
FORBIDDEN_ENV = re.compile(f"(?:{_DANGEROUS})")
SITE_ENV = re.compile(f"(?:{_SITE})")


def job_problem(name):
    """Say why a job may not set a variable, or return None."""
    if FORBIDDEN_ENV.match(name):
        return site_problem(name)
    if SITE_ENV.match(name):
        return (
            "is not for a job: it changes which code or settings every process loads; set it in the"
            " site's trainyard_env"
        )
    return None


def site_problem(name):
    """Say why a site may not set a variable for the training, or return None."""
    if FORBIDDEN_ENV.match(name):
        return "is not for a training: it makes a program load or run other code; take it out"
    return None
