"""The page of `mtp bench --report`: all in one file, safe, in both themes."""

import random
import re
from html.parser import HTMLParser

import pytest

from mtp_mlx.bench.instruments import Phases
from mtp_mlx.bench.machine import this_machine
from mtp_mlx.bench.page import charts, render_page
from mtp_mlx.bench.page.render import fastest
from mtp_mlx.bench.report import Memory, Report
from mtp_mlx.bench.roofline import Roofline
from mtp_mlx.bench.runs import PromptResult, RoundCounts, Run
from mtp_mlx.decoding.sampling import Sampling
from mtp_mlx.speculation import Speculation

CATEGORIES = ("chat", "code", "structured", "translation")
HOSTILE = "<script>alert(1)</script> & more"
FACTS = [("protocol", "greedy"), ("output", "equal <always>")]


def result(category: str, text: str, depth: int | str, chance: random.Random) -> PromptResult:
    most = 4 if depth == "auto" else depth
    rounds = [RoundCounts(most, min(most, int(chance.expovariate(0.6)))) for _ in range(40)]
    speculation = Speculation()
    for counts in rounds:
        speculation = speculation.after(*counts)
    speed = 1 + speculation.accepted / 40 - 0.15 * most
    plain = Run([1] * 64, 0.1, 0.63 * chance.uniform(0.95, 1.05), 10)
    return PromptResult(category, text, 12, [plain], [Run([1] * 64, 0.1, 0.63 / speed, 10, speculation, [], rounds)])


def report(depth: int | str = 3, text: str = "A prompt") -> Report:
    chance = random.Random(str(depth))
    return Report(
        model="demo",
        drafter="",
        date="2026-11-30T12:00:00+00:00",
        num_tokens=64,
        repeats=1,
        num_draft_tokens=depth,
        sampler=Sampling(temp=0.0),
        machine=this_machine(),
        memory=Memory(1, 1, 1, 1, 1),
        results=[result(name, text, depth, chance) for name in CATEGORIES for _ in range(4)],
        roofline=Roofline(1e9, 0.5, 0.5),
        phases=Phases(1, 2, 3, 4),
    )


@pytest.fixture(scope="module")
def page() -> str:
    reports = [report(depth, HOSTILE) for depth in (0, 1, 2, 4, "auto")]
    return render_page(reports, "demo on a machine", "MTP decodes 2× as fast.", FACTS)


def test_it_needs_no_network(page):
    namespaces = {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    licences = re.findall(r"https?://[^\s\"'<>)]+", re.sub(r"<metadata>.*?</metadata>", "", page, flags=re.S))
    assert set(licences) <= namespaces
    assert "<script" not in page and "<link" not in page and "@import" not in page and "src=" not in page


def test_text_is_escaped(page):
    assert HOSTILE not in page and "&lt;script&gt;alert(1)" in page and "equal &lt;always&gt;" in page


def test_it_is_well_formed(page):
    class Tags(HTMLParser):
        open: list[str] = []

        def handle_starttag(self, tag, attributes):
            if tag not in ("meta", "br"):
                self.open.append(tag)

        def handle_startendtag(self, tag, attributes):
            pass

        def handle_endtag(self, tag):
            assert self.open.pop() == tag

    tags = Tags()
    tags.feed(page)
    assert tags.open == []


def test_tables_and_charts_are_there(page):
    assert page.count("<figure>") == page.count("<svg") == 4
    for name in (*CATEGORIES, "all", "Speed-up by depth", "Acceptance by position", "Rounds over time"):
        assert name in page
    assert "prefers-color-scheme: dark" in page


def test_charts_take_their_colours_from_the_theme():
    for drawing in (
        charts.speed_up_by_category(report()),
        charts.acceptance_by_position(report()),
        charts.rounds_over_time(report()),
        charts.sweep([report(1), report(2)]),
    ):
        assert "var(--ink)" in drawing and "#000000" not in drawing
        assert not any(color in drawing for color in charts.VARIABLES)


def test_one_depth_has_no_sweep():
    page = render_page([report()], "t", "v", FACTS)
    assert "By depth" not in page and page.count("<svg") == 3


def test_without_drafts_there_is_nothing_to_draw_of_them():
    assert render_page([report(0)], "t", "v", FACTS).count("<svg") == 1


def test_the_fastest_is_shown_closely():
    reports = [report(0), report(2)]
    best = max(reports, key=lambda each: each.overall.speed_up.median)
    assert fastest(reports) is best


def test_a_sweep_goes_from_few_drafts_to_many():
    drawing = charts.sweep([report(depth) for depth in ("auto", 10, 2)])
    places = [drawing.index(f">{depth}<") for depth in ("2", "10", "auto")]
    assert places == sorted(places)
