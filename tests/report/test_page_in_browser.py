"""The page in a real browser: drawn without complaint, and its sliders, hovers and legends at work."""

import pytest

from ebmbounds.report import write_report

HOSTILE = "<img src=x onerror=\"document.title='hacked'\">"


@pytest.fixture(scope="module")
def page(write_run, tmp_path_factory):
    folder, figures = tmp_path_factory.mktemp("page"), {"nll": 1.0, "modes": 20, HOSTILE: 1.0}
    runs = [
        write_run(folder, f"run {HOSTILE}", figures=figures),
        write_run(folder, "b", "25gaussians/wgan-0gp@quick", figures=figures),
    ]
    write_report(runs, folder / "page.html")
    return folder / "page.html"


@pytest.fixture
def opened(page, chromium):
    chromium.errors()  # those of other pages
    chromium.get(page.as_uri())
    return chromium


def wait_for(browser, script, *arguments):
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(browser, 20).until(lambda b: b.execute_script(f"return {script}", *arguments))


def scroll_through(browser):
    for chart in browser.find_elements("css selector", ".chart"):
        browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", chart)
        wait_for(browser, "arguments[0].querySelector('.main-svg') !== null", chart)


def test_every_chart_is_drawn_and_nothing_complains_or_runs(opened):
    scroll_through(opened)
    assert opened.errors() == []
    assert opened.title == "2 runs of 2 experiments"


def test_the_slider_goes_through_the_pictures(opened):
    from selenium.webdriver.common.keys import Keys

    shown = "[...document.querySelector('.film').querySelectorAll('img:not([hidden])')].map((i) => i.dataset.iteration)"
    assert opened.execute_script(f"return {shown}") == ["1000"]
    opened.find_element("css selector", ".film input").send_keys(Keys.ARROW_LEFT)
    assert opened.execute_script(f"return {shown}") == ["500"]
    assert opened.find_element("css selector", ".film output").text == "500"


def test_hovering_over_the_map_tells_the_log_density(opened):
    from selenium.webdriver import ActionChains

    chart = opened.find_element("css selector", "#densities .chart")
    opened.execute_script("arguments[0].scrollIntoView({block: 'center'})", chart)
    wait_for(opened, "arguments[0].querySelector('.nsewdrag') !== null", chart)
    ActionChains(opened).move_to_element(chart.find_element("css selector", ".nsewdrag")).perform()
    assert wait_for(
        opened, "[...arguments[0].querySelectorAll('.hoverlayer text')].map((t) => t.textContent).join()", chart
    )


def test_the_legend_hides_an_experiment_in_every_chart(opened):
    scroll_through(opened)
    opened.execute_script("document.querySelector('.legend button').click()")
    seen = """[...document.querySelectorAll('.curves .chart')].flatMap((chart) =>
        chart.data.filter((trace) => trace.meta === arguments[0]).map((trace) => trace.visible))"""
    assert set(opened.execute_script(f"return {seen}", 0)) == {False}
    assert set(opened.execute_script(f"return {seen}", 1)) == {True}


def test_it_fits_a_phone_and_follows_the_dark(opened):
    phone = {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    opened.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    try:
        scroll_through(opened)
        assert opened.execute_script("return document.documentElement.scrollWidth") <= 390
        text = "document.querySelector('.chart').layout.font.color"
        light = opened.execute_script(f"return {text}")
        dark = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
        opened.execute_cdp_cmd("Emulation.setEmulatedMedia", dark)
        assert wait_for(opened, f"{text} !== arguments[0]", light)
    finally:
        opened.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
