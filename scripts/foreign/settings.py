"""The settings of another trainer's input. Each is converted (taken), reported with its effect, or
refused; the last lines list all others, so that no setting is dropped silently."""

import copy
import json
import math
import re
from pathlib import Path

from run_files import Failure

from .shell import readable, unknown_in

TABLE = Path(__file__).with_suffix(".tsv")
# The order of the lines: categories that change the plan most come first.
CATEGORIES = ("world", "precision", "length", "batch", "model", "memory", "speed", "training", "unknown")
REQUIRED = object()
# Kinds of numbers in settings.tsv: type, minimum, maximum.
KINDS = {"count": (int, 1, 10**7), "steps": (int, 0, 1 << 53), "share": (float, 0, 1), "real": (float, 0, 1e12)}
NORMS_DECAY = "norms and biases have weight decay there, none here"
# Values that ask for what is planned anyway, so that the setting has no effect to report.
AS_PLANNED = ("fp32", "float32", "torch.float32", "vanilla", "optim", "multihead", "pre_ln", "constant")


def rows_of(program):
    """Returns (kind, names, words) of the program's rows in settings.tsv. kind: number, refuse, quiet, vocabulary, or
    the category of an effect."""
    rows = (line.split("\t") for line in TABLE.read_text(encoding="utf-8").splitlines())
    return [tuple(row) for name, *row in rows if name == program]


def quiet_of(rows):
    """Returns a function that says whether a setting has no effect on a plan; in the rows, * stands for any text."""
    words = " ".join(names for kind, names, _ in rows if kind == "quiet").split()
    return re.compile("|".join(re.escape(word).replace(r"\*", ".*") for word in words)).fullmatch


def is_off(value):
    """Returns whether a value says that a setting is not used. 0 is a value."""
    words = ("", "false", "none", "null")
    return value is None or value is False or value in ([], {}) or isinstance(value, str) and value.lower() in words


def is_zero(value):
    return not isinstance(value, bool) and str(value) in ("0", "0.0")


def brief(value):
    text = " ".join(readable(value).split())
    return text if len(text) <= 60 else text[:57] + "..."


class Whole(str):
    """A spelling that already includes the value."""


class Settings:
    def __init__(self, values=(), spell=lambda name: "--" + name):
        """values: {name: (as the input spells it, value)}; a value is a text, a number, a list, True, False or None.
        spell: how the input would spell a name that it does not have."""
        self.values, self.lines, self.quiet_ones, self.spell = dict(values), [], [], spell
        self.spellings = {}  # of the settings that were removed from `values`
        self.defaults = {}  # {name: value}: these replace the defaults that a conversion passes
        self.hint = ""  # end of the error for an unknown value

    def __contains__(self, name):
        return name in self.values and not is_off(self.values[name][1])

    def spelling(self, name):
        """Returns how the input spells a setting, even after it was taken."""
        return self.values[name][0] if name in self.values else self.spellings.get(name) or self.spell(name)

    def add(self, name, spelling, value):
        if name in self.values and self.values[name][1] != value:
            self.say("unknown", f"{self.said(name)}: is given again later; the last one counts")
        self.values[name] = (spelling, value)

    def said(self, name):
        spelling, value = self.values[name]
        whole = isinstance(spelling, Whole) or value is True and spelling.startswith("--")
        return spelling if whole else f"{spelling} {brief(value)}"

    def because(self):
        """Returns the end of an error about a missing setting: the parts of the input that were not read."""
        unread = re.compile("is not here|does not set|not followed|belongs to no flag")
        unsaid = [text for at, text in self.lines if CATEGORIES[at] == "unknown" and unread.search(text)]
        return f"; not read: {', '.join(unsaid[:3])}" if unsaid else ""

    def say(self, category, text):
        self.lines.append((CATEGORIES.index(category), text))

    def peek(self, name):
        """Returns the value of a setting as a text, and leaves it to be taken later."""
        return str(self.values.get(name, ("", ""))[1])

    def take(self, name, default=None):
        """Removes a setting. Returns its value."""
        if name not in self.values:
            return default
        self.spellings[name], value = self.values.pop(name)
        return value

    def first(self, names):
        """Returns the first given name of a setting with several names, or else the first name. Reports the others."""
        given = [name for name in names.split() if name in self] or names.split()
        for name in given[1:]:
            if name in self and self.values[name][1] != self.values[given[0]][1]:
                self.say("unknown", f"{self.said(name)}: {self.spelling(given[0])} is planned")
            self.quiet(name)
        return given[0]

    def known(self, name):
        """Takes a setting. Returns its value, or None if it is off."""
        if name not in self:
            self.quiet(name)
        value = self.take(name)
        if isinstance(value, str) and (unsaid := unknown_in(value)):
            raise Failure(f"{self.spelling(name)}: {not_said(unsaid)}{self.hint}")
        return value

    def text(self, name, default=None, none=False):
        """Takes a setting of one word. none: `none` is a valid value, and does not mean that the setting is off."""
        name = self.first(name)
        if none and self.peek(name) == "none":
            return self.take(name)
        value = self.known(name)
        if isinstance(value, (list, dict)):
            raise Failure(f"{self.spelling(name)}: needs one word, not {brief(value)!r}")
        return self.defaults.get(name, default) if value in (None, True) else str(value)

    def flag(self, name, default=False):
        if name not in self.values or self.values[name][1] is None:
            self.quiet(name)
            return default
        value = self.take(name)
        if isinstance(value, str) and value.lower() not in ("true", "false", "none", "null", "1", "0", "yes", "no", ""):
            self.say("unknown", f"{self.spelling(name)} {brief(value)}: takes no value; the value is ignored")
        return not (is_off(value) or is_zero(value) or str(value).lower() == "no")

    def number(self, name, kind, default=REQUIRED, low=0, high=1e18):
        """Returns a number from low to high of a setting that is converted; name: of several, the first counts."""
        name = self.first(name)
        given = self.values.get(name, ("", None))[1]
        if given is False or given == "":
            raise Failure(f"{self.spelling(name)}: needs a number, not {brief(given)!r}")
        value = self.known(name)
        if value is None:
            if default is REQUIRED:
                raise Failure(f"{self.spelling(name)}: is missing; add it{self.because()}")
            return self.defaults.get(name, default)
        try:
            if isinstance(value, (bool, list, dict)):
                raise ValueError
            found = float(str(value).replace("_", ""))
            if not math.isfinite(found) or (kind is int and found != int(found)):
                raise ValueError
        except (ValueError, OverflowError):
            kinds = "an integer" if kind is int else "a number"
            raise Failure(f"{self.spelling(name)}: needs {kinds}, not {brief(value)!r}") from None
        if not low <= found <= high:
            raise Failure(f"{self.spelling(name)}: {brief(value)} is out of range; use {low:g} to {high:g}")
        return int(found) if kind is int else found

    def begin(self, table, known):
        """Returns our configuration with the numbers in the table. Fails if the table refuses a setting of the input.
        known: defaults for our section `model`."""
        for kind, names, text in table:
            for name in names.split() if kind == "refuse" else ():
                if name in self and not is_zero(self.values[name][1]):
                    raise Failure(f"{self.said(name)}: {text}")
                self.quiet(name)
        config = {name: {} for name in ("model", "parallel", "schedule", "attention", "train")}
        for kind, names, words in table:
            if kind != "number":
                continue
            key, word, *default = words.split()
            section, _, field = key.partition(".")
            name = self.first(names)
            number, low, high = KINDS[word]
            if section == "model" and field in known:
                default = [known[field]]
            if section == "train" and default and unknown_in(self.peek(name)):  # does not change a plan
                unsaid = not_said(unknown_in(self.peek(name)))
                self.say("training", f"{self.spelling(name)}: {unsaid}; {default[0]} is planned")
                del self.values[name]
            if name not in self and not default:
                sizes = ", or give --model FILE with the sizes" if section == "model" else ""
                raise Failure(f"{self.spelling(name)}: is missing; add it{sizes}{self.because()}")
            config[section][field] = self.number(name, number, number(default[0]) if default else None, low, high)
        return config

    def integers(self, name, count):
        spelling, value = self.values.pop(name)
        words = value if isinstance(value, list) else re.split(r"[\s,]+", str(value).strip("[]() "))
        if len(words) != count:
            raise Failure(f"{spelling}: needs {count} numbers, not {brief(value)!r}")
        return [Settings({name: (spelling, word)}).number(name, int) for word in words]

    def effect(self, name, category, text):
        """Reports the effect of a setting that cannot be converted. Returns whether the setting is given."""
        given = name in self and not is_zero(self.values[name][1])
        if given:
            self.say(category, f"{self.said(name)}: {text}")
            self.take(name)
        self.quiet(name)
        return given

    def effects(self, table, before=""):
        """Reports the effects of the settings in the table, except for values in AS_PLANNED."""
        for category, names, text in table:
            for name in names.split() if category in CATEGORIES else ():
                if self.peek(before + name).lower() in AS_PLANNED:
                    self.quiet(before + name)
                self.effect(before + name, category, text)

    def quiet(self, name):
        """Takes a setting without effect on the plan, and lists it in the last line."""
        if name in self.values:
            self.quiet_ones.append(self.said(name))
            self.take(name)

    def finish(self, table):
        """Reports every setting that no conversion took: its effect, that it has none, or that it is unknown."""
        self.effects(table)
        quiet = quiet_of(table)
        for name, (_, value) in list(self.values.items()):
            if value is None or value in ("", [], {}) or quiet(name):
                self.quiet(name)
        if self.values:
            names = ", ".join(self.said(name) for name in self.values)
            self.say("unknown", f"{names}: not known here; their effect is not planned")
        self.values = {}

    def comments(self):
        ordered = sorted(self.lines, key=lambda line: line[0])
        lines = [f"# changes the plan: {CATEGORIES[at]}: {text}" for at, text in ordered]
        return lines + ([f"# without effect on the plan: {', '.join(self.quiet_ones)}"] if self.quiet_ones else [])


def not_said(name):
    if re.fullmatch(r"\$\{?\d+\}?", name):
        return f"the script needs its argument {name}; give the script's arguments after its name"
    if re.fullmatch(r"\$\{?[A-Za-z_]\w*\}?", name):
        return f"the script does not set {name}; write {name.strip('${}')}=VALUE before its name"
    return f"{name} is not known before the script runs; write the variable that takes it, NAME=VALUE, before its name"


# ---- settings without a use


def others(value):
    """Yields other values of a setting."""
    if isinstance(value, bool):
        yield not value
    elif re.fullmatch(r"-?\d[\d_]*(\.\d*)?(e-?\d+)?", str(value)) and math.isfinite(
            number := float(str(value).replace("_", ""))):
        yield from {str(each) for each in (number * 2 + 1, int(number) * 2 + 2, number / 2, int(number) // 2)
                    if each != number}
    elif value is not None:
        yield f"{value}x"


def unused(settings, convert):
    """Yields the names of settings that convert(settings) neither names nor uses: with another value or without it,
    the answer is the same. A refused value does not count."""

    def answer(values):
        s = copy.copy(settings)
        s.values, s.lines, s.quiet_ones = dict(values), list(settings.lines), list(settings.quiet_ones)
        s.spellings = {}
        try:
            return json.dumps([convert(s), s.lines]), "\n".join(s.comments())
        except Failure:
            return None, ""

    before, comments = answer(settings.values)
    kept = dict(settings.values)  # without unused ones: of two settings with the same effect, one is used
    for name, (spelling, value) in settings.values.items():
        if before is None or re.search(rf"(?<![\w.-]){re.escape(spelling)}(?![\w.-])", comments):
            continue
        changed = {answer({**kept, name: (spelling, other)})[0] for other in others(value)} - {None}
        rest = {each: found for each, found in kept.items() if each != name}
        if changed == {before} and answer(rest)[0] in (None, before):
            kept = rest if answer(rest)[0] == before else kept
            yield name
