"""The shell's arithmetic, in 64 bits: the operators of C, in bash's order of precedence."""

import operator
import re

WORD = re.compile(r"\s*(0[xX][0-9a-fA-F]+|\d+#\w+|\d+|[A-Za-z_]\w*(?:\[[^][]*\])?|\*\*|(?:<<|>>|[-+*/%&|^])=|[<>=!]=|"
                  r"<<|>>|&&|\|\||\+\+|--|[-+*/%&|^~!<>=?:(),])")
SETS = re.compile(r"([A-Za-z_]\w*)(?:\[[^][]*\])?\s*(?:\+\+|--|(?:<<|>>|[-+*/%&|^])?=(?!=))|"
                  r"(?:\+\+|--)\s*([A-Za-z_]\w*)")
LEVELS = (("||",), ("&&",), ("|",), ("^",), ("&",), ("==", "!="), ("<", ">", "<=", ">="), ("<<", ">>"), ("+", "-"),
          ("*", "/", "%"), ("**",))
LEVEL = {sign: level for level, signs in enumerate(LEVELS) for sign in signs}


def divided(a, b):
    """Rounds towards zero."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def power(a, b):
    if b < 0:
        raise ArithmeticError(b)
    return pow(a, b, 1 << 64)


BINARY = {"||": lambda a, b: a or b, "&&": lambda a, b: a and b, "|": operator.or_, "^": operator.xor,
          "&": operator.and_, "==": operator.eq, "!=": operator.ne, "<": operator.lt, ">": operator.gt,
          "<=": operator.le, ">=": operator.ge, "<<": lambda a, b: a << (b & 63), ">>": lambda a, b: a >> (b & 63),
          "+": operator.add, "-": operator.sub, "*": operator.mul, "/": divided,
          "%": lambda a, b: a - b * divided(a, b), "**": power}
TRUTHS = ("||", "&&", *LEVELS[5], *LEVELS[6])
UNARY = {"-": operator.neg, "+": operator.pos, "~": operator.invert, "!": operator.not_}


def number_of(text):
    base, _, digits = text.rpartition("#")
    return int(digits, int(base or (16 if text[:2] in ("0x", "0X") else 8 if text[0] == "0" else 10)))


class Arithmetic:
    """Evaluates one expression. value(name) and put(name, number) read and set variables. Raises ValueError if the
    expression is invalid, or ArithmeticError."""

    def __init__(self, text, value, put):
        self.words, at = [], 0
        for found in WORD.finditer(text := text.rstrip()):
            if found.start() != at:
                break
            at = found.end()
            self.words.append(found[1])
        if at != len(text):
            raise ValueError(text)
        self.value, self.put, self.at, self.counts = value, put, 0, True  # counts: not skipped by &&, || or ?:

    def result(self):
        found = self.listed() if self.words else 0
        if self.at < len(self.words):
            raise ValueError(self.words[self.at])
        return found

    def peek(self, ahead=0):
        return self.words[self.at + ahead] if self.at + ahead < len(self.words) else ""

    def takes(self, *words):
        """Returns the next word if it is one of these, and takes it."""
        word = self.peek() if self.peek() in words else ""
        self.at += word != ""
        return word

    def expect(self, word):
        if not self.takes(word):
            raise ValueError(word)

    def listed(self):
        found = self.assigned()
        while self.takes(","):
            found = self.assigned()
        return found

    def only_if(self, counts, read, *arguments):
        """Reads a part that is skipped unless `counts`."""
        before, self.counts = self.counts, self.counts and counts
        found = read(*arguments)
        self.counts = before
        return found

    def assigned(self):
        name, sets = self.peek(), self.peek(1)
        if not (name[:1].isidentifier() and sets.endswith("=") and sets not in LEVEL):
            return self.chosen()
        self.at += 2
        found = self.assigned()
        return self.set(name, self.joined(sets[:-1], self.named(name), found) if sets != "=" else found)

    def chosen(self):
        """Reads a ? b : c."""
        found = self.binary(0)
        if self.takes("?"):
            yes = self.only_if(bool(found), self.listed)
            self.expect(":")
            no = self.only_if(not found, self.chosen)
            found = yes if found else no
        return found

    def binary(self, lowest):
        found = self.unary()
        while LEVEL.get(sign := self.peek(), -1) >= lowest:
            self.at += 1
            skipped = sign in ("&&", "||") and bool(found) == (sign == "||")
            other = self.only_if(not skipped, self.binary, LEVEL[sign] + (sign != "**"))
            found = self.joined(sign, found, other)
        return found

    def joined(self, sign, a, b):
        if not self.counts:
            return 0
        found = bool(BINARY[sign](a, b)) if sign in TRUTHS else BINARY[sign](a, b)
        return (found + (1 << 63)) % (1 << 64) - (1 << 63)

    def unary(self):
        if sign := self.takes("++", "--"):
            name, self.at = self.peek(), self.at + 1
            return self.set(name, self.joined(sign[0], self.named(name), 1))
        if sign := self.takes(*UNARY):
            return int(UNARY[sign](self.unary()))
        if self.takes("("):
            found = self.listed()
            self.expect(")")
            return found
        word, self.at = self.peek(), self.at + 1
        if word[:1].isdigit():
            return number_of(word)
        found = self.named(word)
        if sign := self.takes("++", "--"):
            self.set(word, self.joined(sign[0], found, 1))
        return found

    def named(self, name):
        if not name[:1].isidentifier():
            raise ValueError(name)
        return self.value(name) if self.counts else 0

    def set(self, name, number):
        if self.counts:
            self.put(name, number)
        return number
