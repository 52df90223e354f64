"""Secrets among settings, arguments and messages: told by their names and by their looks, and never written down.

A name says it (``hub_token``, ``model_init_kwargs.token``, ``wandb_api_key``, ``db_password``), or the value does:
keys that their issuers gave a form of their own (``hf_...``, ``sk-...``), and what stands before the ``@`` of an
address. Names of the tokenizer's tokens (``eos_token``, ``stop_token``) and numbers of tokens (``max_tokens``) are
none. Used on both sides of the process border: the probe encodes a secret as ``{"$secret": "***"}`` (see `values`), and
the tool writes and prints texts through `scrub`.
"""

from .held import json, open, os, re

HIDDEN = "***"

# A whole word of a name that gives it away, wherever it stands.
_SECRET_NAME = re.compile(
    r"api_?key|secret|passw(?:or)?d|passphrase|credential|bearer|authorization"
    r"|(?:^|_)(?:access|private|signing|encryption|ssh)_key(?:_id)?$"
)

# Who gives out tokens of the secret kind. Any other ``*_token`` is one only if its value looks like one.
_ISSUERS = re.compile(
    r"(?:^|_)(?:hub|hf|huggingface|hugging_face|auth|access|api|refresh|session|github|gh|gitlab|wandb|comet|neptune"
    r"|personal|private|login|service|bot|upload|deploy|read|write|user|id)_token$"
)
_VOCABULARY = re.compile(
    r"(?:^|_)(?:eos|bos|pad|unk|mask|sep|cls|stop|start|end|special|image|video|audio|per|think|boi|eoi|next)_token$"
)
_RANDOM = re.compile(r"(?=.*\d)(?=.*[A-Za-z])[\w.-]{12,}")

# Forms that issuers gave their keys: Hugging Face, OpenAI and others (sk-), GitHub, GitLab, Slack, AWS, Google,
# signed web tokens, private keys. Lower-case words after "hf_" are modules (hf_argparser), not keys. Each form begins
# with letters, and what may not stand before them comes after: so they are found a hundred times as quickly.
_SHAPES = tuple(
    re.compile(f"{begin}(?<!\\w{begin}){rest}")
    for begin, rest in (
        ("hf_", r"(?:[A-Za-z0-9]{16,}|(?=[A-Za-z0-9]*[A-Z0-9])[A-Za-z0-9]{6,})\b"),
        ("sk-", r"[A-Za-z0-9_-]{16,}"),
        ("gh[opsu]_", r"[A-Za-z0-9]{20,}"),
        ("github_pat_", r"\w{20,}"),
        ("glpat-", r"[\w-]{16,}"),
        ("xox[abprs]-", r"[\w-]{10,}"),
        ("AKIA", r"[0-9A-Z]{16}\b"),
        ("AIza", r"[\w-]{35}"),
        ("eyJ", r"[\w-]{8,}\.[\w-]{8,}\.[\w-]*"),
    )
) + (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----[^-]*(?:-----END [A-Z ]*PRIVATE KEY-----)?"),)
_BEARER = re.compile(r"(?i)\b(bearer\s+)[\w.~+/=-]{8,}")

# What stands before the @ of an address: a user's name may stay, a password or a lone token may not.
_USERINFO = re.compile(
    r"(?P<scheme>\b[a-zA-Z][\w+.-]*://)(?P<user>[^\s/:@'\"]*)(?P<password>:[^\s/@'\"]*(?:@(?=[^\s/'\"]*@)[^\s/@'\"]*)*)?@"
)

_PARAMETER = re.compile(r"([?&;])([\w.-]+)=([^&;#\s'\"]+)")

# name = value, "name": value, --name value, as logs, YAML, JSON, Python and command lines have it.
_ASSIGNED = re.compile(
    r"""(?<![\w.-])(?P<name>(?P<key>["']?)[\w.-]*(?:(?i:token|api_?-?key|secret|passw(?:or)?d|passphrase|credential)|_key)[\w-]*(?P=key))"""
    r"""(?P<between>\s*[=:]\s*|(?<=\w)[ ](?=[^\s=:]))"""
    r"""(?P<value>"[^"\n]*"|'[^'\n]*'|[^\s,;'"()\[\]{}&]+)(?P<after>[\[(]?)"""
)
_NO_VALUE = ("none", "null", "true", "false", "str", "bool", "int", "optional", "any", "")

_known = set()  # as they are, and as JSON has them
_SHORTEST_KNOWN = 6  # shorter values would also be hidden where they are ordinary words
_SHORTEST_OF_ENVIRONMENT = 8  # the same for values that are no settings of the training

# What a line of a log has in it where `scrub` could find something that neither its form nor its value gives away.
_TELLING = (
    "token",
    "apikey",
    "api-key",
    "_key",
    "_-key",
    "secret",
    "passw",
    "passphrase",
    "credential",
    "bearer",
    "authorization",
    "://",
)
_READ_BYTES = 1 << 20  # scripts and configurations are read so far; longer ones are data
_CONFIGURATIONS = (".yaml", ".yml", ".json", ".toml", ".cfg", ".ini", ".env", ".sh")
_PIECE = 4096  # characters; a longer line (a progress bar, a dump) is looked at in pieces


def is_secret_name(name, value=None):
    """Whether a setting, flag or key of this name holds a secret; `value` decides where the name does not."""
    if "/" in str(name):  # a path, as a key of hashes
        return False
    last = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", str(name)).rpartition(".")[2].strip("-+\"'").replace("-", "_").lower()
    if "tokens" in last or _VOCABULARY.search(last):
        return False
    if last == "token" or _SECRET_NAME.search(last) or _ISSUERS.search(last):
        return True
    return last.endswith("_token") and isinstance(value, str) and _RANDOM.fullmatch(value) is not None


def hides(name, value):
    """Whether this value under this name must not be written down. None, flags and empty texts are no secrets."""
    if isinstance(value, bool) or not isinstance(value, (str, bytes, int, float)) or value in ("", HIDDEN):
        return False
    return is_secret_name(name, value)


def know(value):
    """Remember a value that was seen to be a secret, so that `scrub` finds it in texts."""
    if isinstance(value, str) and len(value) >= _SHORTEST_KNOWN:
        _known.update((value, json.dumps(value)[1:-1]))


def know_environment(environment):
    """Remember the values of environment variables whose names say that they are secrets (``WANDB_API_KEY``).

    A path is no secret: it says where one is. Hiding short ones would hide ordinary words.
    """
    for name, value in environment.items():
        if len(value) >= _SHORTEST_OF_ENVIRONMENT and hides(name, value) and not os.path.exists(value):
            know(value)


def know_command(command):
    """Remember the secrets that a run is given: by its environment, by its arguments, by the script and by the files
    that configure it.

    Args:
        command: the script and its arguments.
    """
    know_environment(os.environ)
    mask_arguments(command[1:])
    for number, argument in enumerate(command):
        for path in (argument, argument.partition("=")[2]):
            if number == 0 or path.endswith(_CONFIGURATIONS):
                _know_file(path, code=number == 0)


def _know_file(path, code):
    try:
        if not os.path.isfile(path):  # to read a pipe would take away what is in it
            return
        with open(path, "rb") as stream:
            text = stream.read(_READ_BYTES).decode("utf-8", "replace")
    except (OSError, ValueError):
        return
    for line in text.split("\n"):
        for start in range(0, min(len(line), 16 * _PIECE), _PIECE):  # the pattern is slow on long words
            know_text(line[start : start + _PIECE], code)


def know_text(text, code=False):
    """Remember the secrets that a text gives by name, such as a script or the file that configures it.

    Args:
        text: of the file.
        code: whether it is a program, in which only what is quoted is a value.
    """
    for match in _ASSIGNED.finditer(text):
        value = match.group("value")
        bare = value.strip("\"'")
        quoted = value != bare
        if len(bare) < _SHORTEST_OF_ENVIRONMENT or (code and not quoted):
            continue
        if _assigned(match) != match.group() and not os.path.exists(bare):
            know(bare)


def holds_known(line):
    """Whether a line of JSON has in it a secret that is known, or that its form gives away."""
    if any(value in line for value in _known):
        return True
    line = line.replace("\\n", " ").replace("\\t", " ")  # else the letter would belong to what comes after
    return any(shape.search(line) for shape in _SHAPES)


def _without_keys(text):
    for value in sorted(_known, key=len, reverse=True):
        text = text.replace(value, HIDDEN)
    for shape in _SHAPES:
        text = shape.sub(HIDDEN, text)
    return text


def scrub_texts(value):
    """A copy of plain data (JSON) with each text in it as `scrub_value` has it; names say nothing."""
    if isinstance(value, dict):
        return {scrub_value(key): scrub_texts(item) for key, item in value.items()}
    if isinstance(value, list):
        return [scrub_texts(item) for item in value]
    return scrub_value(value) if isinstance(value, str) else value


def scrub_log(text):
    """A piece of a log, of any length, without the secrets in it: as `scrub`, in time that grows with its length.

    What is told by its name is looked for in lines that have such a name, in pieces of a few thousand characters: the
    pattern begins anew at each character of a word.
    """
    lines = _without_keys(text).split("\n")
    for number, line in enumerate(lines):
        lower = line.lower()
        if any(word in lower for word in _TELLING):
            lines[number] = "".join(map(scrub, _pieces(line)))
    return "\n".join(lines)


def _pieces(line):
    start = 0
    while len(line) - start > _PIECE:
        end = line.rfind("\r", start, start + _PIECE) + 1
        end = end or line.rfind(" ", start, start + _PIECE) + 1 or start + _PIECE
        yield line[start:end]
        start = end
    yield line[start:]


def scrub_value(text):
    """A text without the keys and addresses' passwords that it holds; names in it say nothing."""
    text = _without_keys(text)
    if "://" in text:
        text = _PARAMETER.sub(_parameter, _USERINFO.sub(_address, text))
    return _BEARER.sub(lambda match: match.group(1) + HIDDEN, text)


def scrub(text):
    """A message or line of a log without the secrets in it: as `scrub_value`, and what follows a telling name."""
    return _ASSIGNED.sub(_assigned, scrub_value(text))


def mask(value, name=""):
    """A copy of plain data (JSON) without secrets: by the names of its keys, and by the looks of its texts."""
    if hides(name, value):
        return HIDDEN
    if isinstance(value, dict):
        return {key: mask(item, key if isinstance(key, str) else "") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [mask(item, name) for item in value]
    return scrub_value(value) if isinstance(value, str) else value


def mask_arguments(arguments):
    """A command line without its secrets: ``--token X``, ``--token=X``, ``hub.token=X``, keys, addresses, JSON.

    Returns:
        The arguments as they may be written down; each that held a secret has `HIDDEN` in it.
    """
    result, flag = [], ""
    for argument in map(str, arguments):
        name, separator, value = argument.partition("=")
        if flag and not argument.startswith("--") and hides(flag, argument):
            know(argument)
            result.append(HIDDEN)
        elif separator and hides(name, value):
            know(value)
            result.append(name + separator + HIDDEN)
        else:
            result.append(scrub(argument))
        flag = argument if argument.startswith("-") and not separator else ""
    return result


def _address(match):
    password = match.group("password")
    if password is None:  # https://TOKEN@host
        return match.group("scheme") + HIDDEN + "@"
    return match.group("scheme") + match.group("user") + ":" + HIDDEN + "@"


def _parameter(match):
    before, name, value = match.groups()
    return before + name + "=" + (HIDDEN if hides(name, value) else value)


def _assigned(match):
    name, between, value = match.group("name"), match.group("between"), match.group("value")
    bare = value.strip("\"'")
    quoted = value != bare
    if bare.lower() in _NO_VALUE or bare == HIDDEN or match.group("after") or not hides(name, bare):
        return match.group()
    if between == " " and not name.startswith("--"):
        return match.group()
    if not quoted and not name.startswith("--"):
        # "Unexpected token: value" and `token=token` are no secrets; `password: opensesame` is.
        plain = name.strip("\"'").rpartition(".")[2]
        if plain.lower() in ("token", "secret") and not (len(bare) >= 8 and re.search(r"\d", bare)):
            return match.group()
        if bare == plain or re.fullmatch(r"[A-Za-z_]\w*(?:\.\w+)+", bare):
            return match.group()
    mark = value[0] if quoted else ""
    return name + between + mark + HIDDEN + mark + match.group("after")
