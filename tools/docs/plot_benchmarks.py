#!/usr/bin/env python3
"""Generates docs/images/*.svg and the table of docs/performance.md from docs/benchmarks/*.json.

    tools/docs/plot_benchmarks.py            writes the files
    tools/docs/plot_benchmarks.py --check    writes nothing; reports files that are not up to date, and
                                             numbers on the page that are in no data file

Each plot has a light and a dark form with a transparent background, chosen by a <picture> element.
The output depends only on the data, not on the date, fonts or the machine.
"""

import argparse
import math
import pathlib
import re
import sys
from xml.sax.saxutils import escape

from benchmark_data import Data

ROOT = pathlib.Path(__file__).resolve().parents[2]
FONT = ("-apple-system, BlinkMacSystemFont, 'Segoe UI', 'Noto Sans', 'DejaVu Sans', Helvetica, "
        "Arial, sans-serif")
THEMES = {
    "light": {"ink": "#1f2328", "muted": "#59636e", "grid": "#d8dee4", "ours": "#0b6e99",
              "ours_soft": "#8cc4dc", "peer": "#a8b1bb", "mark": "#d9570b",
              "on_ours": "#ffffff", "on_peer": "#1f2328"},
    "dark": {"ink": "#e6edf3", "muted": "#9da7b1", "grid": "#343b44", "ours": "#4fb3d9",
             "ours_soft": "#2a5f77", "peer": "#69737e", "mark": "#f0883e",
             "on_ours": "#0d1117", "on_peer": "#ffffff"},
}
FORMATS = {"int8_g32": "8 bits: int8_g32 and Q8_0", "int4_g32": "4 bits: int4_g32 and Q4_0"}
CLIENTS = (1, 8, 32)


def kernel(data, identity, form, what, peer_format=None):
    """Returns a row of prefill or decode. peer_format is needed if one of our formats has two peers."""
    peer = {"peer_format": peer_format} if peer_format else {}
    return data.row("prefill_decode", identity, format=form, what=what, **peer)


def served(data, form, clients, what):
    """Returns a row of the load on AVX-512. int8_g32 was measured twice with 8 clients. The second measurement counts,
    because the peer was disturbed in the first."""
    later = clients == 1 or (clients == 8 and form == "int8_g32")
    identity = "zen5-later" if later else "zen5"
    return data.row("served_load", identity, format=form, clients=clients, what=what)


class Svg:
    """A picture in one theme, written as text."""

    def __init__(self, theme, width, height, title):
        self.theme, self.width, self.height = THEMES[theme], width, height
        self.title, self.parts = title, []

    def rect(self, x, y, width, height, color, radius=2):
        self.parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" '
                          f'height="{height:.1f}" rx="{radius}" fill="{self.theme[color]}"/>')

    def line(self, x1, y1, x2, y2, color, width=1.0, dash=""):
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        self.parts.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" '
                          f'stroke="{self.theme[color]}" stroke-width="{width}"{dashes}/>')

    def dot(self, x, y, radius, color):
        self.parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{self.theme[color]}"/>')

    def text(self, x, y, text, color="ink", size=13, anchor="start", weight="normal"):
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" fill="{self.theme[color]}" '
                          f'font-size="{size}" font-weight="{weight}" text-anchor="{anchor}">'
                          f"{escape(text)}</text>")

    def heading(self, text, below):
        self.text(20, 32, text, size=19, weight="600")
        self.text(20, 54, below, "muted")

    def legend(self, x, y, entries):
        """Entries are (color, text, is_tick, width of the text). A tick replaces the square."""
        for color, text, is_tick, width in entries:
            if is_tick:
                self.line(x + 6, y - 11, x + 6, y + 2, color, 2.5)
            else:
                self.rect(x, y - 10, 12, 12, color)
            self.text(x + 19, y, text)
            x += width + 36

    def write(self):
        body = "\n".join(self.parts)
        return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
                f'width="{self.width}" height="{self.height}" role="img" font-family="{FONT}">\n'
                f"<title>{escape(self.title)}</title>\n{body}\n</svg>\n")


def counted(clients):
    return f"{clients} client" + ("s" if clients > 1 else "")


def number(value):
    return f"{value:,.0f}".replace(",", " ") if value >= 100 else f"{value:.3g}"


def times(value):
    return f"{value:.2f}" if value < 10 else f"{value:.0f}"


def grouped_bars(svg, data, what, top, ticks, wanted_tick):
    """Draws two panels, one per format: both servers with 1, 8 and 32 clients, and the ratios above."""
    bottom, height = 346, 210
    scale = height / top
    for panel, (form, name) in enumerate(FORMATS.items()):
        left, width = 62 + panel * 422, 356
        svg.text(left, 90, name, weight="600")
        for tick in ticks:
            y = bottom - tick * scale
            svg.line(left, y, left + width, y, "grid", 1)
            svg.text(left - 8, y + 4, number(tick), "muted", 12, "end")
        for group, clients in enumerate(CLIENTS):
            row = served(data, form, clients, what)
            middle = left + width * (2 * group + 1) / 6
            for side, color, x in (("quire", "ours", middle - 45), ("peer", "peer", middle + 3)):
                y = bottom - row[side] * scale
                svg.rect(x, y, 42, bottom - y, color)
                if wanted_tick:  # the number would overlap the marker above the bar
                    svg.text(x + 21, bottom - 8, number(row[side]), "on_" + color, 12, "middle")
                else:
                    svg.text(x + 21, y - 6, number(row[side]), "muted", 12, "middle")
            svg.text(middle, 122, times(row["ratio"]) + "×", "ink", 16, "middle", "600")
            if wanted_tick:
                y = bottom - row["peer"] * row["wanted_ratio"] * scale
                svg.line(middle - 49, y, middle + 1, y, "mark", 2.5)
            svg.text(middle, bottom + 20, counted(clients), anchor="middle")
        svg.line(left, bottom, left + width, bottom, "muted", 1)


def served_throughput(data, theme):
    svg = Svg(theme, 880, 412, "Output tokens per second of quire and llama-server under load")
    svg.heading("Tokens per second under load",
                "Output tokens/s, both servers in turn on the same 2 cores of Zen 5; "
                "0.5 B parameters, prompts of 128 to 512 tokens")
    grouped_bars(svg, data, "output tokens/s", 300, (0, 100, 200, 300), False)
    svg.legend(62, 396, (("ours", "quire", False, 34), ("peer", "llama-server", False, 80)))
    return svg.write()


def peak_memory(data, theme):
    svg = Svg(theme, 880, 412, "Peak memory of quire and llama-server at 1, 8 and 32 clients")
    svg.heading("Peak memory under load",
                "MiB of proportional set size in the same runs; wanted: at most 0.7 of llama-server")
    grouped_bars(svg, data, "peak memory, MiB", 2000, (0, 500, 1000, 1500, 2000), True)
    svg.legend(62, 396, (("ours", "quire", False, 34), ("peer", "llama-server", False, 80),
                         ("mark", "wanted: at most", True, 100)))
    return svg.write()


SETS, SETS_AVX2 = ("zen5-0.5b", "zen5-0.5b-again"), ("zen5-0.5b-avx2",)
RATES = (("prefill 512", "prefill, 512 tokens"), ("decode, batch 1", "decode, batch 1"),
         ("decode, batch 8", "decode, batch 8"), ("decode, batch 32", "decode, batch 32"))


def rates(data, theme):
    svg = Svg(theme, 880, 318, "Prefill and decode rates of quire as multiples of llama.cpp")
    svg.heading("Prefill and decode, as multiples of llama.cpp",
                "2 cores of Zen 5, 0.5 B parameters; two sets of five rounds on one day")
    for panel, (form, name) in enumerate(FORMATS.items()):
        left, width = (160, 310) if panel == 0 else (542, 310)
        scale, top, bottom = width / 6, 104, 262
        svg.text(left, 90, name, weight="600")
        for tick in range(0, 7):
            x = left + tick * scale
            is_one = tick == 1  # as fast as the peer
            svg.line(x, top, x, bottom, "muted" if is_one else "grid", 1, "3 3" if is_one else "")
            svg.text(x, bottom + 17, f"{tick}×" if tick else "0", "muted", 12, "middle")
        for index, (what, label) in enumerate(RATES):
            rows = [kernel(data, identity, form, what) for identity in SETS]
            low, high = sorted(row["ratio"] for row in rows)
            y = top + 12 + index * 38
            if panel == 0:
                svg.text(left - 14, y + 15, label, anchor="end")
            svg.rect(left, y, high * scale, 20, "ours_soft")
            svg.rect(left, y, low * scale, 20, "ours")
            mark = left + rows[0]["wanted"] * scale
            svg.line(mark, y - 5, mark, y + 25, "mark", 2.5)
            label_x = max(left + high * scale, mark) + 8
            svg.text(label_x, y + 15, f"{low:.2f} – {high:.2f}", size=12)
    svg.legend(160, 304, (("ours", "lower set", False, 60), ("ours_soft", "higher set", False, 66),
                          ("mark", "wanted: at least", True, 106)))
    return svg.write()


def seconds(milliseconds):
    return f"{milliseconds:.3g} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.3g} s"


def latency(data, theme):
    svg = Svg(theme, 880, 366, "99th percentiles of latency of quire and llama-server")
    svg.heading("The slowest hundredth",
                "99th percentile in the same runs, logarithmic; further left is better")
    panels = (("TTFT p99, ms", "time to the first token", 2, 5, 150),
              ("time between tokens p99, ms", "time between tokens", 1, 4, 538))
    for panel, (what, title, first, last, left) in enumerate(panels):
        width, top, bottom = 270, 104, 310
        step = width / (last - first)
        svg.text(left, 90, title, weight="600")
        for power in range(first, last + 1):
            x = left + (power - first) * step
            svg.line(x, top, x, bottom, "grid", 1)
            svg.text(x, bottom + 17, seconds(10 ** power), "muted", 12, "middle")
        rows = [(form, clients) for form in FORMATS for clients in CLIENTS]
        for index, (form, clients) in enumerate(rows):
            row = served(data, form, clients, what)
            y = top + 18 + index * 32 + (10 if index > 2 else 0)
            ours, peer = (left + (math.log10(row[side]) - first) * step
                          for side in ("quire", "peer"))
            svg.line(ours, y, peer, y, "grid", 4)
            svg.dot(peer, y, 6.5, "peer")
            svg.dot(ours, y, 6.5, "ours")
            if ours > peer:
                raise SystemExit(f"{what}, {form}, {clients}: labels expect quire on the left")
            svg.text(ours - 12, y + 4, seconds(row["quire"]), size=12, anchor="end")
            svg.text(peer + 12, y + 4, seconds(row["peer"]), "muted", 12)
            if panel == 0:
                svg.text(left - 30, y + 4, f"{form[3]} bits, {counted(clients)}", anchor="end")
    svg.legend(150, 352, (("ours", "quire", False, 34), ("peer", "llama-server", False, 80)))
    return svg.write()


PLOTS = {"served_throughput": served_throughput, "rates": rates, "latency": latency,
         "peak_memory": peak_memory}
NUMBER = r"\d+(?:\.\d+)?"
BEGIN, END = "<!-- written by tools/docs/plot_benchmarks.py -->", "<!-- end -->"


def least(wanted):
    """Returns the lower limit of a target such as 1.3 or "1.15 to 1.3"."""
    return float(str(wanted).split(" ")[0])


def cell(ratios, wanted, at_least):
    """Formats ratios, with those that miss the target in bold, and the target in parentheses."""
    if wanted is None:
        return ", ".join(map(times, ratios))
    limit = least(wanted)
    shown = [times(ratio) if (ratio >= limit if at_least else ratio <= limit)
             else f"**{times(ratio)}**" for ratio in ratios]
    return f"{', '.join(shown)} ({limit:g})"


def kernel_ratios(data, identities, form, what):
    peer = "Q8_0" if form == "int8_g32" else "Q4_0"
    rows = [kernel(data, identity, form, what, peer) for identity in identities]
    return cell([row["ratio"] for row in rows], rows[0]["wanted"], True)


def served_ratio(row, what):
    return cell([row["ratio"]], row["wanted_ratio"], what == "output tokens/s")


LATENCIES = (("TTFT p99, ms", "p99 of the first token"),
             ("time between tokens p99, ms", "p99 between tokens"))
SERVED = (("output tokens/s", "output tokens/s"), *LATENCIES, ("peak memory, MiB", "peak memory"))


def table(data):
    columns = [f"{level}, {form[3]} bits" for level in ("AVX-512", "AVX2") for form in FORMATS]
    lines = [f"| quire / llama.cpp | {' | '.join(columns)} |", "|---|---|---|---|---|"]
    for what, label in RATES:
        cells = [kernel_ratios(data, identities, form, what) for identities in (SETS, SETS_AVX2)
                 for form in FORMATS]
        lines.append(f"| {label} | {' | '.join(cells)} |")
    for what, label in SERVED:
        for clients in CLIENTS:
            rows = [served(data, form, clients, what) for form in FORMATS]
            rows += [data.row("served_load", "zen5-avx2", format=form, clients=clients, what=what)
                     for form in FORMATS]
            cells = [served_ratio(row, what) for row in rows]
            lines.append(f"| {label}, {counted(clients)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def unknown_figures(root, page):
    """Returns numbers of the page that are in no data file, except in paths, links and commands."""
    text = re.sub(r"```.*?```|`[^`]*`|\]\([^)]*\)|<[^>]*>", " ", page, flags=re.DOTALL)
    known = set()
    for path in (root / "docs" / "benchmarks").glob("*.json"):
        known |= set(map(float, re.findall(NUMBER, path.read_text(encoding="utf-8"))))
    figures = re.findall(rf"(?<![\w.])({NUMBER})", text)
    return [figure for figure in figures if float(figure) not in known]


def outputs(root, data):
    """Returns {path: contents} of all files that this program writes."""
    files = {root / "docs" / "images" / f"{name}_{theme}.svg": draw(data, theme)
             for name, draw in PLOTS.items() for theme in THEMES}
    page = root / "docs" / "performance.md"
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise SystemExit(f"docs/performance.md: the markers {BEGIN} and {END} are missing")
    files[page] = f"{before}{BEGIN}\n{table(data)}\n{END}{after}"
    return files


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; report differences")
    parser.add_argument("--root", type=pathlib.Path, default=ROOT)
    options = parser.parse_args()
    data = Data(options.root / "docs" / "benchmarks")
    faults = data.faults
    for path, contents in outputs(options.root, data).items() if not faults else ():
        name = path.relative_to(options.root)
        if not options.check:
            path.write_text(contents, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != contents:
            faults.append(f"{name} is not up to date; run tools/docs/plot_benchmarks.py")
        if path.suffix == ".md":
            faults += [f"{name}: no file of docs/benchmarks has the figure {figure}"
                       for figure in unknown_figures(options.root, contents)]
    print("\n".join(faults), end="\n" if faults else "")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
