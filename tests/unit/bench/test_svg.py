"""Charts are well-formed SVG, whatever is drawn."""

from __future__ import annotations

from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from penstock.bench.svg import Bar, Curve, bars, curves

NUMBERS = st.floats(1e-3, 1e9)
SVG = "{http://www.w3.org/2000/svg}"


@given(
    st.lists(st.builds(Bar, st.text("a<&>\"'é", max_size=9), NUMBERS, st.just("x < y"), group=st.sampled_from("ab")))
)
def test_a_longer_bar_is_a_greater_value(shown: list[Bar]) -> None:
    drawn = ElementTree.fromstring(bars("rates & more", shown))
    lengths = [float(rect.attrib["width"]) for rect in drawn.iter(f"{SVG}rect") if rect.attrib.get("x")]
    assert len(lengths) == len(shown)
    by_value = [length for _, length in sorted(zip([bar.value for bar in shown], lengths, strict=True))]
    assert by_value == sorted(by_value)


@given(st.lists(st.lists(st.tuples(NUMBERS, NUMBERS), max_size=20), max_size=4), st.booleans())
def test_every_point_of_a_curve_is_inside_the_picture(
    points: list[list[tuple[float, float]]], logarithmic: bool
) -> None:
    shown = [Curve("one", of_curve) for of_curve in points]
    drawn = ElementTree.fromstring(curves("a curve", "s", "n", shown, logarithmic=logarithmic))
    width, height = float(drawn.attrib["width"]), float(drawn.attrib["height"])
    lines = list(drawn.iter(f"{SVG}polyline"))
    assert len(lines) == len(shown)
    for line in lines:
        for pair in line.attrib["points"].split():
            x, y = map(float, pair.split(","))
            assert 0 <= x <= width
            assert 0 <= y <= height
