"""Pictures of a report as SVG inside HTML: drawn here, coloured by report.css, told about under the pointer by
report.js."""

import html
import json
import math

WIDTH, HEIGHT = 400, 210
LEFT, RIGHT, TOP, BOTTOM = 58, 12, 8, 26
MOST_POINTS = 600  # of one curve: more could not be told apart


def escape(text):
    return html.escape(str(text), quote=True)


def figure(title, unit, keys, body, scroll=False):
    legend = "".join(f'<span class="key" style="--mark:var(--{color})">{escape(name)}</span>' for name, color in keys)
    small = f"<small>{escape(unit)}</small>" if unit else ""
    inside = f'<div class="scroll">{body}</div>' if scroll else body
    return f"<figure><figcaption>{escape(title)}{small}{legend}</figcaption>{inside}</figure>"


def svg(title, width, height, body, data=""):
    return f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}"{data}>{body}</svg>'


def text(x, y, words, anchor="start"):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


# ---- scales ----------------------------------------------------------------------------------------------------------


def nice_step(span, most):
    """Returns the smallest of 1, 2, 5 times a power of ten that divides the span into at most `most` steps."""
    power = 10 ** math.floor(math.log10(span / most))
    return next(power * k for k in (1, 2, 5, 10) if span / (power * k) <= most)


def ticks_of(low, high, most=5):
    step = nice_step(high - low, most)
    return [k * step for k in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def log_ticks_of(low, high):
    """Returns powers of ten, with their 2- and 5-fold if there are fewer than two."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1,), (1, 2, 5)):
        ticks = [k * 10**p for p in powers for k in factors if low <= k * 10**p <= high]
        if len(ticks) >= 2:
            break
    return ticks


def label(value):
    if value == 0:
        return "0"
    if abs(value) >= 1e4:
        for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
            if abs(value) >= unit:
                return f"{value / unit:.4g}{name}"
    return f"{value:.3g}".replace("e-0", "e-") if abs(value) < 1e-4 else f"{value:.5g}"


class Scale:
    """Maps values from low to high onto pixels from begin to end."""

    def __init__(self, low, high, begin, end, log=False):
        self.low, self.high, self.begin, self.end, self.log = low, high, begin, end, log

    def __call__(self, value):
        low, high, value = (
            (math.log(v) for v in (self.low, self.high, value)) if self.log else (self.low, self.high, value)
        )
        return self.begin + (self.end - self.begin) * (value - low) / (high - low)

    def ticks(self):
        return log_ticks_of(self.low, self.high) if self.log else ticks_of(self.low, self.high)


def scale_of(values, begin, end, zero=False, log=False):
    low, high = min(values), max(values)
    # Logarithmic where the figures differ by orders of magnitude, as the first gradients do from the later ones.
    if log and low > 0 and high / low > 20:
        return Scale(low / 1.1, high * 1.1, begin, end, log=True)
    if zero:
        return Scale(0, high * 1.06 or 1, begin, end)
    room = 0.06 * (high - low) or 0.1 * abs(high) or 1
    return Scale(low - room, high + room, begin, end)


def axes(x, y):
    body = ""
    for value in y.ticks():
        body += f'<path class="grid" d="M{LEFT} {y(value):.1f}H{WIDTH - RIGHT}"/>' + text(
            LEFT - 7, y(value) + 4, label(value), "end"
        )
    steps = [value for value in x.ticks() if value == int(value)]
    body += text(LEFT - 7, HEIGHT - 7, "step", "end")
    for value in steps:
        words = f"{value:,.0f}"
        body += text(min(x(value), WIDTH - 4 * len(words)), HEIGHT - 7, words, "middle")  # never over the edge
    return body


# ---- curves ----------------------------------------------------------------------------------------------------------


class Series:
    """One curve: step -> value, or dots where there are few. Of many steps means are drawn, with a band from least to
    most."""

    def __init__(self, name, color, values, form, dots=False):
        self.name, self.color, self.form, self.dots = name, color, form, dots or len(values) == 1
        self.values = dict(sorted(values.items()))
        every = max(1, -(-len(values) // MOST_POINTS))
        items = list(self.values.items())
        groups = [items[i : i + every] for i in range(0, len(items), every)]
        self.points = [
            (g[-1][0], sum(v for _, v in g) / len(g), min(v for _, v in g), max(v for _, v in g)) for g in groups
        ]
        self.thinned = every > 1

    def draw(self, x, y):
        style = f'style="--mark:var(--{self.color})"'
        if self.dots:
            return "".join(
                f'<circle class="dot" {style} cx="{x(s):.1f}" cy="{y(v):.1f}" r="3.2"/>' for s, v, _, _ in self.points
            )
        path = "L".join(f"{x(s):.1f} {y(v):.1f}" for s, v, _, _ in self.points)
        band = ""
        if self.thinned:
            edge = [f"{x(s):.1f} {y(high):.1f}" for s, _, _, high in self.points] + [
                f"{x(s):.1f} {y(low):.1f}" for s, _, low, _ in reversed(self.points)
            ]
            band = f'<path class="band" {style} d="M{"L".join(edge)}Z"/>'
        return band + f'<path class="curve" {style} d="M{path}"/>'

    def told(self, x, y):
        return {
            "name": self.name,
            "points": [[s, self.form.format(v), round(x(s), 1), round(y(v), 1)] for s, v, _, _ in self.points],
        }


def curves(title, unit, series, zero=False, log=False):
    """Draws the curves of several series over the first one's steps; returns "" if nothing is known."""
    series = [one for one in series if one.values]
    if not series:
        return ""
    steps = [step for one in series for step in one.values]
    first, last = min(steps), max(steps)
    x = (
        Scale(first, last, LEFT, WIDTH - RIGHT - 6)
        if last > first
        else Scale(first - 1, first + 1, LEFT, WIDTH - RIGHT)
    )
    y = scale_of(
        [edge for one in series for _, _, low, high in one.points for edge in (low, high)],
        HEIGHT - BOTTOM,
        TOP,
        zero,
        log,
    )
    hair = f'<line class="hair" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
    spots = "".join(f'<circle class="spot dot" style="--mark:var(--{one.color})" r="4"/>' for one in series)
    body = axes(x, y) + "".join(one.draw(x, y) for one in series) + hair + spots
    data = f' data-series="{escape(json.dumps([one.told(x, y) for one in series]))}"'
    unit = ", ".join(part for part in (unit, "logarithmic" if y.log else "") if part)
    keys = [(one.name, one.color) for one in series] if len(series) > 1 else []
    return figure(title, unit, keys, svg(title, WIDTH, HEIGHT, body, data))


# ---- bars ------------------------------------------------------------------------------------------------------------


def bars(title, series, say, limit=None):
    """series: (name, colour, bytes of each stage). Stages side by side, the series beside each other within one."""
    stages, width = len(series[0][2]), 980
    height = 260
    unit, name = (2**30, "GiB") if max(max(values) for _, _, values in series) >= 2**30 else (2**20, "MiB")
    y = scale_of(
        [v / unit for _, _, values in series for v in values] + [limit / unit if limit else 0],
        height - BOTTOM,
        TOP,
        zero=True,
    )
    body = ""
    for value in y.ticks():
        body += f'<path class="grid" d="M{LEFT} {y(value):.1f}H{width - RIGHT}"/>' + text(
            LEFT - 7, y(value) + 4, label(value), "end"
        )
    room = (width - LEFT - RIGHT) / stages
    wide = min(46, 0.78 * room / len(series))
    for stage in range(stages):
        middle = LEFT + (stage + 0.5) * room
        body += text(middle, height - 7, f"stage {stage}" if room > 60 else stage, "middle")
        for i, (what, color, values) in enumerate(series):
            left, top = middle + (i - len(series) / 2) * wide, y(values[stage] / unit)
            tip = escape(f"stage {stage}\n{what}  {say(values[stage])}")
            place = f'x="{left:.1f}" y="{top:.1f}" width="{0.92 * wide:.1f}" height="{height - BOTTOM - top:.1f}"'
            body += f'<rect class="bar" style="--mark:var(--{color})" {place} rx="1.5" data-tip="{tip}"/>'
    if limit:
        body += f'<path class="limit" d="M{LEFT} {y(limit / unit):.1f}H{width - RIGHT}"/>' + text(
            width - RIGHT, y(limit / unit) - 5, "memory less the reserve", "end"
        )
    return figure(
        title, name, [(what, color) for what, color, _ in series], svg(title, width, height, body), scroll=True
    )


# ---- a step ----------------------------------------------------------------------------------------------------------

KINDS = {
    "F": ("forward", "forward"),
    "B": ("backward", "backward"),
    "E": ("bundle leaves", "green"),
    "L": ("bundle comes back", "purple"),
}
SAME = {"A": "E", "R": "L"}  # the partner's side of it
MEANING = {
    "F": "forward",
    "B": "backward",
    "E": "its bundle leaves",
    "L": "its bundle comes back",
    "A": "takes a bundle in",
    "R": "gives a bundle back",
}


def timeline(trace):
    width, row, left = 1120, 40, 118
    pids = sorted(trace.ranks)
    height = TOP + row * len(pids) + BOTTOM
    x = Scale(0, trace.end, left, width - RIGHT)
    body = ""
    for value in ticks_of(0, trace.end, 8):
        body += f'<path class="grid" d="M{x(value):.1f} {TOP}V{height - BOTTOM}"/>' + text(
            x(value), height - 7, label(value), "middle"
        )
    for i, pid in enumerate(pids):
        body += text(left - 9, TOP + row * i + 18, trace.ranks[pid].replace(" (planned)", ""), "end")
    for pid, name, begin, length, microbatch in trace.rows:
        top = TOP + row * pids.index(pid)
        kind, compute = SAME.get(name[0], name[0]), name[0] in "FB"
        place = (
            f'x="{x(begin):.2f}" y="{top + (2 if compute else 26)}"'
            f' width="{max(x(begin + length) - x(begin), 0.6):.2f}" height="{22 if compute else 8}"'
        )
        tip = escape(
            f"{trace.ranks[pid]}\n{name}: microbatch {microbatch}, {MEANING[name[0]]}\n{begin:.2f} to"
            f" {begin + length:.2f} ms, {length:.2f} ms"
        )
        body += f'<rect class="box" style="--mark:var(--{KINDS[kind][1]})" {place} data-tip="{tip}"/>'
        if compute and x(begin + length) - x(begin) > 15:
            body += f'<text class="in" x="{x(begin + length / 2):.1f}" y="{top + 17}">{microbatch}</text>'
    shown = {SAME.get(name[0], name[0]) for _, name, *_ in trace.rows}
    keys = [KINDS[kind] for kind in KINDS if kind in shown]
    title = "One planned step" if trace.label == "step" else trace.label.capitalize()
    return figure(title, "ms; numbers are microbatches", keys, svg(title, width, height, body), scroll=True)
