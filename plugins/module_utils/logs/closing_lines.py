# SPDX-License-Identifier: Apache-2.0
"""The error that the last lines of a log name where no event in it is one.

Libraries print one line and exit, `sys.exit("...")` prints its text, and a log that was cut begins
in the middle of a traceback. Such lines weigh as little as an end without words (candidates.py).
They say what it was, or that the rank only met what others met.
"""

from __future__ import annotations

import re

from . import error_patterns as lines
from .error_scanner import ErrorScan
from .failure_catalogue import EVERYDAY, classify, entry_of
from .root_error import GENERAL, GRADES, finished

REACH = 14  # lines from the end of a log in which its last words are looked for
CHARS = 400
_SPEAKING = frozenset((1, 134, 255))  # exit codes: an uncaught exception, an abort, exit(-1)
MOST_PLAIN = 2  # lines of the program's own below last words
# A line of CANN's own log. Those of its libraries between the ranks accuse no rank.
_TAG = re.compile(r"\[ERROR\] ?(?:(?P<fabric>HCC[LP]\w*)|[A-Z]{2,})\(\d+,")
_UNTOLD = frozenset(("unknown", "python_exception", "cpp_exception"))
# What a number of an error or the end of an allocation says. Other words say more.
_LESS_CLEAR = GENERAL | {"kernel_error", "device_setting", "out_of_memory", "seen_by_launcher"}
# Words of errors, and words of lines that report no error of their own.
_ALARM = re.compile(
    r"(?i)err(?:or|no)?\b|fail|fatal|critical|\bwarn\b|time[ds]?[ -]?out|abort|den(?:ied|y)|refused"
    r"|unable|can ?not|can't|could not|exceed|exception|invalid|mismatch|inconsistent|unexpected"
    r"|not (?:found|match|exist|enough|support|available|allowed)|no such|\bbusy\b|insufficient"
    r"|out of memory|uncorrectable|\bXid\b|\blost\b|already|undefined symbol|fallen off"
    r"|not (?:working|responding|ready)"
)
_CALM = re.compile(
    r"\b(?:INFO|DEBUG|EVENT|WARNING)\b|Warning\b|(?i:retry|ignor|\bskip|fall(?:ing)? ?back"
    r"|\binstead\b(?! of)|going offline|\bwarn(?:ing)?:|\bif you|refer to|\bFAQ\b|\boff$"
    r"|[:=|] *(?:0|no|ok)\s*[|]?$)|^\+ |^\|"
)
# A line of a tool that a script called, or of a helper that goes on without its service.
_TOOL = re.compile(
    r"(?:rm|ls|cp|mv|chown|chmod|(?:ba|z)?sh|nice|kill|git|wandb|mlflow|E|tensorboard|ulimit): "
)
# What another rank is quoted with.
_OF_A_PEER = re.compile(
    r"(?i)\b(?:peer|(?:an)?other rank|(?:rank|trainer|worker|node|host)[:_ ]?\d+)\b.{0,60}"
    r"\b(?:says?|said|fail(?:s|ed)|abort(?:s|ed)|died|lost|gone|killed|report(?:s|ed)?)\b"
    r"|\b(?:from|of|by) (?:peer|rank|trainer|worker|node|host)[:_ ]?\d+"
)
_NAMED_EXCEPTION = re.compile(r"(?:^|\s)(?:\w{1,40}\.){1,6}[A-Z]\w{1,60}Error: ")
# Words that end as exceptions do.
_WORDS = frozenset(
    "Iteration Empty Full Group Timeout timeout Exit Interrupt Error Exception".split()
)


def find(tail, count, begin, end):
    """Return the error that the last lines of a log name, or None.

    tail: the last lines, in order. count: lines of the whole log. begin: the first line, by its
    number, that neither an event nor a step has. end: the End of the process. What says why it ends
    does so with an exit code of _SPEAKING or aborts.
    """
    if end.code not in _SPEAKING and end.signal != "SIGABRT":
        return None
    tail = tail[-REACH:]
    first = count - len(tail) + 1
    tail = [lines.PREFIX.sub("", text, count=1) for text in tail[max(0, begin - first) :]]
    first = count - len(tail) + 1
    error = _exception(tail, first, end) or _named_line(tail, first)
    if error:
        error["closing"] = True
    return error


def _exception(tail, first, end):
    """Return the error of an exception whose header is missing, or None.

    first: the number of the first line of the tail.
    """
    for index, line in enumerate(tail):
        final = lines.FINAL.match(line)
        is_torn = tail[index - 1][:1] in (" ", "\t")
        if index == 0:
            is_torn = first == 1
        if final and is_torn and _is_exception(final):
            scan = ErrorScan()
            scan.resume_traceback(first + index)
            for number, text in enumerate(tail[index:], first + index):
                scan.line(number, text)
            error = scan.finish(end)
            if error and not (error["handled"] or error["survived"]):
                return error
            return None
    return None


def _is_exception(final):
    """Return whether a match of FINAL is an exception's with a message, and no warning's."""
    kind = final.group("kind")
    is_word = kind.endswith("Warning") or kind.rsplit(".", 1)[-1] in _WORDS
    is_named = lines.is_final(final) and lines.is_known(kind) and not is_word
    return is_named and bool(final.group("text"))


def _named_line(tail, first):
    """Return the error of the line that names the clearest cause, or None.

    A very last line that names a thing is what `sys.exit` printed, and the verdict quotes it
    (wording.py). Nothing above it counts. Below it the runtimes' threads may report their own end.
    """
    said = (line for line in reversed(tail) if lines.is_plain(line) or not is_calm(line))
    if _is_own_word(next(said, "")):
        return None
    found = []
    for index, line in enumerate(tail):
        text = line.strip()
        below = tail[index + 1 :]
        if _ALARM.search(text) and not is_calm(text) and not is_of_a_peer(text):
            entry = _entry_of_line(text)
            # A word too many about the others accuses nobody.
            is_told = entry["grade"] != "primary" or not _goes_on(below)
            if is_told and entry["cause"] not in _UNTOLD:
                found.append(_describe(text, first + index, entry, tail[index:]))
    return min(found, key=_clearness, default=None)


def is_of_a_peer(line):
    """Return whether a line quotes another rank or node."""
    return bool(_OF_A_PEER.search(line))


def is_calm(line):
    """Return whether a line says itself that nothing ended, or is one of a tool."""
    return bool(_CALM.search(line) or _TOOL.match(line))


def _is_own_word(line):
    """Return whether a line of the program's own names a thing that any text may name."""
    names_thing = classify("", lines.unquote(line))["cause"] in EVERYDAY and not is_calm(line)
    return names_thing and lines.is_plain(line) and _entry_of_line(line)["cause"] == "unknown"


def _entry_of_line(text):
    """Return the catalogue's entry of a line, that of `unknown` where it may mean anything."""
    entry = classify("", lines.unquote(text))
    tag = _TAG.match(text)
    if entry["cause"] in EVERYDAY and not (tag or _NAMED_EXCEPTION.search(text)):
        return entry_of("unknown")
    if entry["cause"] != "unknown" or not tag:
        return entry
    if tag.group("fabric"):
        return entry_of("collective_error")
    return entry_of("accelerator_call")


def _goes_on(below):
    """Return whether lines show that the program went on: a record, or several lines of its own."""
    plain = [text for text in below if lines.is_plain(text) and not _ALARM.search(text)]
    return len(plain) > MOST_PLAIN or any(map(lines.RECORD.match, below))


def _clearness(error):
    """Return the key that sorts the clearest line of several first."""
    cause = error["cause"]
    return (cause in GENERAL, cause in _LESS_CLEAR, GRADES[error["grade"]])


def _describe(text, number, entry, below):
    """Return the error of a line, in the form of a library's event."""
    event = {
        "kind": "last words",
        "text": text[:CHARS],
        "line": number,
        "origin": "line",
        "file": None,
        "file_line": None,
        "context": [line[:CHARS] for line in below if line.strip()],
        "handled": False,
        "survived": False,
        "thread": False,
        "direct": False,
        "root": None,
        "signal": None,
        "sender": None,
        "time": None,
    }
    return dict(finished(event), **entry)
