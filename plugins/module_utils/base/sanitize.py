# SPDX-License-Identifier: Apache-2.0
"""Text that is safe to show, with secrets masked and control characters escaped.

Raw logs are kept as they are (mode 0600). Everything that is shown, returned or put in a report
goes through `printable` or `printable_data` first. Where there is a plan, its secrets go with it:
`printable(text, *secrets_of(plan))`.
"""

from __future__ import annotations

import collections
import json
import re
import shlex
import unicodedata
import urllib.parse

MASK = "********"

# A name followed by `=` or `:` and a value. The name's length is bounded so that a hostile line
# costs no more than a normal one.
_SECRET_WORD = (
    r"(?:passw(?:or)?d|passphrase|secret|token(?!s|i[sz])|api[_-]?key|access[_-]?key"
    r"|private[_-]?key|credential|passcode|[a-z0-9]_pwd\b)"
)
SECRET_NAME = re.compile(_SECRET_WORD, re.IGNORECASE)
# In quotes, also those of JSON within JSON (\"...\"), of Python's bytes (b'...'), and with quotes
# escaped inside.
_VALUE = (
    r"""(?:[bBrRuUfF]{0,2}\\{0,3}"(?:\\.|[^"\\\n])*"?|[bBrRuUfF]{0,2}\\{0,3}'(?:\\.|[^'\\\n])*'?"""
    r"""|[^\s"',;&(){}\[\]]+)"""
)
_ASSIGNED = re.compile(
    rf"""(\b[\w.-]{{0,60}}?{_SECRET_WORD}[\w-]{{0,40}}\\{{0,3}}["']?\s{{0,4}}(?::?=|:)\s{{0,4}})"""
    rf"({_VALUE})",
    re.IGNORECASE,
)
# curl's and others' login as two words.
_LOGIN = re.compile(r"""((?<!\S)(?:-u|--user)[\s=]["']?[^\s:"']{1,60}:)([^\s"'*][^\s"']*)""")
# An option and its value as two words of a command line.
_OPTION = re.compile(
    rf"""((?<!\S)--?[\w-]{{0,60}}?{_SECRET_WORD}[\w-]{{0,40}}\s{{1,4}})(?!-)({_VALUE})""",
    re.IGNORECASE,
)

_TOKENS = (
    r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)",
    r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",  # AWS access key id
    r"\bgh[pousr]_[A-Za-z0-9]{30,}",  # GitHub
    r"\bgithub_pat_[A-Za-z0-9_]{30,}",
    r"\bglpat-[A-Za-z0-9_-]{18,}",  # GitLab
    r"\bxox[abeprs]-[A-Za-z0-9-]{10,}",  # Slack
    r"\bhf_[A-Za-z0-9]{30,}",  # Hugging Face
    r"\bsk-[A-Za-z0-9_-]{20,}",  # OpenAI and look-alikes
    r"\bAIza[A-Za-z0-9_-]{35}",  # Google
    r"\bpypi-[A-Za-z0-9_-]{40,}",
    r"\bnpm_[A-Za-z0-9]{36}",
    r"\beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]*",  # JSON web token
)
# A terminal's colour before a token ends with the letter m.
_SHAPES = re.compile("|".join(_TOKENS).replace(r"\b", r"(?:\b|(?<=[\d;\[]m))"))
# Characters behind a cut that are read, so that a token is known by its whole. All of a long text
# would take minutes.
_BEYOND = 4096
# The beginning of a token, where the text was cut before its end.
_CUT_SHAPES = re.compile(
    r"\b(?:(?:AKIA|ASIA)[0-9A-Z]{8,15}"
    r"|(?:gh[pousr]_|github_pat_|glpat-|xox[abeprs]-|hf_|sk-|AIza|pypi-|npm_|eyJ)"
    r"(?=[A-Za-z_.-]*[0-9])(?:[A-Za-z0-9_-]|\.(?=[A-Za-z0-9_-])){8,})(?=[.\"')\]}]{0,6}\Z)"
)
_BEARER = re.compile(
    r"(\bBearer|(?i:\bauthorization[\"']?\s{0,4}[:=]\s{0,4}[\"']?\w{1,20}))"
    r"\s+[A-Za-z0-9._~+/=-]{8,}"
)
_URL_LOGIN = re.compile(r"(\b[a-z][a-z0-9+.-]{1,20}://)[^\s/'\"]{1,200}@", re.IGNORECASE)
_URL_PASSWORD = re.compile(r"://[^\s/@:'\"]{0,200}:([^\s/'\"]{1,200})@")
# The address of a package index may hold a token in its path, which nothing distinguishes from a
# name.
_INDEX_PATH = re.compile(
    r"""(index[-_]url\\{0,3}["']?\s{0,4}[:=\s]\s{0,4}\\{0,3}["']?https?://[^\s/"'\\@]{1,253}/)"""
    r"""[^\s"'\\,;)}\]]+""",
    re.IGNORECASE,
)
_ADDRESS = re.compile(r"\bhttps?://[^\s'\"<>]{1,2000}", re.IGNORECASE)
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
# One of these stands in every text that a pattern above finds something in; most lines of a log
# hold none and cost next to nothing.
_HINTS = (
    *("passw", "passphrase", "secret", "token", "credential", "passcode", "_pwd"),
    *("api_key", "api-key", "apikey", "access_key", "access-key", "accesskey"),
    *("private_key", "private-key", "privatekey", "-u ", "--user"),
    *("://", "bearer", "authorization", "akia", "asia", "ghp_", "gho_", "ghu_", "ghs_", "ghr_"),
    *("github_pat_", "glpat-", "xox", "hf_", "sk-", "aiza", "pypi-", "npm_", "eyj", "-----begin"),
)
# So many characters of a value must stand at an edge of a text to be taken for the rest of it. The
# text must be long enough to have been cut.
_EDGE = 6
_CUT_LENGTH = 40
_CLOSING = ".\"')]}"

# names: of variables marked as secret. values: texts that must not be shown, the longest first.
# Both are as `mask` takes them.
Secrets = collections.namedtuple("Secrets", "names values")


def _hide_assigned(match):
    quote = match.group(2)[0]
    if quote not in "\"'":
        quote = ""
    return match.group(1) + quote + MASK + quote


def _forms(value):
    """Return the forms in which a value may be printed.

    That is as it is, line by line, or as Python, JSON, a shell or a URL writes it.
    """
    urls = {
        urllib.parse.quote(value),
        urllib.parse.quote(value, ""),
        urllib.parse.quote_plus(value),
    }
    lines = [line.strip() for line in value.splitlines()]
    return urls | {
        value,
        json.dumps(value)[1:-1],
        repr(value)[1:-1],
        shlex.quote(value),
        *(line for line in lines if len(line) >= 8),
    }


def _walk(value, name=""):
    """Yield (name, text) of the texts and numbers in nested mappings and lists.

    name: the nearest key.
    """
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _walk(item, str(key))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _walk(item, name)
    elif isinstance(value, (str, int, float)) and not isinstance(value, bool):
        yield name, str(value)


def secrets_of(plan, more=()):
    """Return the Secrets of a plan, which mask everything printed of a run.

    A value counts where its variable is marked (`secret_env`, from the site's trainyard_secret_env)
    or has a name that sounds secret. It counts in any environment of the plan, among the job's
    overrides and among its arguments. So does the password of a URL that any of them holds. plan:
    plan.json's content. A damaged one has fewer secrets. more: further environments, such as the
    one that Paddle's launcher wrote down.
    """
    if not isinstance(plan, dict):
        plan = {}
    names = tuple(str(name) for name in plan.get("secret_env") or () if isinstance(name, str))
    values = set()
    for name, value in _named_values(plan, more):
        if _sounds_secret(name, value) or (name in names and len(value) >= 4):
            values |= _forms(value)
        for password in _URL_PASSWORD.findall(value):
            if len(password) >= 4:
                values |= {password, urllib.parse.unquote(password)}
    return Secrets(names, tuple(sorted(values, key=len, reverse=True)))


def _named_values(plan, environments):
    """Return [(name, text)] of a plan's environments, overrides and arguments."""
    mappings = [plan.get("env"), plan.get("scheduler"), *environments]
    for entries in (plan.get("nodes"), plan.get("ranks")):
        if isinstance(entries, list):
            for entry in entries:
                if isinstance(entry, dict):
                    mappings += [entry.get("env"), entry.get("container")]
    job = plan.get("job")
    if not isinstance(job, dict):
        job = {}
    mappings.append(job.get("overrides"))
    pairs = [pair for mapping in mappings for pair in _walk(mapping)]
    return pairs + _argument_pairs(job.get("arguments"))


def _sounds_secret(name, value):
    """Return whether a value is a secret by its name.

    A short value or a number does not count: it may be a length or a number of tokens.
    """
    return (
        bool(SECRET_NAME.search(name))
        and len(value) >= 6
        and not re.fullmatch(r"[0-9.]{1,11}", value)
    )


def _argument_pairs(arguments):
    """Return [(name, value)] of a command line.

    It may hold `--name value`, `--name=value` and `name=value`.
    """
    if not isinstance(arguments, (list, tuple)):
        return []
    argv = [str(word) for word in arguments]
    pairs = [word.partition("=")[::2] for word in argv if "=" in word]
    return pairs + [
        (word, following)
        for word, following in zip(argv, argv[1:])
        if word.startswith("-") and not following.startswith("-")
    ]


def _cut_values(text, values):
    """Mask the part of a value with which a text begins or ends.

    Another program may have cut the text there.
    """
    bare = text.rstrip(_CLOSING)
    for value in values:
        tail = bare[-len(value) + 1 :]
        start = tail.find(value[:_EDGE])
        if start >= 0 and len(tail) - start >= _EDGE and value.startswith(tail[start:]):
            closing = text[len(bare) :]
            bare = bare[: len(bare) - len(tail) + start] + MASK
            text = bare + closing
        head = text[: len(value) - 1]
        start = head.find(value[-_EDGE:])
        if start >= 0 and value.endswith(head[: start + _EDGE]):
            text = MASK + text[start + _EDGE :]
            bare = text.rstrip(_CLOSING)
    return text


def mask(text, names=(), values=()):
    """Replace secrets in a text by `********`.

    Secrets are known `values`, what is assigned to one of `names` or to a name that sounds secret,
    and token shapes. Where the text was cut before it came here, the piece of a value or of a token
    at its edge is replaced, too.
    """
    values = sorted({value for value in values if len(value) >= 4}, key=len, reverse=True)
    for value in values:
        text = text.replace(value, MASK)
    if values and len(text) >= _CUT_LENGTH:
        text = _cut_values(text, [value for value in values if len(value) > _EDGE])
    for name in names:
        if name in text:
            pattern = rf"""(?<!\w)({re.escape(name)}["']?\s{{0,4}}[=:]\s{{0,4}})({_VALUE})"""
            text = re.sub(pattern, _hide_assigned, text)
    if not _has_hint(text):
        return text
    text = _SHAPES.sub(MASK, text)
    text = _CUT_SHAPES.sub(MASK, text)
    text = _BEARER.sub(r"\1 " + MASK, text)
    text = _URL_LOGIN.sub(r"\1" + MASK + "@", text)
    text = _INDEX_PATH.sub(r"\1" + MASK, text)
    text = _ASSIGNED.sub(_hide_assigned, text)
    text = _LOGIN.sub(r"\1" + MASK, text)
    return _OPTION.sub(_hide_assigned, text)


def _has_hint(text):
    if text.isascii():
        folded = text.lower()
    else:
        folded = text.casefold()
    return any(hint in folded for hint in _HINTS)


def host_of(url):
    """Return an address for people, '' for none.

    It has no login, path or query, any of which may hold a token.
    """
    if not url:
        return ""
    try:
        parts = urllib.parse.urlsplit(url)
    except ValueError:
        return MASK
    if not parts.netloc or "@" in url[url.index(parts.netloc) + len(parts.netloc) :]:
        return f"{parts.scheme}:{MASK}"  # a password with a slash in it ends the host early
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def hide_paths(text):
    """Return another program's text with its http addresses cut to their hosts."""
    return _ADDRESS.sub(lambda match: host_of(match[0]), text)


def _escape(char):
    if char in _SHORT:
        return _SHORT[char]
    code = ord(char)
    if code < 0x100:
        return f"\\x{code:02x}"
    if code < 0x10000:
        return f"\\u{code:04x}"
    return f"\\U{code:08x}"


def printable(text, names=(), values=(), limit=2000, newlines=False):
    """Return text that can be shown on a terminal as it is.

    Control and escape characters, bidirectional and other invisible format characters, line
    separators and lone surrogates become `\\x1b`, `\\u202e`, ... Printable characters of every
    script stay. With `newlines` true, line ends and tabs stay too. The text is masked to some
    characters behind `limit` and then cut, so a cut cannot make half a token unrecognisable.
    """
    if not isinstance(text, str):
        text = str(text)
    is_cut = len(text) > limit + _BEYOND
    text = mask(text[: limit + _BEYOND], names, values)
    if is_cut and len(text) <= limit:  # its last word may be half a secret
        text = text[: max(0, text.rfind(" "))]
    if is_cut or len(text) > limit:
        text = text[: limit - 3] + "..."
    return escape(text, newlines)


def escape(text, newlines=False):
    """Return text with control, format and separator characters escaped.

    They are escaped as `printable` does, but nothing is masked or cut.
    """
    keep, rest = "", text
    if newlines:
        keep, rest = "\n\t", text.replace("\n", "").replace("\t", "")
    if rest.isprintable():
        return text
    return "".join(_escape_unless(char, keep) for char in text)


def _escape_unless(char, keep):
    """Return a character as it is where it can be shown or is in `keep`, else escaped."""
    if char.isprintable() or char in keep or unicodedata.category(char) == "Zs":
        return char
    return _escape(char)


def printable_data(data, names=(), values=(), limit=2000):
    """Apply `printable` to every string (keys too) inside dicts and lists.

    Numbers, booleans and None stay.
    """
    if isinstance(data, str):
        return printable(data, names, values, limit)
    if isinstance(data, dict):
        return {
            printable_data(key, names, values, limit): printable_data(item, names, values, limit)
            for key, item in data.items()
        }
    if isinstance(data, (list, tuple)):
        return [printable_data(item, names, values, limit) for item in data]
    return data
