"""Secrets leave through one function: whatever is written to disk or printed is passed through `scrub`.

What a secret is:

- a value that was seen under a telling name before, in the environment, among the arguments, in the script (`know`);
- a text of a shape that an issuer gave its keys, ``hf_...``, ``ghp_...`` (``redact_shapes.txt``);
- what stands before the ``@`` of an address, and a signature among its parameters;
- what follows a telling name: ``password: X``, ``--wandb_key X``, ``Authorization: Basic X``, ``<password>X<``.

Names of the tokenizer's tokens (``eos_token``), numbers of tokens (``max_tokens``), paths, and hashes of commits and
datasets are none. Colours, escaped line ends (``\\n``, ``%0A``) and invisible characters hide nothing: a text is
searched as it is and as it reads with them taken away (`_views`).

Used on both sides of the process border. The probe encodes a setting that is secret as ``{"$secret": "***"}`` (see
`values`), so that a trial can have the script's own value in its place.
"""

import bisect

from .standard_library import functools, json, open, os, re

HIDDEN = "***"

_LONGEST_NAME = 80  # characters before a telling word that are looked at for the rest of its name
_SHORTEST_KNOWN = 6  # shorter values would also be hidden where they are ordinary words
_SHORTEST_OF_ENVIRONMENT = 8  # the same for values that are no settings of the training
_LONG = 1 << 16  # characters of a text that is no message any more but a log
_READ_BYTES = 1 << 20  # scripts and configurations are read so far; longer ones are data
_CONFIGURATIONS = (".yaml", ".yml", ".json", ".toml", ".cfg", ".ini", ".env", ".sh")

_known: set = set()

# ------------------------------------------------------------------------------------------------------ telling names
# After the keyword plugin of detect-secrets and the generic rule of gitleaks, less what training settings are called.

_SECRET_NAME = re.compile(
    r"passw(?:or)?d|passwort|passphrase|passcode|passwd|secret|credential|bearer|authorization|密码|口令|密钥"
    r"|(?:^|_)(?:creds?|cookies?|jwt|pwd|keypass|connection_string)$"
    r"|(?:^|_)(?:admin|database|db|docker|email|ftp|git|http|https|mail|mongo|mysql|pg|postgres|proxy|redis|registry|root"
    r"|smtp|ssh|sudo|user|pypi|api|login)_?pass$"
    r"|(?:^|_)(?:access|account|anthropic|api|app|application|auth|aws|azure|client|comet|database|db|deploy|encryption"
    r"|gemini|google|hf|huggingface|license|master|neptune|openai|priv|private|secret|service|shared|signing|ssh"
    r"|storage|subscription|swanlab|wandb|webhook|x)_?key(?:_?id)?$|api_?key"
)
# Who gives out tokens of the secret kind. Any other ``*_token`` is one only if its value looks like one.
_ISSUERS = re.compile(
    r"(?:^|_)(?:access|api|auth|bot|comet|csrf|deploy|discord|gh|github|gitlab|hf|hub|hugging_?face|id|login|neptune|npm"
    r"|oauth|personal|private|pypi|read|refresh|sas|security|service|session|slack|telegram|upload|user|wandb|write|xsrf)"
    r"_?token$"
)
_NO_SECRET_NAME = re.compile(  # of the tokenizer; NoCredentialsError
    r"(?:^|_)(?:eos|bos|pad|unk|mask|sep|cls|stop|start|end|special|image|video|audio|per|think|boi|eoi|next)_token$"
    r"|_(?:error|exception|warning)$"
)
_MAYBE = re.compile(r"(?:^|_)(?:pass|auth|sig|sid|token)$")  # its value decides
_RANDOM = re.compile(r"(?=.*\d)(?=.*[A-Za-z])[\w.~+/=-]{12,}", re.ASCII)
_RANDOM_KEY = re.compile(r"(?=.*\d.*\d)(?=.*[A-Za-z])[A-Za-z0-9+/=-]{16,}")
_IN_ADDRESS = re.compile(r"(?:^|_)(?:sig|signature|token|key|auth|code|password|pass|pwd|secret|sid|credential)$")

_NUMBER = re.compile(r"[-+]?[\d.,_]+(?:e[-+]?\d+)?%?", re.IGNORECASE)
_PATH = re.compile(r"(?:~|\.{1,2})?/[\w.@-]*(?:/[\w.@ -]*)*|[A-Za-z]:\\.*")
_NO_VALUE = frozenset(
    "none null nil true false yes no on off str bool int optional any undefined unset set not missing required invalid"
    " empty expired found hidden redacted masked is was for and or must should".split()
) | {"", HIDDEN}
# $NAME, ${NAME}, {{ name }}, <name>, %s: a place for a value (gitleaks' allowlist)
_PLACE = re.compile(r"\$\{?[A-Za-z_]\w*\}?|\$?\{\{.*\}\}|<[^<>]*>|%\(?\w*\)?[sdr]|\{\w*\}|\*+|\.+")
_EXPRESSION = re.compile(r"(?:args|cfg|config|os|self)\.[\w.]+|[A-Za-z_][\w.]*[(\[].*")  # self.token, read(path)


@functools.lru_cache(4096)
def _plain(name):
    """The last part of a name, in small letters, its words apart: ``--hub.accessToken`` -> ``access_token``."""
    last = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", str(name)).strip("-+\"'<").rpartition(".")[2]
    return re.sub("[- ]", "_", last).lower()


@functools.lru_cache(4096)
def _may_be_secret(name):
    plain = _plain(name)
    if _NO_SECRET_NAME.search(plain):
        return False
    return any(names.search(plain) for names in (_SECRET_NAME, _ISSUERS, _MAYBE)) or str(name).endswith("_KEY")


def is_secret_name(name, value=None):
    """Whether a setting, flag or key of this name holds a secret; `value` decides where the name does not."""
    if "/" in str(name):  # a path, as a key of hashes
        return False
    plain = _plain(name)
    if not _may_be_secret(name):
        return False
    if plain == "token" or _SECRET_NAME.search(plain) or _ISSUERS.search(plain):
        return not (plain.endswith("pwd") and isinstance(value, str) and _PATH.fullmatch(value))  # a working directory
    if not isinstance(value, str) or _PATH.fullmatch(value):
        return False
    if plain == "pass":
        return len(value) >= _SHORTEST_OF_ENVIRONMENT and not _NUMBER.fullmatch(value) and " " not in value
    return (_RANDOM_KEY if plain.endswith("key") else _RANDOM).fullmatch(value) is not None


def hides(name, value):
    """Whether this value under this name must not be written down. None, flags, metrics and empty texts are none."""
    if isinstance(value, bool) or not isinstance(value, (str, bytes, int)) or value in ("", HIDDEN):
        return False
    return is_secret_name(name, value)


# ------------------------------------------------------------------------------------------------ a text as it reads

# Colours and other commands to a terminal, as they are and as JSON, Python or a shell write them; invisible characters.
_CONTROL = (
    r"(?:[\x1b]|\\+(?:x1[bB]|033|e|u001[bB]))(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[@-Z^_])"
    r"|\x9b[0-?]*[ -/]*[@-~]|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\xad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff]"
)
# Characters that JSON, Python, addresses and HTML write otherwise, perhaps several times over.
_WRITTEN = (
    r"""\\+(?:[nrtfv"'/\n]|u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2})|%(?:25)*[0-9a-fA-F]{2}"""
    r"|&(?:quot|apos|amp|lt|gt|#\d{1,7}|#x[\da-f]{1,6});"
)
_CODED = re.compile(f"(?P<control>{_CONTROL})|{_WRITTEN}")
_MAY_BE_CODED = re.compile(  # its first characters, found faster
    "[\\\\%&\x00-\x08\x0b\x0c\x0e-\x1f\x7f\x9b\xad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff]"
)
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t", "f": "\n", "v": "\n", "\n": ""}  # the last goes on with its line
_NAMED_CHARACTERS = {"quot": '"', "apos": "'", "amp": "&", "lt": "<", "gt": ">"}


def _character(written):
    """The character that was written as ``\\n``, ``\\u0041``, ``%0A``, ``&quot;``."""
    if written[0] == "&":
        name = written[1:-1]
        code = int(name[2:], 16) if name[:2] == "#x" else int(name[1:]) if name[0] == "#" else 0
        return chr(code) if 0 < code < 0x110000 else _NAMED_CHARACTERS.get(name, " ")
    if written[0] == "%":
        return chr(int(written[-2:], 16))
    rest = written.lstrip("\\")
    return chr(int(rest[1:], 16)) if len(rest) > 1 else _ESCAPED.get(rest, rest)


def _views(text):
    """The text as it is, and as it reads without what is coded in it; with each the way from its places to the text's.

    A terminal's commands are taken away once with nothing in their place (a key that is coloured in the middle), once
    with a blank (a key that follows a colour). Of a long log only lines in which there may be a secret are decoded.
    """
    yield text, lambda start, end: (start, end)
    for begin, line in [(0, text)] if len(text) < _LONG else _suspect_lines(text):
        found = _coded(line)
        for blank in ("", " ") if any(match["control"] for match in found) else ("",) if found else ():
            pieces, places, view, done = [], [], 0, 0  # places: where a piece begins in the view, in the text; its end
            for match in found:
                character = blank if match["control"] else _character(match.group())
                for piece, place in ((line[done : match.start()], (done, None)), (character, match.span())):
                    if piece:
                        pieces.append(piece)
                        places.append((view, begin + place[0], place[1] and begin + place[1]))
                        view += len(piece)
                done = match.end()
            yield "".join([*pieces, line[done:]]), functools.partial(_place, [*places, (view, begin + done, None)])


def _suspect_lines(text):
    """Where a line begins that has a part of a known shape or of a telling name in it, and the line."""
    lower, end = _small(text), 0
    parts = [(text, part) for part, _ in _shapes] + [(lower, stem) for stem in _STEMS] + [(text, "://")]
    for place in sorted(place for where, part in parts for place in _all(where, part)):
        if place >= end:
            start = text.rfind("\n", 0, place) + 1
            end = text.find("\n", place) + 1 or len(text)
            yield start, text[start:end]


def _small(text):
    return text.replace("\u0130", "i").lower()  # the only letter whose small form is longer


def _coded(text):
    found, done = [], 0
    for place in _MAY_BE_CODED.finditer(text):
        if place.start() >= done and (match := _CODED.match(text, place.start())):
            found.append(match)
            done = match.end()
    return found


def _place(places, start, end):
    first = places[bisect.bisect_right(places, (start, float("inf"))) - 1]
    last = places[bisect.bisect_right(places, (end - 1, float("inf"))) - 1]
    begin = first[1] + (start - first[0] if first[2] is None else 0)
    return begin, last[1] + end - last[0] if last[2] is None else last[2]


# ------------------------------------------------------------------------------------------------ secrets in a text


def _read_shapes():
    with open(os.path.join(os.path.dirname(__file__), "redact_shapes.txt"), encoding="utf-8") as stream:
        rows = [line.split(None, 1) for line in stream if line.strip() and not line.startswith("#")]
    return [(part, rule.strip().replace("\\b", "(?<![A-Za-z0-9])", 1)) for part, rule in rows]


_shapes = _read_shapes()
_compiled = functools.lru_cache(None)(re.compile)

# What stands before the @ of an address: a user's name may stay, a password or a lone token may not.
_USERINFO = re.compile(r"://(?P<user>[^\s/:@'\"<>]{0,500})(?::(?P<password>(?!\d+/)[^\s'\"<>]{0,500}))?@")
_PARAMETER = re.compile(r"[?&;]([\w.-]{1,60})=([^&;#\s'\"<>]+)", re.ASCII)

# Where a name may be a telling one; `is_secret_name` decides. Looked for one by one, which is faster than any pattern.
_STEMS = (
    "token", "key", "secret", "pass", "pwd", "cred", "cookie", "bearer", "auth", "jwt", "_string", "密码", "口令",
    "密钥",
)  # fmt: skip
_NAME_BEFORE = re.compile(r"(?:(?i:access|api|auth|private|secret) )?[A-Za-z0-9_.-]*\Z")  # or "API key" in prose
_NAME_AFTER = re.compile(r"[A-Za-z0-9_-]*")
_QUOTED = r"""[bBrRuUfF]{0,2}(?P<mark>["'`])(?P<quoted>(?:\\.|(?!(?P=mark))[^\\\n])*)"""
_BARE = r"""(?P<bare>[^\s"'`<>()\[\]{},;&|][^\s"'`<>|│]{0,8000})"""
_LIST = r"(?P<list>[\[({][^\n\])}]{0,400}[\])}]|(?:\n[^\S\n]*- [^\n]+)+)"  # the second of YAML
_BLOCK = r"[|>][+-]?[^\S\n]*\n[^\S\n]+(?P<block>[^\n]+(?:\n[^\S\n]+[^\n]+)*)"  # of YAML
_NEXT = re.compile(r"""[,;&)\]}]\s?["']?[\w.-]{1,60}["']?\s?[=:]""")  # what comes after a bare value without a blank
# What stands between a name and its value, and the value.
_ASSIGNED = re.compile(
    rf"""["'`*\])]{{0,3}}[^\S\n]*(?:is(?=:))?(?:==?>?|:=?(?!:)|->|[|│┃：]|</t[dh]>\s*<t[dh]\b[^<>]{{0,80}}>)"""
    rf"""(?:[^\S\n]*|(?<=":)\s*|\n[ ]+(?=\S+(?:\n|\Z)))"""  # in the next line of JSON; alone in that of YAML
    rf"(?:(?:[A-Z]\w{{0,40}}\()?{_QUOTED}|{_LIST}|{_BLOCK}|{_BARE})"
)
_APART = re.compile(  # PASSWORD<tab>X, "--token", "X", ("password", "X"), is X, name: X / value: Y
    rf"""(?:\t[^\S\n]*|[ ]{{2,}}|["']?[,\n]\s*["']?value["']?\s*:\s*|(?P<says>\s(?:is|was|to|provided:?)\s)"""
    rf"""|(?P<flag>[ ]|["'],\s*(?=["'])))(?:{_QUOTED}|{_BARE})"""
)
_ELEMENT = re.compile(r"[^<>\n]{0,80}>\s*(?P<bare>[^<>]+)</")  # <password>X</password>
_HEADER = re.compile(r"""["']?\s*[:=,]\s*["']?(?P<bare>(?i:digest)[^\n]+|[^"'\n]+)""")
_HEADERS = ("authorization", "cookie")
_SETS = re.compile(r"\b(?:ENV|setx|setenv) $")  # ENV HF_TOKEN X
_GROUPS = ("quoted", "list", "block", "bare")


def _secrets(view):
    """Where secrets are in a text: pairs of their start and end."""
    for value in tuple(_known):
        for start in _all(view, value):
            yield start, start + len(value)
    for part, rule in _shapes:
        if part in view:
            for match in _compiled(rule).finditer(view):
                yield match.span(match.lastindex or 0)
    if "://" in view:
        for match in _USERINFO.finditer(view):
            yield match.span("user" if match["password"] is None else "password")
    if "=" in view and ("?" in view or "&" in view):
        for match in _PARAMETER.finditer(view):
            if is_secret_name(*match.groups()) or _IN_ADDRESS.search(_plain(match[1])) and not _no_secret(match[2]):
                yield match.span(2)
    for _, start, end, _ in _named(view):
        yield start, end


def _all(text, part):
    start = text.find(part)
    while start >= 0:
        yield start
        start = text.find(part, start + len(part))


def _no_secret(value):
    return value.lower().strip(".") in _NO_VALUE or _PLACE.fullmatch(value) is not None


def _named(view):
    """What follows telling names: the name, where its value starts and ends, and whether that is quoted."""
    done, lower = 0, _small(view)
    for place in sorted(place for stem in _STEMS for place in _all(lower, stem)):
        if place < done:
            continue
        start = next(_NAME_BEFORE.finditer(view, max(done, place - _LONGEST_NAME), place)).start()
        end = done = next(_NAME_AFTER.finditer(view, place + 2)).end()
        name, before = view[start:end], view[max(0, start - 12) : start]
        if _may_be_secret(name) and not before.endswith("/") and (found := _value(view, name, before, end)):
            group = next(group for group in _GROUPS if found.groupdict().get(group) is not None)
            value = _alone(found["bare"]) if group == "bare" and found.re in (_ASSIGNED, _APART) else found[group]
            if _is_secret(name, value, group, found, before):
                start, done = found.start(group), found.end()
                yield name, start, start + len(value), group == "quoted"


def _alone(value):
    """A value that is not quoted without what follows it: the end of a call, the next of several."""
    following = _NEXT.search(value)
    return value[: following.start() if following else None].rstrip(",;)]}&.")


def _value(view, name, before, end):
    """What could be the value of a name that ends at `end`, as a match; None if nothing could."""
    if _plain(name).endswith(_HEADERS) and (found := _HEADER.match(view, end)):
        return found
    if found := _ASSIGNED.match(view, end) or before.endswith("<") and _ELEMENT.match(view, end):
        return found
    found = _APART.match(view, end)
    flag = name.startswith("-") or before.endswith(("('", '("')) or _SETS.search(before)
    return found if found and (flag or not found["flag"]) else None


def _is_secret(name, value, group, found, before):
    plain, value = _plain(name), value.strip()
    if group in ("list", "block"):
        quoted = group == "block" or "'" in value or '"' in value or value.startswith("- ")
        return quoted and is_secret_name(name) and (plain != "token" or _RANDOM.search(value))
    if _no_secret(value) or not hides(name, value):
        return False
    if found.re is _APART and not found["flag"] and (found["says"] or plain in ("token", "pass")):
        return _RANDOM.fullmatch(value)  # "the password is hunter2", a table
    if group == "quoted" or name.startswith("-") or before.endswith(("<", "?", "&")):
        return True
    if plain == "pass" and "=" not in found[0][:3]:  # the forward pass: bfloat16, a pass: torch_dtype=bfloat16
        return _RANDOM.fullmatch(value) and not re.match(r"[A-Za-z_]\w*=", value)
    # "Unexpected token: value", `token=token` and `key = read(...)` are no secrets; `password: opensesame` is.
    if plain in ("token", "secret") and (_NUMBER.fullmatch(value) or not (len(value) >= 8 and re.search(r"\d", value))):
        return False
    named = value == name.rpartition(".")[2] or "." in value and _may_be_secret(value)  # options.token
    return not named and not _EXPRESSION.fullmatch(value)


def scrub(text: str) -> str:
    """A text of any length (a message, a log, a file, a value) without the secrets in it."""
    spans = sorted({place(*span) for view, place in _views(text) for span in _secrets(view) if span[0] < span[1]})
    pieces: list = []
    done = covered = 0
    for start, end in spans:
        if start >= covered:
            pieces += text[done:start], HIDDEN
        covered = done = max(covered, end)
    return "".join(pieces) + text[done:] if spans else text


LEVELS = frozenset({"good", "bad", "from", "to"})
"""Keys of a setting's two values, which go by the name of the setting."""


def mask(value, name=""):
    """A copy of plain data (JSON) without secrets: by the names of its keys, and by its texts."""
    if hides(name, value):
        return HIDDEN
    if isinstance(value, dict):
        return {
            scrub(key) if isinstance(key, str) else key: mask(item, name if key in LEVELS else key)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [mask(item, name) for item in value]
    return scrub(value) if isinstance(value, str) else value


def mask_arguments(arguments):
    """A command line without its secrets: ``--token X``, ``--token=X``, ``hub.token=X``, keys, addresses, JSON.

    Returns:
        The arguments as they may be written down; each that held a secret has `HIDDEN` in it.
    """
    result, flag, words = [], "", list(map(str, arguments))
    basic = any(os.path.basename(word) in ("curl", "wget") for word in words)
    for argument in words:
        name, separator, value = argument.partition("=")
        if flag and not argument.startswith("--") and hides(flag, argument):
            know(argument)
            result.append(HIDDEN)
        elif basic and flag in ("-u", "-U", "--user", "--proxy-user", "-b", "--cookie"):
            result.append(argument.partition(":")[0] + ":" + HIDDEN if ":" in argument else HIDDEN)
        elif separator and hides(name, value):
            know(value)
            result.append(name + separator + HIDDEN)
        else:
            result.append(scrub(argument))
        flag = argument if argument.startswith("-") and not separator else ""
    return result


# ------------------------------------------------------------------------------------------------------ known values


def know(value):
    """Remember a value that was seen to be a secret, so that `scrub` finds it in texts."""
    if isinstance(value, str) and len(value) >= _SHORTEST_KNOWN:
        _known.update((value, json.dumps(value)[1:-1]))


def know_command(command):
    """Remember the secrets that a run is given: by its environment, by its arguments, by the script and by the files
    that configure it.

    Args:
        command: the script and its arguments.
    """
    for name, value in os.environ.items():
        if hides(name, value):
            _know_long(value)
    mask_arguments(command[1:])
    for number, argument in enumerate(command):
        for path in (argument, argument.partition("=")[2]):
            if number == 0 or path.endswith(_CONFIGURATIONS):
                _know_file(path, code=number == 0)


def _know_long(value):
    """... unless hiding it would hide ordinary words, or it is a path, which says where a secret is."""
    if len(value) >= _SHORTEST_OF_ENVIRONMENT and not os.path.exists(value):
        know(value)


def _know_file(path, code):
    """Remember the secrets that a file gives by name. In a program (`code`) only what is quoted is a value."""
    try:
        if not os.path.isfile(path):  # to read a pipe would take away what is in it
            return
        with open(path, "rb") as stream:
            text = stream.read(_READ_BYTES).decode("utf-8", "replace")
    except (OSError, ValueError):
        return
    for _, start, end, quoted in _named(text):
        value = text[start:end].strip()
        if (quoted or not code) and "\n" not in value:
            _know_long(value)
