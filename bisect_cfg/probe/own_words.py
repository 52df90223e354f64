"""Words of the command line that the user's own code takes apart: ``lr=3e-4``, ``--lr 3e-4``, ``--lr=3e-4``, ``--on``.

``sys.argv`` is a list that offers the words after the script's name when the user's own code first looks at them; what
``parse_known_args`` and a flag like ``--set lr=3e-4`` leave to it is offered, too. Words that a parser has taken are
its settings (`own_parsers`), whoever has looked at them before. A trial has another value in a word, or leaves it out:
the script knows best what it does then.
"""

import ast
import sys

from . import sources, wrap
from .standard_library import _getframe, re

_NAMED = re.compile(r"(?P<name>-{0,2}\+{0,2}[A-Za-z_][\w.-]*)(?:=(?P<value>.*))?", re.DOTALL)

# Modules that read sys.argv for whoever calls them, and hand on what stands there.
_READERS = ("docopt", "chz", "cyclopts")

_METHODS = ("__getitem__", "__iter__", "__len__", "__contains__", "__add__", "__eq__", "__delitem__", "copy", "count",
            "index", "pop", "remove")  # fmt: skip


class _State:
    """One per process."""

    looked = False  # whether the words were offered, or a parser has taken them


state = _State()


class _Arguments(list):
    """``sys.argv``."""

    def __reduce_ex__(self, protocol):
        return list, (list.copy(self),)


def _reader(name):
    method = getattr(list, name)

    def read(self, *args):
        if not state.looked and args[:1] != (0,):  # that is the script
            _look(self, _getframe(1))
        return method(self, *args)

    return read


for _name in _METHODS:
    setattr(_Arguments, _name, _reader(_name))


def install():
    """Have sys.argv tell when the user's own code looks at it."""
    if type(getattr(sys, "argv", None)) is list:
        sys.argv = _Arguments(sys.argv)


def _look(words, frame):
    ours = wrap.owner_of(frame) == wrap.PROBE
    user = None if ours else sources.asked_by(wrap.outward(frame, wrap.GENERATED, wrap.PROBE), _READERS)
    if user is not None:
        state.looked = True
        _offer([words], user)


def taken(user, *rest):
    """A parser has taken the words of the command line, but for lists of them, which the user's own code is given."""
    before, state.looked = state.looked, True
    lists = [words for words in rest if words and isinstance(words, list)]
    if before or lists:
        _offer(lists, user)


def are_settings(words):
    """Whether a parser has left a list of settings to the user's own code: ``--set lr=3e-4 reward.mix=0.5``."""
    return bool(words) and isinstance(words, list) and all(isinstance(one, str) and _is_setting(one) for one in words)


def _offer(lists, user):
    """Offer words that the user's own code takes apart, and put in the values of the trial."""
    values: dict = {}
    defaults: dict = {}
    for words in lists:
        for name, first, _, value in _settings(words):
            values.setdefault(name, []).append(value)
            if not name.startswith("argv."):
                defaults[name] = False if value is True and "=" not in words[first] else None
    found = {name: several if several[1:] else several[0] for name, several in values.items()}

    def put(name, value):
        for words in (*lists, *([sys.argv] if isinstance(sys.argv, list) else [])):
            _put(words, name, value)

    sources.offer_own(found, defaults, user, put, _flags(found), words=True)


def offer_keywords(given, user):
    """Offer what a parser hands to the user's own code as it stands on the command line: ``**given``."""

    def put(name, value):
        given.update({name: value})
        if value is None:
            del given[name]

    sources.offer_own(dict(given), dict.fromkeys(given), user, put, _flags(given), words=True)


def _flags(names):
    return {name: [f"--{name}", "--" + name.replace("_", "-")] for name in names}


def _settings(words):
    """Each setting in words: its name, the first of its words, the one after the last, and its value. The first word of
    sys.argv is the script."""
    at, words = int(words is sys.argv or isinstance(words, _Arguments)), list.copy(words)
    while at < len(words):
        match, end = _NAMED.fullmatch(words[at]), at + 1
        if not (_is_setting(words[at]) or words[at].startswith("-")) or match is None:
            yield f"argv.{at}", at, end, _value(words[at])
        else:
            value = match["value"]
            if value is None and end < len(words) and not _is_flag(words[end]):
                value, end = words[end], end + 1
            yield match["name"].lstrip("-+").replace("-", "_"), at, end, True if value is None else _value(value)
        at = end


def _is_setting(word):
    return "=" in word and _NAMED.fullmatch(word) is not None


def _is_flag(word):
    return _is_setting(word) or (word.startswith("-") and _NAMED.fullmatch(word) is not None)


def _value(text):
    """What a word means: a number, whether something is so, or the text itself."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        value = ast.literal_eval(text)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return text
    return value if type(value) in (int, float) else text


def _put(words, name, value):
    """Have words give a setting another value, or none: None, and False of a word that alone says that it is so."""
    places = [one for one in _settings(words) if one[0] == name]
    new = value if isinstance(value, list) and len(value) == len(places) else [value] * len(places)
    for (_, first, end, now), value in reversed(list(zip(places, new))):  # noqa: B905
        if value is not None and value == now:
            continue
        before = list.__getitem__(words, slice(first, end))
        if value is None or (value is False and before == [before[0].partition("=")[0]]):
            list.__delitem__(words, slice(first, end))
        else:
            text = _text(value, before[-1].rpartition("=")[2])
            equals = end == first + 1 and "=" in before[0]
            both = [f"{before[0].partition('=')[0]}={text}"] if equals else [before[0], text]
            list.__setitem__(words, slice(first, end), both)


def _text(value, before):
    """A value as a word, spelled like the one before."""
    text = str(value)
    return text.lower() if isinstance(value, bool) and before == before.lower() else text
