"""Reads a launch script without running it: expands variables, arrays, arithmetic and quotes, follows `if`, `case`,
loops, functions and subshells, and returns the commands that would be started.

A value that the script does not set (a variable of the environment, the output of a command) becomes a mark with its
name, unknown(), so that errors can name it. A test takes an unknown value as empty, like an unset variable."""

import contextlib
import itertools
import re
from collections import namedtuple

from run_files import Failure

from .arithmetic import SETS, calculate

BEGIN, END = "\ue000", "\ue001"  # around the name of an unknown value
ESCAPED = {"$": "\ue002", "`": "\ue003"}  # escaped characters, which begin no expansion
KEPT = "\ue004"  # in a word with quotes, which stays if it is empty
DEEPEST, MOST_STEPS, MOST_ROUNDS, MOST_WORDS = 20, 20000, 64, 1000
CLOSERS = ("then", "elif", "else", "fi", "do", "done", "esac", "}")
INDEX = r"(?:[^][]|\[[^]]*\])*"  # of an array
ASSIGNS = re.compile(rf"([A-Za-z_]\w*)(?:\[({INDEX})\])?(\+?)=")
OFFSETS = re.compile(r":\s*(-?\d+)(?::\s*(-?\d+))?")  # of ${X:0:3}
GLOB = re.compile(r"\\(.)|\[([!^]?)(\]?(?:\[:\w+:\]|[^]])*)\]|(.)", re.DOTALL)
CLASS = re.compile(r"\[:(\w+):\]|[\\[]")
CLASSES = {"alpha": "a-zA-Z", "digit": "0-9", "alnum": "a-zA-Z0-9", "upper": "A-Z", "lower": "a-z", "space": r"\s",
           "blank": r" \t", "xdigit": "0-9a-fA-F", "punct": r"!-/:-@\[-`{-~", "graph": "!-~", "print": " -~"}
COMPARES = ("=", "==", "!=")
CONTROL = re.compile(r"\\(?:[abfnrtv\\'\"]|x[0-9a-fA-F]{2}|[0-7]{1,3})")  # in $'...'
MARK = re.compile(f"{BEGIN}([^{END}]*){END}")
BRACES = re.compile(r"\{(?:(-?\d{1,9}|[a-zA-Z])\.\.(-?\d{1,9}|[a-zA-Z])(?:\.\.-?(\d{1,9}))?|([^{}\s$]*,[^{}\s$]*))\}")
SHELLS = ("bash", "sh", "zsh")
SILENT = ("cd", "mkdir", "rm", "pip", "kill", "true", ":", "wait", "trap", "shopt", "ulimit", "umask", "alias")
WRITING = (">", ">>", "&>", "&>>", ">&")
PLACEHOLDER = re.compile(r"(?<=[=/])<[A-Za-z][\w ,./()-]*>")  # X=<path to the data>, which a user replaces
PRINTING = ("echo", "printf", "cat", "tee", "sed", "ls", "pwd", "expr", "bc")


def unknown(name):
    """Returns the mark of an unknown value. Blanks and punctuation of its name are replaced by private characters, so
    that no rule of the shell applies to them."""
    moved = (chr(0xE100 + ord(c)) if ord(c) < 128 and not c.isalnum() else c for c in readable(name))
    return BEGIN + "".join(moved) + END


def name_in(mark):
    return "".join(chr(ord(each) - 0xE100) if 0xE100 <= ord(each) < 0xE180 else each for each in mark)


def unknown_in(text):
    """Returns the name of the first unknown part of the text, or None."""
    found = MARK.search(str(text))
    return name_in(found[1]) if found else None


def readable(text):
    """Returns the text with its unknown parts as the script spells them."""
    return MARK.sub(lambda found: name_in(found[1]), str(text))


def unescaped(text):
    return text.replace(ESCAPED["$"], "$").replace(ESCAPED["`"], "`")


def joined(value):
    return " ".join(value) if isinstance(value, list) else value


def globbed(text):
    """Returns a pattern of file names as a regular expression."""

    def part(found):
        escaped, negative, inside, other = found.groups()
        if inside is not None:
            listed = CLASS.sub(lambda each: CLASSES.get(each[1], "") if each[1] else "\\" + each[0], inside)
            return f"[{negative and '^'}{listed}]"
        return re.escape(escaped) if escaped else {"*": ".*", "?": "."}.get(other, re.escape(other))

    return GLOB.sub(part, text)


def matches(pattern, text):
    try:
        return re.fullmatch(pattern, text, re.DOTALL) is not None
    except re.error:
        return False


class Scanner:
    """Splits a script into words and operators. A word is a list of pieces (kind, text), kind being plain, single or
    double (quoted), or an array's list of words."""

    BLANK = re.compile(r"(?:[ \t\r]|\\\n|#[^\n]*|[01]?(?=[<>])|\d+(?=<))*")  # includes the number in 2> or 0<
    OPERATOR = re.compile(r";;&?|;&|&&|\|\||\|&|<<<|&>>?|<&|\d*(?:>>|>&|>)|[|;&()<]")
    DOLLAR = re.compile(r"\$(\d|[A-Za-z_]\w*|[@*#?$!-])?")

    def __init__(self, text, at=0):
        self.text, self.at = text, at
        self.waiting = []  # here-documents whose bodies follow the line

    def sees(self, *words):
        return self.text.startswith(words, self.at)

    def step(self, count=1):
        self.at += count
        return self.text[self.at - count : self.at]

    def skip(self, pattern):
        found = re.compile(pattern).match(self.text, self.at)
        self.at = found.end()
        return found[0]

    def tokens(self):
        """Yields (kind, value, line). A here-document's value is a list, which gets its body later."""
        line, counted = 1, 0
        while True:
            self.skip(self.BLANK)
            if self.at >= len(self.text):
                break
            line, counted = line + self.text.count("\n", counted, self.at), self.at
            if self.sees("\n"):
                yield ("newline", self.step(), line)
                self.documents()
            elif self.sees("(("):
                yield ("arithmetic", self.balanced("(", ")")[2:-2], line)
            elif self.sees("<<") and not self.sees("<<<"):
                tabs = self.skip(r"<<-?[ \t]*").startswith("<<-")
                self.waiting.append((tabs, self.word(), body := []))
                yield ("document", body, line)
            elif self.OPERATOR.match(self.text, self.at):
                yield ("operator", self.skip(self.OPERATOR), line)
            else:
                yield ("word", self.word(), line)
        self.documents()

    def documents(self):
        """Reads the bodies of the here-documents that the line has begun: (kind, text)."""
        for tabs, word, body in self.waiting:
            end = "".join(text for _, text in word if isinstance(text, str))
            lines = []
            while self.at < len(self.text):
                self.skip(r"\t*" if tabs else "")
                line = self.skip(r"[^\n]*\n?")
                if line.rstrip("\r\n") == end:
                    break
                lines.append(line)
            body[:] = ["single" if any(kind != "plain" for kind, _ in word) else "double", "".join(lines)]
        self.waiting = []

    def balanced(self, begin, end):
        """Returns the text from `begin` to its matching `end`, ignoring quoted ones."""
        start, depth = self.at, 0
        while self.at < len(self.text):
            if self.sees(begin, end):
                depth += 1 if self.sees(begin) else -1
                self.step(len(begin) if self.sees(begin) else len(end))
                if depth == 0:
                    break
            elif self.sees("'") and begin == "(":
                self.skip(r"'[^']*'?")
            elif self.sees('"') and begin == "(":
                self.double()
            else:
                self.step(2 if self.sees("\\") else 1)
        return self.text[start : self.at]

    def expression(self):
        """Reads an expression that begins with $; returns commands in backticks as $(...)."""
        if self.sees("`"):
            inside = self.skip(r"`(?:\\[\s\S]|[^`\\])*`?")[1:].removesuffix("`")
            return "$(" + re.sub(r"\\([`$\\])", r"\1", inside) + ")"
        if self.sees("$["):  # an older $((...))
            self.step()
            return "$((" + self.balanced("[", "]")[1:-1] + "))"
        if self.sees("$("):
            return self.step() + self.balanced("(", ")")
        return self.balanced("${", "}") if self.sees("${") else self.skip(self.DOLLAR)

    def word(self, ends=" \t\r\n;|&<>()"):
        pieces, plain = [], ""
        while self.at < len(self.text):
            quoted = None
            if self.sees("(") and plain.endswith(("@", "?", "*", "+", "!")):
                plain += self.balanced("(", ")")
            elif self.sees("(") and ASSIGNS.fullmatch(plain):
                self.step()
                quoted = ("array", self.array())
            elif self.sees(*ends):
                break
            elif self.sees("\\"):
                quoted = None if self.sees("\\\n") else ("single", self.text[self.at + 1 : self.at + 2])
                self.step(2)
            elif self.sees("'"):
                quoted = ("single", self.skip(r"'[^']*'?")[1:].removesuffix("'"))
            elif self.sees('"'):
                quoted = ("double", self.double())
            elif self.sees("$'"):
                text = self.skip(r"\$'(?:[^'\\]|\\.)*'?")[2:].removesuffix("'")
                quoted = ("single", CONTROL.sub(lambda found: found[0].encode().decode("unicode_escape"), text))
            elif self.sees('$"'):
                self.step()
            elif self.sees("$", "`"):
                plain += self.expression()
            elif self.sees("[") and re.fullmatch(r"[A-Za-z_]\w*", plain):
                plain += self.balanced("[", "]")
            else:
                plain += self.step()
            if quoted is not None:
                pieces, plain = [*pieces, ("plain", plain), quoted], ""
        return [(kind, text) for kind, text in [*pieces, ("plain", plain)] if text != "" or kind != "plain"]

    def array(self):
        words = []
        while self.at < len(self.text) and not self.sees(")"):
            if self.sees(*" \t\r\n;|&<>", "\\\n", "#"):
                self.skip(r"\\\n|#[^\n]*|.|\n")
            elif self.sees("("):
                self.balanced("(", ")")
            else:
                key = [("plain", self.balanced("[", "]"))] if self.sees("[") else []  # an index
                words.append([*key, *self.word()])
        self.step()
        return words

    def double(self):
        """Reads a text in double quotes."""
        self.step()
        text = ""
        while self.at < len(self.text) and not self.sees('"'):
            if self.sees(*(f"\\{sign}" for sign in '\\"$`\n')):
                text += (ESCAPED | {"\n": ""}).get(both := self.step(2)[1], both)
            elif self.sees("$", "`"):
                text += self.expression()
            else:
                text += self.step()
        self.step()
        return text


Node = namedtuple("Node", "act line parts")  # act: the method of Script that runs it
# names: "X=" of each variable that its commands assign, and every other word, which may be a function or a program.
Block = namedtuple("Block", "nodes names")


class Parser:
    """Makes a syntax tree from tokens. Skips invalid syntax."""

    REDIRECTS = re.compile(r"\d*>[>&]?|&>>?|<&?|<<<")
    ENDS = (";;", ";&", ";;&")  # of a clause of `case`

    def __init__(self, text):
        self.all, self.at = list(Scanner(text).tokens()), 0

    def peek(self, ahead=0):
        return self.all[self.at + ahead] if self.at + ahead < len(self.all) else ("end", "", 0)

    def next(self):
        self.at += 1
        return self.peek(-1)

    def word(self):
        """Returns the next word if it is written without quotes, else ''."""
        kind, value, _ = self.peek()
        return value[0][1] if kind == "word" and len(value) == 1 and value[0][0] == "plain" else ""

    def operator(self, *operators):
        return self.peek()[0] == "operator" and self.peek()[1] in operators

    def newlines(self):
        while self.peek()[0] == "newline":
            self.next()

    def take(self, word):
        """Skips to a reserved word and takes it, unless one that closes a block comes first."""
        while self.peek()[0] != "end":
            found = self.word()
            if found != word and found in CLOSERS:
                return
            self.next()
            if found == word:
                return

    def names(self, begin):
        words = (value for kind, value, _ in self.all[begin : self.at] if kind == "word")
        texts = ("".join(text for _, text in word if isinstance(text, str)) for word in words)
        return {re.match(r"\w+", text)[0] + "=" if ASSIGNS.match(text) else text for text in texts}

    def block(self, end=None):
        """Reads commands until a word or an operator that closes the block, and takes the word `end`."""
        nodes, begin = [], self.at
        while self.peek()[0] != "end" and self.word() not in CLOSERS and not self.operator(*self.ENDS, ")"):
            if self.peek()[0] == "newline" or self.operator(";", "&", "&&", "||", "|", "|&"):
                self.next()
            else:
                nodes.append(self.chain())
        block = Block(nodes, self.names(begin))
        if end:
            self.take(end)
        return block

    def chain(self):
        """Reads `a | b && c || d &`."""
        line, parts, joint = self.peek()[2], [], ""
        while True:
            begin, pipe = self.at, [self.command()]
            while self.operator("|", "|&"):
                self.next()
                self.newlines()
                pipe.append(self.command())
            parts.append((joint, Block(pipe, self.names(begin))))
            if not self.operator("&&", "||"):
                return Node("chain", line, (parts, self.operator("&")))
            joint = self.next()[1]
            self.newlines()

    def command(self):
        kind, _, line = self.peek()
        word = self.word()
        if word == "!":
            self.next()
            return Node("negated", line, self.command())
        read = {"if": self.branch, "while": self.repeated, "until": self.repeated, "for": self.loop,
                "select": self.loop, "case": self.choice, "[[": self.test}.get(word)
        if read is not None:
            self.next()
            node = Node("selected" if word == "select" else read.__name__, line, read(word))
        elif word == "{" or self.operator("("):
            self.next()
            node = Node("group" if word else "subshell", line, self.block("}" if word else None))
            if not word and self.operator(")"):
                self.next()
        elif kind == "arithmetic":
            node = Node("truthful", line, self.next()[1])
        elif word == "function" or (self.peek(1)[1] == "(" and self.peek(2)[1] == ")"
                                    and re.fullmatch(r"[\w.:-]+", word)):
            node = self.function(line)
        else:
            words, redirects = [], self.redirects()
            while self.peek()[0] == "word":
                words.append(self.next()[1])
                redirects += self.redirects()
            return Node("simple", line, (words, redirects))
        redirects = self.redirects()
        return Node("redirected", line, (node, redirects)) if redirects else node

    def redirects(self):
        """Reads one redirection after another. Returns a list of (operator, word or here-document)."""
        found = []
        while (kind := self.peek()[0]) == "document" or kind == "operator" and self.REDIRECTS.fullmatch(self.peek()[1]):
            kind, value, _ = self.next()
            if kind == "document":
                found.append(("<<", value))
            elif self.peek()[0] == "word":
                found.append((value, self.next()[1]))
            elif self.operator("("):  # process substitution
                self.command()
        return found

    def test(self, _):
        inside = []
        while self.peek()[0] != "end" and self.word() != "]]":
            inside.append(self.next())
        self.next()
        return inside

    def branch(self, _):
        clauses, other = [(self.peek(-1)[2], self.block("then"), self.block())], None
        while self.word() in ("if", "elif"):
            clauses.append((self.next()[2], self.block("then"), self.block()))
        if self.word() == "else":
            self.next()
            other = self.block()
        self.take("fi")
        return clauses, other

    def body(self):
        self.take("do")
        return self.block("done")

    def repeated(self, word):
        return word == "while", self.block(), self.body()

    def loop(self, _):
        if self.peek()[0] == "arithmetic":
            return None, self.next()[1], self.body()
        name, words = self.word(), None
        self.next()
        self.newlines()
        if self.word() == "in":
            self.next()
            words = []
            while self.peek()[0] == "word" and self.word() != "do":
                words.append(self.next()[1])
        return name, words, self.body()

    def choice(self, _):
        subject, clauses = self.next()[1] if self.peek()[0] == "word" else [], []
        self.take("in")
        while self.peek()[0] != "end" and self.word() != "esac":
            if self.peek()[0] == "newline" or self.operator("("):
                self.next()
                continue
            patterns = []
            while self.peek()[0] != "end" and not self.operator(")"):
                kind, value, _ = self.next()
                patterns += [value] if kind == "word" else []
            self.next()
            clauses.append((patterns, self.block(), self.next()[1] if self.operator(*self.ENDS) else ""))
        self.take("esac")
        return subject, clauses

    def function(self, line):
        if self.word() == "function":
            self.next()
        name = self.word()
        self.next()
        while self.operator("(", ")") or self.peek()[0] == "newline":
            self.next()
        return Node("define", line, (name, self.command()))


class Returned(Exception):
    """A function returns."""


class Ended(Exception):
    """The script or a subshell exits."""


class Broke(Exception):
    """Broke(goes_on): break or, if goes_on, continue."""


class Script:
    """commands: lists of words, in the order in which they would run. An array's value is a dict."""

    def __init__(self, given=(), read=lambda name: None, arguments=()):
        self.given = {"IFS": " \t\n", **dict(given)}  # values from the user for variables that the script does not set
        self.variables, self.exported, self.functions = {}, set(), {}
        self.texts = set()  # declared arrays whose keys are texts
        self.frames = []  # per function call: {local variable: its value outside}
        self.arguments = list(arguments)
        self.read = read  # returns the text of a file that the script names, or None
        self.files = {}  # files that the script writes: {name: text, or None if unknown}
        self.commands, self.notes, self.ends = [], [], []
        self.ever = {}  # last value of each variable, local and subshells' ones included
        self.depth = self.steps = self.line = self.ended = 0  # ended: line of the `exit` that ended the script
        self.missing, self.asked = 0, False  # highest missing argument ($3: 3); $# was read without any arguments
        self.told = False  # the script itself sets its arguments
        self.held = self.inner = True  # whether the last command and the last $(...) succeeded
        self.sourced = False  # `source` reads this text
        self.doubt, self.guess = "", False  # unknown value that the last condition used; whether there is one
        self.uncertain = 0  # enclosing conditions that used unknown values
        self.printed = None  # output of commands, if captured

    # ---- values

    def lookup(self, name):
        """Returns a variable's text or array; None if the script does not set it."""
        if name.isdecimal() and int(name) > 0:
            if int(name) <= len(self.arguments):
                return self.arguments[int(name) - 1]
            self.missing = self.missing if self.frames or self.told else max(self.missing, int(name))
            return None
        return self.variables.get(name, self.given.get(name))

    def value(self, name, testing=False):
        found = self.lookup(name)
        if found is None:
            return self.unsaid("$" + name, testing)
        return next(iter(found.values()), "") if isinstance(found, dict) else found

    def unsaid(self, name, testing):
        """Returns the mark of an unknown value, or in a test the empty text."""
        if re.fullmatch(r"\$[1-9]\d*", name) and (self.frames or self.told):
            return ""
        return self.without_unknown(unknown(name)) if testing else unknown(name)

    def without_unknown(self, text):
        """Returns a text without its marks, for a test, and records that the test used an unknown value."""
        if name := unknown_in(text):
            self.depend(name)
        return MARK.sub("", text)

    def depend(self, what):
        self.doubt, self.guess = self.doubt or what, True

    def braces(self, inside, testing, plain=""):
        """Returns the value of ${...}: a list for arrays. plain: outside of double quotes, in a text that is kept
        "whole" or "split"."""
        parts = re.match(rf"([!#]?)(\w+|[@*])(?:\[({INDEX})\])?(.*)", inside, re.DOTALL)
        whole = "${" + inside + "}"
        if parts is None:
            return unknown(whole)
        sign, name, index, rest = parts.groups()
        found = self.lookup(name) if name not in "@*" else dict(enumerate(self.arguments, 1))
        items = found if isinstance(found, dict) else {} if found is None else {0: found}
        every = (index or name) in ("@", "*")
        if every and sign != "#" and len(items) > 1 and name in self.texts:
            self.unread(self.line, f"the order of {name}'s items")
        if sign and found is None:
            return self.unsaid(whole, testing)
        if sign == "!":
            return [str(key) for key in items] if every else self.value(str(self.value(name, testing)), testing)
        if re.match(":(?![-=+?])", rest):
            rest = "".join(f": {self.arithmetic(each, testing)}" for each in rest[1:].split(":"))
        if every and sign:  # an unknown item may be several words, or none
            unsaid = any(map(MARK.fullmatch, items.values()))
            return self.unsaid(whole, testing) if unsaid else str(len(items))
        if unknown_in(rest) or every and found is None and not rest and not testing:
            return [unknown(whole)]
        if every and found is not None:
            found = list(items.values())
            if cut := OFFSETS.fullmatch(rest):
                begin = int(cut[1]) - (name in "@*" and int(cut[1]) > 0)
                found, rest = found[begin:][: int(cut[2]) if cut[2] else None], ""
            elif rest and not rest.startswith((":", "-", "+", "=", "?")):
                found, rest = [self.edited(item, rest, inside, testing) for item in found], ""
            found = self.value("IFS")[:1].join(found) if "*" in (index or name) else found
        elif index is not None:
            unset = "" if isinstance(found, dict) and not rest else None
            found = items.get(self.key_of(name, items, index, testing), unset)
        elif isinstance(found, dict):
            found = next(iter(found.values()), "")
        if sign:
            return self.unsaid(whole, testing) if unknown_in(found) else str(len(found or ""))
        if rest.startswith((":-", "-", ":=", "=", ":+", "+", ":?", "?")):
            return self.defaulted(name, found, rest, testing, plain)
        if found is None:
            return self.unsaid("$" + name if index is None else whole, testing)
        return found if isinstance(found, list) else self.edited(found, rest, inside, testing)

    def key_of(self, name, items, index, testing=False):
        """Returns the key of an array's item: a number, or in an associative array a text."""
        text = self.text(index.strip("\"'"), testing)
        if name in self.texts or text in items or any(isinstance(key, str) for key in items):
            return text
        at = self.arithmetic(index, testing)
        known = int(at) if re.fullmatch(r"-?\d{1,6}", at) else text
        return sorted(items)[known] if isinstance(known, int) and -len(items) <= known < 0 else known

    def defaulted(self, name, found, rest, testing, plain):
        """Returns the value after ${X:-...}, ${X=...}, ${X+...} or ${X?}."""
        colon, kind, word = re.match(r"(:?)(.)(.*)", rest, re.DOTALL).groups()
        said = found is not None and not (colon and found in ("", []))
        if said != (kind == "+"):
            return found if said else ""
        if kind == "?":
            return unknown("$" + name)
        if not plain:
            word = self.text(word.replace('"', ""), testing)
        elif kind == "=" or plain == "whole":
            word = self.whole(Scanner(word).word(""), testing)
        else:  # its fields are not split again
            scanner, words = Scanner(word.strip()), []
            while scanner.at < len(scanner.text):
                words.append(scanner.word(" \t\n"))
                scanner.skip(r"\s*")
            return [KEPT + each for each in self.expand(words, testing)]
        if kind == "=":
            self.put(name, word)
        return word

    def edited(self, text, rest, inside, testing):
        """Returns the text after ${X#...}, ${X%...}, ${X/a/b}, ${X:0:3}, ${X,,} and ${X^^}."""
        if rest in ("", ",,", "^^"):
            return text.lower() if rest == ",," else text.upper() if rest else text
        if unknown_in(text):
            return text
        if cut := re.fullmatch(OFFSETS, rest):
            return text[int(cut[1]) :][: None if cut[2] is None else int(cut[2])] if int(cut[1]) >= -len(text) else ""
        begin = re.match("##?|%%?|//?(?![#%])", rest)
        sign = begin[0] if begin else ""
        scanner = Scanner(rest, len(sign))
        old = scanner.word("/" if sign[:1] == "/" else "")
        new = self.whole(Scanner(rest, scanner.at + 1).word(""), testing)
        pattern = self.pattern(old, testing)
        replaced = [kind for kind, _ in old] if sign[:1] == "/" else []
        if not sign or unknown_in(pattern) or len(text) > 4095 or replaced and not pattern:
            return unknown("${" + inside + "}")
        if not replaced:
            ends = [(text[:i], text[i:]) if sign[0] == "#" else (text[i:], text[:i]) for i in range(len(text) + 1)]
            rests = [rest for end, rest in ends if matches(pattern, end)]
            return (min if len(sign) == 2 else max)(rests, key=len, default=text)
        return re.sub(pattern, lambda found: new if found[0] else "", text, int(sign != "//"), re.DOTALL)

    def pattern(self, word, testing=False, regex=False):
        """Returns a word as a regular expression: of a pattern, or (regex) of one after =~. Quoted parts are literal.
        """
        found = ""
        for kind, text in word:
            said = unescaped(text if kind == "single" else self.text(text, testing))
            if kind in ("single", "double"):
                found += re.escape(said)
            elif regex:
                found += CLASS.sub(lambda each: CLASSES.get(each[1], "") if each[1] else each[0], said)
            elif group := re.search(r"[@?*+!]\(", said):
                self.unread(self.line, f"{group[0]}...) in a pattern")
            else:
                found += globbed(said)
        return found

    def arithmetic(self, text, testing=False):
        """Runs an expression with its assignments. Returns its value as a text of digits, or a mark."""
        said = self.text(text, testing)
        name = unknown_in(said)
        try:
            if name is None and len(said) < 4096:
                return str(calculate(said, lambda name: self.number(name, testing), self.put_number))
        except LookupError as error:
            name = error.args[0]
        except (ValueError, ArithmeticError, RecursionError):
            pass
        mark = unknown(name or "$((" + readable(text).strip() + "))")
        for found in SETS.finditer(said):
            self.put(found[1] or found[2], mark)
        return mark

    def number(self, name, testing):
        """Returns the number of a variable, whose text may be an expression. Raises LookupError if it is unknown."""
        said = self.text("${" + name + "}", testing)
        if (unsaid := unknown_in(said)) is not None:
            raise LookupError(unsaid)
        if re.fullmatch("-?[1-9][0-9]{0,17}|0?", said):
            return int(said or 0)
        return calculate(said, lambda name: self.number(name, testing), self.put_number)

    def put_number(self, name, number):
        self.assign([("plain", f"{name}={number}")])

    def pieces(self, text, testing, plain=""):
        """Yields the parts of a text: plain text and expanded $-expressions in turn, beginning with plain text."""
        at = 0
        for found in re.finditer(r"\$", text):
            if found.start() < at:
                continue
            yield text[at : found.start()]
            scanner = Scanner(text, found.start())
            said = scanner.expression()
            at = scanner.at
            if said.startswith("$(("):
                yield self.arithmetic(said[3:-2], testing)
            elif said.startswith("$("):
                yield self.output(said[2:-1], testing)
            elif said.startswith("${"):
                yield self.braces(said[2:-1], testing, plain)
            elif said in ("$@", "$*"):
                yield list(self.arguments) if said == "$@" else self.value("IFS")[:1].join(self.arguments)
            elif said == "$#":
                self.asked = self.asked or not (self.arguments or self.frames or self.told)
                yield str(len(self.arguments))
            elif len(said) > 1 and said[1] not in "?$!-0":
                yield self.value(said[1:], testing)
            else:
                yield said if said == "$" else "0" if said == "$?" and self.held else self.unsaid(said, testing)
        yield text[at:]

    def output(self, command, testing):
        """Returns the output of commands, or a mark if it is uncertain."""
        with self.kept(printed=[], commands=[], notes=[], ends=[], line=self.line, doubt="", guess=False):
            with self.apart(), contextlib.suppress(Returned, Broke):
                self.run(command)
            guess = self.guess or self.ends  # ends: an `exit` or a loop was not followed
            self.inner = bool(guess) or self.held
            said = "".join(self.printed).rstrip("\n")
        if guess:
            return self.unsaid("$(" + " ".join(readable(command).split())[:60] + ")", testing)
        return self.without_unknown(said) if testing else said

    def body(self, document):
        kind, text = document or ("single", "")
        text = text if kind == "single" else self.text(re.sub(r"\\([$`])", lambda found: ESCAPED[found[1]], text))
        return unescaped(text)

    def text(self, text, testing=False):
        """Returns the text with its $-expressions expanded, as inside double quotes."""
        if self.depth >= 4 * DEEPEST:
            return unknown(text[:40])
        with self.kept(depth=self.depth + 1):
            return "".join(joined(each) for each in self.pieces(text, testing))

    def expand(self, words, testing=False):
        """Returns the words of a command after expansion."""
        return [field for word in words for each in self.braced(word) for field in self.expand_word(each, testing)]

    def braced(self, word):
        """Returns the words of a word with {a,b} or {1..9..2} outside of quotes."""
        words = list(itertools.islice(self.alternatives(word), MOST_WORDS + 1))
        if len(words) > MOST_WORDS:
            self.unread(self.line, f"a word with braces for more than {MOST_WORDS} words")
        return words

    def alternatives(self, word):
        for at, (kind, text) in enumerate(word):
            for found in BRACES.finditer(text) if kind == "plain" else ():
                begin, end, step, listed = found.groups()
                before, after = text[: found.start()], text[found.end() :]
                if before.endswith("$") or any(before.count(a) > before.count(b) for a, b in ("{}", "()")):
                    continue  # ${...}, or inside of it or of $(...)
                if listed is None:
                    if begin.isalpha() or end.isalpha():
                        self.unread(self.line, found[0])
                    way = 1 if int(begin) <= int(end) else -1
                    wide = max(len(begin), len(end)) if any(re.match("-?0.", each) for each in (begin, end)) else 0
                    numbers = range(int(begin), int(end) + way, way * max(int(step or 1), 1))
                    parts = (str(each).zfill(wide) for each in numbers)
                else:
                    parts = listed.split(",")
                for part in parts:
                    yield from self.alternatives([*word[:at], (kind, f"{before}{part}{after}"), *word[at + 1 :]])
                return
        yield word

    def expand_word(self, word, testing=False, splits=True):
        fields = [""]
        for kind, text in word:
            if kind == "single":
                fields[-1] += KEPT + text
            elif kind == "double":
                parts = list(self.pieces(text, testing))
                fields[-1] += "" if any(isinstance(each, list) for each in parts) else KEPT
                for each in parts:
                    listed = [KEPT + item for item in each] if isinstance(each, list) else [each]
                    fields[-1:] = [fields[-1] + "".join(listed[:1]), *listed[1:]]
            elif kind == "plain":
                for number, each in enumerate(self.pieces(text, testing, "split" if splits else "whole")):
                    split = self.split(each) if number % 2 and splits else [joined(each)]  # plain text is not split
                    fields[-1:] = [fields[-1] + split[0], *split[1:]]
        return [unescaped(each.replace(KEPT, "")) for each in fields if each != ""]

    def whole(self, word, testing=False):
        """Returns the text of a word that is not split."""
        return " ".join(self.expand_word(word, testing, False))

    def between(self):
        """Returns a regular expression of what separates fields, and the blanks in IFS."""
        signs = self.value("IFS")
        blanks, others = ("".join(each for each in signs if (each in " \t\n") == kind) for kind in (True, False))
        blank, other = (f"[{re.escape(each)}]" if each else r"[^\s\S]" for each in (blanks, others))
        return f"{blank}*{other}{blank}*|{blank}+", blanks

    def split(self, value):
        """Returns the fields of an expanded value. Blanks at its ends give empty fields there."""
        between, blanks = self.between()
        fields = []
        for each in value if isinstance(value, list) else [value]:
            if set(self.value("IFS")) - set(blanks) and re.search(between, each):
                self.unread(self.line, "a word that is split at IFS")
            fields += [each] if each.startswith(KEPT) else re.split(between, each)
        return fields or [""]

    # ---- running

    def run(self, text):
        """Follows a script. If it is cut off, the commands before that point count."""
        with self.deeper():
            try:
                parser = Parser(PLACEHOLDER.sub(lambda found: unknown(found[0]), text))
                blocks = []
                while parser.peek()[0] != "end":
                    blocks.append(parser.block())
                    parser.next()
                with contextlib.suppress(*([Ended, Returned, Broke] if self.depth == 1 else [])):
                    for block in blocks:
                        self.all(block)
            except RecursionError:
                raise Failure("the script is nested too deeply; give the flags themselves") from None

    @contextlib.contextmanager
    def kept(self, **own):
        """Sets attributes, and restores their present values at the end."""
        before = {name: getattr(self, name) for name in own}
        vars(self).update(own)
        try:
            yield
        finally:
            vars(self).update(before)

    def deeper(self):
        if self.depth >= DEEPEST:
            raise Failure("the script calls itself endlessly; give the flags themselves")
        return self.kept(depth=self.depth + 1)

    @contextlib.contextmanager
    def apart(self, child=False):
        """A subshell, with its own variables and `exit`. child: another program, which sees only exported variables."""
        seen = {name: dict(value) if isinstance(value, dict) else value for name, value in self.variables.items()
                if not child or name in self.exported}
        functions, frames = ({}, []) if child else (dict(self.functions), [dict(frame) for frame in self.frames])
        with (self.kept(variables=seen, exported=set(self.exported), functions=functions, arguments=self.arguments,
                        frames=frames, told=self.told or child), contextlib.suppress(Ended)):
            yield

    def guessing(self, guess):
        return self.kept(uncertain=self.uncertain + bool(guess))

    def judge(self, act, *arguments):
        """Returns (act's result, the unknown value that it used, whether it used any)."""
        kept, (self.doubt, self.guess) = (self.doubt, self.guess), ("", False)
        try:
            result = act(*arguments)
        finally:
            doubt, guess = self.doubt, self.guess
            self.doubt, self.guess = kept[0] or doubt, kept[1] or guess
        return result, doubt, guess

    def note(self, what, *blocks):
        """Adds a note that lists what uncertain commands do: variables that they set, programs that they start. Returns
        whether they set any."""
        names = sorted(set().union(*(block.names for block in blocks if block)))
        sets = [name[:-1] for name in names if name.endswith("=")]
        starts = [name.rpartition("/")[2] for name in names if name.endswith(".py") or name in self.functions]
        does = [f"{verb} {', '.join(each)}" for verb, each in (("sets", sets), ("starts", starts)) if each]
        text = f"{what} and {' and '.join(does)}"
        if does and text not in self.notes:
            self.notes.append(text)
        return sets != []

    def do(self, node):
        """Runs a command. Returns whether it succeeds."""
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise Failure("the script does not end; give the flags themselves")
        act, self.line, parts = node
        if act == "negated":
            return not self.do(parts)
        if act in ("group", "subshell"):
            with self.apart() if act == "subshell" else contextlib.nullcontext():
                return self.all(parts)
            return True
        if act == "define":
            self.functions[parts[0]] = parts[1]
            return True
        if act == "truthful":
            said = self.arithmetic(parts, True)
            return not unknown_in(said) and said != "0"
        return getattr(self, act)(node.line, *parts)

    def all(self, block):
        """Runs the commands of a block. Returns whether the last one succeeds."""
        holds = True
        for node in block.nodes:
            holds = self.held = self.do(node)
        return holds

    def chain(self, line, parts, background):
        with self.apart() if background else contextlib.nullcontext():
            holds, doubt, guess = True, "", False
            for joint, pipe in parts:
                if doubt:
                    self.note(f"line {line} depends on {doubt}, is read as {str(holds).lower()},", pipe)
                if joint == "" or holds == (joint == "&&"):
                    with self.guessing(guess):
                        holds, more, unsure = self.judge(self.pipe, pipe)
                    self.held = holds
                    doubt, guess = doubt or more, guess or unsure
            return holds
        return True

    def pipe(self, pipe):
        if len(pipe.nodes) == 1:
            return self.do(pipe.nodes[0])
        for node in pipe.nodes:
            holds = True
            with self.kept(printed=self.printed if node is pipe.nodes[-1] else []):
                with self.apart(), contextlib.suppress(Returned, Broke):
                    holds, _, _ = self.judge(self.do, node)
        return holds

    def branch(self, _, clauses, other):
        unsure = False
        for line, condition, body in clauses:
            holds, doubt, guess = self.judge(self.all, condition)
            unsure = unsure or guess
            if doubt:
                bodies = [each for _, _, each in clauses]
                self.note(f"line {line} depends on {doubt}, is read as {str(holds).lower()},", *bodies, other)
            if holds:
                other = body
                break
        with self.guessing(unsure):
            return self.all(other) if other else True

    def round(self, body):
        """Runs a loop's body once. Returns whether the loop goes on."""
        try:
            self.all(body)
        except Broke as broke:
            return broke.args[0]
        return True

    def repeated(self, line, wanted, condition, body):
        for _ in range(MOST_ROUNDS):
            holds, doubt, guess = self.judge(self.all, condition)
            if doubt or (guess and holds == wanted):
                if not self.note(f"the loop of line {line} is not followed", body):
                    self.ends.append(f"the loop of line {line}")
                return True
            if holds != wanted or not self.round(body):
                return True
        self.note(f"the loop of line {line} is followed {MOST_ROUNDS} times", body)
        return True

    def loop(self, line, name, words, body):
        if name is None:
            return self.counted(line, words, body)
        values = list(self.arguments) if words is None else self.expand(words)
        if len(values) > MOST_ROUNDS:
            self.note(f"the loop of line {line} is followed {MOST_ROUNDS} times", body)
        for value in values[:MOST_ROUNDS]:
            self.put(name, value)
            if not self.round(body):
                break
        return True

    def counted(self, line, text, body):
        begin, goes_on, step = [*text.split(";"), "", ""][:3]
        self.arithmetic(begin or "0")
        for _ in range(MOST_ROUNDS):
            said = self.arithmetic(goes_on if goes_on.strip() else "1")
            if said == "0":
                return True
            if unknown_in(said):
                break
            if not self.round(body):
                return True
            self.arithmetic(step or "0")
        self.note(f"the loop of line {line} is not followed to its end", body)
        return True

    def choice(self, line, subject, clauses):
        said, doubt, guess = self.judge(lambda: self.without_unknown(" ".join(self.expand([subject], True))))
        for patterns, body, end in clauses:
            if any(matches(self.pattern(each, True), said) for each in patterns):
                with self.guessing(guess):
                    self.all(body)
                if end not in (";;", ""):
                    self.unread(line, end)
                break
        if doubt:
            self.note(f"line {line} depends on {doubt}, is read as empty,", *(body for _, body, _ in clauses))
        return True

    def selected(self, line, *_):
        self.unread(line, "select")

    def unread(self, line, what):
        raise Failure(f"line {line}: {what} is not read; give the flags themselves")

    def test(self, _, *tokens):
        words, regex = [], False
        for kind, value, _ in tokens:
            if kind == "word" and (regex or words[-1:] and words[-1] in COMPARES):
                words.append(self.pattern(value, True, regex))
            elif kind in ("word", "operator"):
                words.append(self.whole(value, True) if kind == "word" else value)
            regex = words[-1:] == ["=~"] or regex and words[-1] not in ("&&", "||")
        return self.truth(words, True)

    def truth(self, words, whole=False):
        """Evaluates the words of [ ... ] or (whole) of [[ ... ]], which compares arithmetic expressions."""
        for operators, meet in ((("||", "-o"), any), (("&&", "-a"), all)):
            parts, deep = [[]], 0
            for word in words:
                deep += (word == "(") - (word == ")")
                if word in operators and deep == 0 and parts[-1]:
                    parts.append([])
                else:
                    parts[-1].append(word)
            if len(parts) > 1:
                return meet([self.truth(part, whole) for part in parts])
        if words[:1] == ["!"]:
            return not self.truth(words[1:], whole)
        if words[:1] == ["("] and words[-1:] == [")"]:
            return self.truth(words[1:-1], whole)
        words = [self.without_unknown(each) for each in words]
        if words[:1] in (["-z"], ["-n"]) and not self.doubt.startswith("$("):
            self.doubt = ""  # the test asks whether a variable is set, so an unset one is no doubt
        if len(words) == 2 and words[0] in ("-z", "-n"):
            return (words[1] == "") == (words[0] == "-z")
        if len(words) == 2 and words[0] == "-v":
            return self.text("${" + words[1] + "+set}", True) == "set"
        if len(words) == 2 and words[0].startswith("-"):
            self.depend(f"the file {words[1]}")
            return words[0] in ("-f", "-e", "-s") and words[1] in self.files
        if len(words) < 3:  # of two, one operand was an unset variable, and `[` fails
            asked = self.guess and words[:1] in (["-d"], ["-e"], ["-f"], ["-s"])  # for a file of unknown name
            return len(words) == 1 and words[0] != "" and not asked
        left, sign, right = words[0], words[1], " ".join(words[2:])
        if sign in COMPARES:
            return (matches(right, left) if whole else left == right) == (sign != "!=")
        if sign == "=~":
            with contextlib.suppress(re.error):
                found = re.search("".join(words[2:]), left)
                parts = (found[0], *found.groups("")) if found else ()
                self.put("BASH_REMATCH", dict(enumerate(parts)))
                return found is not None
            return False
        if sign in ("<", ">"):
            return left < right if sign == "<" else left > right
        left, right = (self.arithmetic(each, True) if whole and sign[:1] == "-" else each for each in (left, right))
        if not all(re.fullmatch(r"\s*-?\d+\s*", each) for each in (left, right)):
            return False
        a, b = int(left), int(right)
        return {"-eq": a == b, "-ne": a != b, "-lt": a < b, "-le": a <= b, "-gt": a > b, "-ge": a >= b}.get(sign, False)

    # ---- commands

    def put(self, name, value):
        if isinstance(value, dict) and all(isinstance(key, int) for key in value):
            value = dict(sorted(value.items()))
        self.variables[name] = self.ever[name] = value

    def assign(self, word):
        """Assigns a variable. Returns its name."""
        head = word[0][1]
        found = ASSIGNS.match(head)
        name, index, adds = found[1], found[2], found[3] == "+"
        rest = [("plain", head[found.end() :]), *word[1:]]
        before = self.lookup(name)
        items = dict(before) if isinstance(before, dict) else {} if before is None else {0: before}
        if any(kind == "array" for kind, _ in rest):
            items = items if adds else {}
            for each in (each for kind, words in rest if kind == "array" for each in words):
                if len(each) > 1 and each[0][1][:1] == "[" and each[1][1][:1] == "=":
                    key = self.key_of(name, {}, each[0][1][1:-1])
                    items[key] = " ".join(self.expand_word([("plain", each[1][1][1:]), *each[2:]]))
                else:
                    for value in self.expand([each]):
                        items[max((key for key in items if isinstance(key, int)), default=-1) + 1] = value
            self.put(name, items)
            return name
        value = self.whole(rest)
        if unknown_in(value) and name in self.given:
            value = self.given[name]
        if index is None and not isinstance(before, dict):
            self.put(name, (before or "") * adds + value)
        else:
            key = 0 if index is None else self.key_of(name, items, index)
            self.put(name, {**items, key: items.get(key, "") * adds + value})
        return name

    def simple(self, _, words, redirects):
        """Runs one command with its redirections. Returns whether it succeeds."""
        bodies = [self.body(value) for sign, value in redirects if sign == "<<"]
        bodies += [" ".join(self.expand([value])) + "\n" for sign, value in redirects if sign == "<<<"]
        ahead = next((i for i, word in enumerate(words)
                      if not (word and word[0][0] == "plain" and ASSIGNS.match(word[0][1]))), len(words))
        command = self.expand(words[ahead:])
        kept, exported, self.inner = dict(self.variables), set(self.exported), True
        names = [self.assign(word) for word in words[:ahead]]
        if not command:
            if not words and any(sign == "<" for sign, _ in redirects):
                self.depend("$(<...)")
            return self.printing(redirects, lambda: self.inner)  # whether the last $(...) succeeded
        self.exported |= set(names)
        try:
            return self.printing(redirects, self.execute, command, words[ahead:], bodies)
        finally:  # assignments before a command apply to this command only
            for name in names:
                self.variables.pop(name, None)
                self.variables |= {name: kept[name]} if name in kept else {}
            self.exported -= set(names) - exported

    def redirected(self, _, node, redirects):
        return self.printing(redirects, self.do, node)

    def printing(self, redirects, act, *arguments):
        """Returns act's result. Its output is written to the file of the last redirection."""
        to = [(sign, "".join(self.expand([value]))) for sign, value in redirects if sign in WRITING]
        to = [(sign, name) for sign, name in to if (sign, name) != (">&", "1")]
        if not to:
            return act(*arguments)
        (sign, name), guess = to[-1], True
        with self.kept(printed=[]):
            try:
                result, _, guess = self.judge(act, *arguments)
            finally:
                if sign != ">&" or not name.isdecimal():
                    self.write(name, None if guess else "".join(self.printed), sign.endswith(">>"))
        return result

    def write(self, name, text, adds=False):
        """Records the content of a file. text: None if unknown."""
        before = self.files.get(name, self.read(name) or "") if adds else ""
        self.files[name] = None if text is None or before is None else before + text

    def declare(self, name, command, words):
        """Runs export, local, declare, readonly or typeset."""
        flags = "".join(each[1:] for each in command[1:] if each.startswith("-"))
        if set("ilun") & set(flags):
            self.unread(self.line, f"{name} -{flags}")
        for word in (each for word in words[1:] for each in self.braced(word)):
            given = bool(word) and word[0][0] == "plain" and ASSIGNS.match(word[0][1])
            each = re.match(r"\w*", word[0][1])[0] if word and word[0][0] == "plain" else ""
            if each and self.frames and (name in ("local", "declare", "typeset")) and "g" not in flags:
                self.frames[-1].setdefault(each, self.variables.get(each))
                if not given:
                    self.variables.pop(each, None)
            if each and "A" in flags:
                self.texts.add(each)
            if given:
                self.assign(word)
            elif "A" in flags and each:
                self.variables.setdefault(each, {})
            if name == "export" or "x" in flags:
                self.exported.add(each)

    def execute(self, command, words, bodies):
        name, replaced = command[0].rpartition("/")[2], False
        while name in ("time", "exec", "nohup", "command", "builtin", "sudo") and len(command) > 1:
            replaced = replaced or name == "exec"
            command, words = command[1:], words[1:]
            name = command[0].rpartition("/")[2]
        if name in ("rm", "cp", "mv", "sed", "tee"):
            self.files |= dict.fromkeys(command[1:])  # whose contents are not followed
        status = self.builtin(name, command, words, bodies)
        if name == "exit" or replaced:
            self.held = name != "exit" or command[1:2] in ([], ["0"])
            if not (self.uncertain or self.asked or self.missing):
                self.ended = self.line
                raise Ended
            self.ends.append(f"{name if name == 'exit' else 'exec'} in line {self.line}")
        return status

    def builtin(self, name, command, words, bodies):
        number = next((int(each) for each in command[1:2] if re.fullmatch(r"\d{1,4}", each)), None)
        if name in ("export", "local", "declare", "readonly", "typeset"):
            self.declare(name, command, words)
        elif name == "let":
            return self.arithmetic(",".join(command[1:])) != "0"
        elif name == "unset":
            for each in command[1:]:
                self.variables.pop(each, None)
                if "[" in each:  # one item of an array
                    self.put(each.partition("[")[0], unknown(f"${{{each}}} (unset)"))
        elif name in ("[", "test"):
            said = self.expand(words, True)[1:]
            return self.truth(said[: -1 if name == "[" else None])
        elif name == "set":
            if "--" in command:
                self.arguments, self.told = command[command.index("--") + 1 :], True
        elif name == "shift":
            self.arguments = self.arguments[1 if number is None else number :]
        elif name == "return":
            if self.frames or self.sourced:  # elsewhere it fails
                raise Returned(number in (None, 0))
            return False
        elif name == "shopt" and "nocasematch" in command and "-s" in command:
            self.unread(self.line, "shopt -s nocasematch")
        elif name in ("break", "continue"):
            if command[1:] not in ([], ["1"]):
                self.unread(self.line, " ".join(command))
            raise Broke(name == "continue")
        elif name == "getopts" and (self.arguments or self.told):
            self.unread(self.line, name)
        elif name in ("read", "mapfile", "readarray", "getopts"):
            return self.reads(name, command[1:], bodies)
        elif name == "printf" and command[1:2] == ["-v"]:
            return self.reads(name, command[2:3], [])
        elif name in self.functions:
            return self.call(name, command[1:])
        elif name == "eval":
            self.run(" ".join(command[1:]))
        elif name in ("source", "."):
            self.source(command[1:])
        elif name in ("false", "exit"):
            return name == "exit"
        elif name in PRINTING:
            self.prints(name, command[1:], bodies)
        elif name not in SILENT:
            self.start(name, command, bodies)
        return True

    def prints(self, name, words, bodies):
        """Runs a command that prints, if its output is captured by `$(...)` or a file."""
        text = bodies[-1] if bodies else None
        if self.printed is None:
            return
        if name == "echo":
            options = len(list(itertools.takewhile(re.compile("-[neE]+").fullmatch, words)))
            text = " ".join(words[options:]) + ("" if any("n" in each for each in words[:options]) else "\n")
            text = None if "\\" in text and any("e" in each for each in words[:options]) else text
        elif name == "cat" and words:
            text = self.file(words[0]) if len(words) == 1 else None
        elif name == "expr":
            said = " ".join(words)
            text = self.arithmetic(said) if re.fullmatch(r"(?:(?!\b0\d)[\d\s+*/%()-])+", said) else None
        elif name != "cat":
            text = None
        if text is None:
            self.depend(f"`{name}`")
        if self.printed is not None and text is not None:
            self.printed.append(text)

    def reads(self, name, words, bodies):
        """Runs read, with -r, -a and -d ''. The variables become unknown if their input is not in the script, as do
        those of other commands that set variables."""
        options = [each for each in words if re.fullmatch(r"-[a-zA-Z]+", each)]
        names = [each for each in words if re.fullmatch(r"[A-Za-z_]\w*", each)]
        every = any(each.endswith("d") for each in options)  # read -d '' takes all lines
        followed = name == "read" and names and bodies and not unknown_in(bodies[-1]) and (
            all(re.fullmatch("-[ra]*d?", each) for each in options) and
            len(words) == len(options) + len(names) + words.count("") and every == ("" in words) and
            ("\\" not in bodies[-1] or any("r" in each for each in options)))
        if not followed:
            for each in names:
                self.put(each, unknown(f"${each} ({name})"))
            self.depend(f"`{name}`")
            return True
        between, blanks = self.between()
        text = (bodies[-1] if every else bodies[-1].partition("\n")[0]).strip(blanks)
        if any("a" in each for each in options):
            self.put(names[0], dict(enumerate(re.split(between, text) if text else [])))
            return not every
        cut = re.split(between, text, maxsplit=len(names) - 1) if len(names) > 1 else [text]
        for each, value in itertools.zip_longest(names, cut[: len(names)], fillvalue=""):
            self.put(each, value)
        return not every

    def start(self, name, command, bodies):
        """Records an external command, or follows the script that it runs."""
        inner, arguments, front = self.inner_text(command)
        if inner is not None:
            first = len(self.commands)
            with self.apart(child=True):
                self.arguments = arguments
                self.run(inner)
            for each in self.commands[first:]:
                each[:0] = front
            return
        if name in (*SHELLS, "sbatch", "srun"):
            for body in bodies:
                with self.apart(child=True):
                    self.run(body)
        self.commands.append(command)
        self.depend(f"`{readable(' '.join(command))[:60]}`")

    def inner_text(self, command):
        """Returns the script that the command runs in a shell (bash -c TEXT, or a file), its arguments and the words
        before the shell, or (None, [], [])."""
        for at, word in enumerate(command[:-1]):
            if word.rpartition("/")[2] in SHELLS:
                rest = command[at + 1 :]
                for i, each in enumerate(rest[:-1]):
                    if re.fullmatch(r"-[a-z]*c", each):
                        lost = [readable(word) for word in rest[i + 2 :] if word.startswith("-")][:1]
                        self.notes += [f"line {self.line}: {word}: is an argument of the shell, not of the command in"
                                       " its text, which needs ${NAME[*]}" for word in lost]
                        return rest[i + 1], rest[i + 3 :], command[: at + 1 + i]
                files = [i for i, each in enumerate(rest) if not each.startswith("-")][:1]
                text = self.file(rest[files[0]]) if files and at == 0 else None
                if text is not None:
                    return text, rest[files[0] + 1 :], command[: at + 1]
        return None, [], []

    def file(self, name):
        return self.files.get(name) if name in self.files else self.read(name)

    def source(self, names):
        text = self.file(names[0]) if names else None
        if text is None:
            self.notes.append(f"source {readable(' '.join(names))}: is not here; its settings are not known")
            return
        with self.kept(arguments=names[1:] or self.arguments, sourced=True):
            with contextlib.suppress(Returned):
                self.run(text)

    def call(self, name, arguments):
        self.frames.append({})
        with self.deeper(), self.kept(arguments=arguments):
            try:
                return self.do(self.functions[name])
            except Returned as returned:
                return returned.args[0]
            finally:
                for each, value in self.frames.pop().items():
                    self.variables.pop(each, None)
                    self.variables |= {} if value is None else {each: value}
