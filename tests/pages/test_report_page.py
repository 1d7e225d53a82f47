"""The report in a real browser, from file://: it loads without complaint, sorts, zooms, toggles, says what is true."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from poseidon.cli import main
from poseidon.plan import CommPlan
from tests.report.runs import NET, write_run

HOSTILE = """</script><script>document.title='taken'</script><img src=x onerror=document.title='taken'>"'&--><!--"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    run = write_run(folder)
    assert main(["report", str(folder)]) == 0
    return run, (folder / "report.html").as_uri()


@pytest.fixture
def opened(made, page):
    page.goto(made[1])
    return page


def shot(page, tmp_path, name):
    page.screenshot(path=os.environ.get("POSEIDON_SCREENSHOTS", str(tmp_path)) + f"/report-{name}.png", full_page=True)


def test_it_asks_the_network_for_nothing_and_shows_everything(made, page, tmp_path):
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(made[1])
    expect(page).to_have_title("digits · Poseidon report")
    expect(page.locator("section h2")).to_have_text(
        ["Learning", "Speed", "Timeline", "Workers", "Plan", "On the wire", "Net", "Cluster", "Configuration"]
    )
    assert page.locator(".plot path.curve").count() == 6
    expect(page.locator("#hidden")).to_have_text(re.compile(r"^\d+(\.\d)? %$"))
    # Besides the page itself only what it holds (its icon).
    assert [url for url in asked if not url.startswith("data:")] == [made[1]]
    shot(page, tmp_path, "desktop")


@pytest.mark.parametrize("width", [375, 768, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_every_screen(made, page, tmp_path, width, scheme):
    page.set_viewport_size({"width": width, "height": 800})
    page.emulate_media(color_scheme=scheme)
    page.goto(made[1])
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    sheet = page.locator("section").first.evaluate("e => getComputedStyle(e).backgroundColor")
    assert sheet == {"light": "rgb(255, 255, 255)", "dark": "rgb(22, 27, 34)"}[scheme]
    shot(page, tmp_path, f"{width}-{scheme}")


def test_the_button_overrules_the_system(opened):
    page = opened
    button = page.locator("#theme")
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    pixel = "c => [...c.getContext('2d').getImageData(c.width - 2, c.height - 2, 1, 1).data]"
    canvas_light = page.locator("#gantt canvas").evaluate(pixel)
    expect(button).to_have_text("Dark")
    button.click()
    expect(button).to_have_text("Light")
    assert page.evaluate(background) != light
    assert page.locator("#gantt canvas").evaluate(pixel) != canvas_light  # drawn again in the new colours
    page.reload()
    expect(button).to_have_text("Light")  # it was remembered


# -- tables -----------------------------------------------------------------------------------------------------------
def column(page, section, place):
    return page.locator(f"{section} table tbody tr:not(.sum)").evaluate_all(
        "(rows, place) => rows.map(row => row.cells[place].textContent)", place
    )


def test_the_plan_sorts_by_bytes_and_by_name(made, opened):
    page, plan = opened, CommPlan.from_json(made[0].facts.plan_json())
    heading = page.locator("#plan thead th", has_text="Sent").locator("button")
    heading.click()
    expect(page.locator("#plan thead th[aria-sort=descending]")).to_have_count(1)
    names = [unit.params[0] for unit in sorted(plan.units, key=lambda unit: -unit.bytes_sent)]
    assert [text.split()[0] for text in column(page, "#plan", 0)] == names
    heading.press("Enter")  # the keyboard does it too, the other way
    assert [text.split()[0] for text in column(page, "#plan", 0)] == names[::-1]
    page.locator("#plan thead th").first.locator("button").click()
    assert [text.split()[0] for text in column(page, "#plan", 0)] == sorted(names)
    expect(page.locator("#plan tbody tr").last).to_have_class("sum")


def test_bars_are_as_long_as_the_bytes_say(made, opened):
    plan = CommPlan.from_json(made[0].facts.plan_json())
    most = max(max(unit.dense_bytes, unit.factor_bytes or 0) for unit in plan.units)
    shown = opened.locator("#plan .bars").evaluate_all(
        "all => all.map(bars => [...bars.children].map(bar => parseFloat(bar.style.width)))"
    )
    for unit, widths in zip(plan.units, shown, strict=True):
        sizes = [unit.dense_bytes, *([unit.factor_bytes] if unit.factor_bytes is not None else []), unit.bytes_sent]
        assert widths == pytest.approx([100 * size / most for size in sizes], abs=0.01)


# -- charts -----------------------------------------------------------------------------------------------------------
def view(page, chart):
    svg = page.locator(f"[data-chart={chart}] svg")
    return tuple(float(svg.get_attribute(f"data-{end}")) for end in ("from", "to"))


def test_a_chart_zooms_by_dragging_and_comes_back(opened):
    page = opened
    assert view(page, "loss") == (0, 1000)
    svg = page.locator("[data-chart=loss] svg")
    svg.scroll_into_view_if_needed()
    box = svg.bounding_box()
    middle = box["y"] + box["height"] / 2
    left, right = box["x"] + 52, box["x"] + box["width"] - 10  # the plot inside its edges
    page.mouse.move(left + (right - left) * 0.25, middle)
    page.mouse.down()
    page.mouse.move(left + (right - left) * 0.5, middle, steps=4)
    page.mouse.up()
    assert view(page, "loss") == pytest.approx((250, 500), abs=3)
    page.locator("[data-chart=loss] button", has_text="Show all").click()
    assert view(page, "loss") == (0, 1000)
    svg.press("+")
    assert view(page, "loss") == pytest.approx((500 - 1000 / 3, 500 + 1000 / 3))
    svg.press("ArrowRight")
    assert view(page, "loss")[1] == pytest.approx(500 + 1000 / 3 + 1000 / 12)
    svg.press("0")
    assert view(page, "loss") == (0, 1000)


def test_lines_hide_and_axes_change(opened):
    page = opened
    chart = page.locator("[data-chart=loss]")
    drawn = "paths => paths.filter(path => path.getAttribute('d')).length"
    assert chart.locator("path.curve").evaluate_all(drawn) == 2
    chart.locator("button.key").first.click()
    expect(chart.locator("button.key").first).to_have_attribute("aria-pressed", "false")
    assert chart.locator("path.curve").evaluate_all(drawn) == 1
    chart.locator("button", has_text="log").click()
    expect(chart.locator("svg")).to_contain_text("0.5")
    page.locator("#curves [data-axis=seconds]").click()
    assert view(page, "loss") == pytest.approx((0, 25.01))
    assert view(page, "throughput") == (0, 1000)  # each section has its own


def test_pointing_at_a_chart_tells_its_values(opened):
    svg = opened.locator("[data-chart=accuracy] svg")
    svg.hover(position={"x": 53, "y": 60})
    expect(opened.locator("[data-chart=accuracy] .tip")).to_have_text("iteration 0accuracy, test: 0.1")


# -- timeline ---------------------------------------------------------------------------------------------------------
def timeline(page):
    canvas = page.locator("#gantt canvas")
    return tuple(float(canvas.get_attribute(f"data-{end}")) for end in ("from", "to"))


def test_the_timeline_zooms_moves_and_comes_back(opened):
    page, canvas = opened, opened.locator("#gantt canvas")
    whole = timeline(page)
    assert whole[0] == 0
    page.locator("[data-gantt=in]").click()
    near = timeline(page)
    assert near[1] - near[0] == pytest.approx(whole[1] / 1.5)
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + 400, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + 300, box["y"] + 40)
    page.mouse.up()
    moved = timeline(page)
    assert moved[0] > near[0]
    assert moved[1] - moved[0] == pytest.approx(near[1] - near[0])
    page.keyboard.down("Control")
    page.mouse.wheel(0, -200)
    page.keyboard.up("Control")
    assert timeline(page)[1] - timeline(page)[0] < moved[1] - moved[0]
    page.locator("[data-gantt=all]").click()
    assert timeline(page) == whole
    canvas.press("+")
    canvas.press("ArrowLeft")
    canvas.press("0")
    assert timeline(page) == whole
    page.locator("[data-gantt='iteration:102']").click()
    assert 0 < timeline(page)[0] < timeline(page)[1] < whole[1]


def test_events_are_found_by_pointing_and_by_keys(made, opened):
    page, canvas = opened, opened.locator("#gantt canvas")
    tip = page.locator("#gantt .tip")
    first = next(event for event in made[0].traces[0].events if event.kind == "backward")
    canvas.press("n")
    expect(tip).to_contain_text(first.name)
    expect(tip).to_contain_text("rank 0, iteration 101")
    canvas.press("ArrowDown")
    expect(tip).to_contain_text(re.compile("on the wire|gradient ready"))
    canvas.press("Escape")
    expect(tip).to_be_hidden()
    move = next(event for event in made[0].traces[0].events if event.kind == "move")
    start_s = min(trace.events[0].start_s for trace in made[0].traces)
    width = canvas.bounding_box()["width"]
    at = (move.start_s + move.duration_s / 2 - start_s) * 1e6 / timeline(page)[1]
    canvas.hover(position={"x": 128 + at * (width - 134), "y": 32 + 24 + 3 + 8})
    expect(tip).to_contain_text(move.name)
    expect(tip).to_contain_text("on the wire, rank 0, iteration 101")
    expect(tip).to_contain_text(f"{move.num_bytes / 1e6:.3g} MB" if move.num_bytes >= 1e6 else "kB")


def test_kinds_of_events_hide(opened):
    page = opened
    pixels = "c => c.toDataURL().length"
    before = page.locator("#gantt canvas").evaluate(pixels)
    page.locator("[data-gantt='kind:backward']").click()
    expect(page.locator("[data-gantt='kind:backward']")).to_have_attribute("aria-pressed", "false")
    assert page.locator("#gantt canvas").evaluate(pixels) != before
    page.locator("[data-gantt='kind:backward']").click()
    assert page.locator("#gantt canvas").evaluate(pixels) == before


# -- the net, and what others have written ----------------------------------------------------------------------------
def test_the_net_changes_its_size(opened):
    frame, svg = opened.locator("#net-frame"), opened.locator("#net-frame svg")
    opened.locator("[data-net=full]").click()
    full = svg.bounding_box()["width"]
    opened.locator("[data-net=in]").click()
    assert svg.bounding_box()["width"] == pytest.approx(1.25 * full, abs=0.1)
    frame.press("-")
    frame.press("-")
    assert svg.bounding_box()["width"] == pytest.approx(full / 1.25, abs=0.1)
    assert opened.locator("#net-frame .card text.scheme").count() == 4


def test_hostile_names_stay_text(page, tmp_path):
    quoted = json.dumps(HOSTILE)
    text = NET.replace('"digits"', quoted).replace('"ip2"', quoted)
    write_run(tmp_path, net=text)
    facts = (tmp_path / "run.json").read_text()
    (tmp_path / "run.json").write_text(facts.replace("eth0", "</script><b>eth0").replace("max_iter", "<b>max_iter"))
    metrics = (tmp_path / "metrics.jsonl").read_text()
    (tmp_path / "metrics.jsonl").write_text(metrics.replace('"accuracy"', '"accuracy</script><b>"'))
    trace = (tmp_path / "trace-0.jsonl").read_text()
    (tmp_path / "trace-0.jsonl").write_text(trace.replace('"conv1"', '"</script><b>\\u2028"'))
    assert main(["report", str(tmp_path), f"--o={tmp_path}/p.html"]) == 0
    page.goto((tmp_path / "p.html").as_uri())
    expect(page.locator("h1")).to_have_text(HOSTILE)
    expect(page).to_have_title(f"{HOSTILE} · Poseidon report")
    assert page.locator("section b").count() == 0
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 2
    expect(page.locator("#net text.name").last).to_be_visible()


def test_markup_that_got_in_could_run_nothing(made, chromium, tmp_path):
    """The policy of the page: a script that is not its own does not run, even if escaping failed somewhere."""
    broken = tmp_path / "broken.html"
    text = Path(made[1].removeprefix("file://")).read_text()
    broken.write_text(text.replace("<main>", "<main><script>document.title='taken'</script>"))
    context = chromium.new_context()  # its complaints are wanted: not the tab that fails on them
    tab = context.new_page()
    complaints: list[str] = []
    tab.on("console", lambda line: complaints.append(line.text))
    tab.goto(broken.as_uri())
    expect(tab).to_have_title("digits · Poseidon report")
    assert any("Content Security Policy" in text for text in complaints)
    context.close()


def test_a_run_that_has_recorded_hardly_anything(page, tmp_path):
    (tmp_path / "run.json").write_text(
        '{"format": "poseidon-run/1", "kind": "run", "command": [], "started": 1.0, "configuration": {}, "net": "", '
        '"cluster": {"nodes": "?"}, "plan": null}'
    )
    assert main(["report", str(tmp_path)]) == 0
    page.goto((tmp_path / "report.html").as_uri())
    expect(page.locator("#curves")).to_contain_text("No losses were recorded yet")
    expect(page.locator("#timeline")).to_contain_text("No events were recorded")
    expect(page.locator(".chip")).to_have_text("running, or ended without a word")
    assert page.locator("#traffic").count() == 0
