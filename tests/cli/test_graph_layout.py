"""Where boxes and lines of a graph are put, for graphs of any shape."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciel.cli import graph_layout
from ciel.cli.graph_layout import Edge, Layout, Point, Size, lay_out
from ciel.cli.graph_places import spread

SIZE = Size(100, 40)


@st.composite
def graphs(draw: st.DrawFn, *, circles: bool = False) -> tuple[list[Size], list[Edge]]:
    """Boxes of many sizes, and edges from earlier to later ones, or anyhow where circles may be."""
    size = st.builds(Size, st.integers(20, 300), st.integers(20, 90))
    sizes = draw(st.lists(size, min_size=1, max_size=25))
    box = st.integers(0, len(sizes) - 1)
    edges = draw(st.lists(st.builds(Edge, box, box, st.integers(0, 2)), max_size=60))
    if not circles:
        edges = [Edge(min(a, b), max(a, b), bundle) for a, b, bundle in edges if a != b]
    return sizes, edges


def rectangles(sizes: list[Size], layout: Layout) -> list[tuple[int, int, int, int]]:
    return [
        (corner.x, corner.y, corner.x + size.width, corner.y + size.height)
        for corner, size in zip(layout.corners, sizes, strict=True)
    ]


def expect_no_overlap(sizes: list[Size], layout: Layout) -> None:
    placed = rectangles(sizes, layout)
    for one, other in itertools.combinations(placed, 2):
        apart = one[2] < other[0] or other[2] < one[0] or one[3] < other[1] or other[3] < one[1]
        assert apart, (one, other)
    for left, top, right, bottom in placed:
        assert left >= 0
        assert top >= 0
        assert right <= layout.size.width
        assert bottom <= layout.size.height


@given(graphs())
def test_boxes_are_apart_and_every_edge_goes_down(graph: tuple[list[Size], list[Edge]]) -> None:
    sizes, edges = graph
    layout = lay_out(sizes, edges)
    expect_no_overlap(sizes, layout)
    placed = rectangles(sizes, layout)
    for edge, passed in zip(edges, layout.passed, strict=True):
        heights = [placed[edge.tail][3]]
        if passed:
            heights += [point.y for point in layout.ways[edge.tail, edge.bundle][:passed]]
        heights.append(placed[edge.head][1])
        assert heights == sorted(heights)
        assert heights[0] < heights[-1]


@given(graphs())
def test_no_line_passes_through_a_box_where_it_passes_a_layer(
    graph: tuple[list[Size], list[Edge]],
) -> None:
    sizes, edges = graph
    layout = lay_out(sizes, edges)
    for way in layout.ways.values():
        for upper, lower in zip(way[::2], way[1::2], strict=True):
            assert upper.x == lower.x
            for left, top, right, bottom in rectangles(sizes, layout):
                beside = upper.x < left or upper.x > right
                assert beside or lower.y <= top or upper.y >= bottom


@given(graphs())
def test_the_same_graph_is_laid_out_the_same(graph: tuple[list[Size], list[Edge]]) -> None:
    assert lay_out(*graph) == lay_out(*graph)


@given(graphs(circles=True))
def test_circles_are_cut_somewhere(graph: tuple[list[Size], list[Edge]]) -> None:
    layout = lay_out(*graph)
    expect_no_overlap(graph[0], layout)
    assert len(layout.passed) == len(graph[1])


def test_a_chain_is_one_straight_column_however_long() -> None:
    edges = [Edge(n, n + 1, 0) for n in range(2999)]
    corners = lay_out([SIZE] * 3000, edges).corners
    assert {corner.x for corner in corners} == {0}
    assert [corner.y for corner in corners] == sorted({corner.y for corner in corners})


def test_a_box_lies_below_all_that_lead_to_it() -> None:
    layout = lay_out([SIZE] * 4, [Edge(0, 3, 0), Edge(0, 1, 0), Edge(1, 2, 0), Edge(2, 3, 0)])
    heights = [corner.y for corner in layout.corners]
    assert heights == sorted(set(heights))
    assert layout.passed == [4, 0, 0, 0]  # into and out of two layers


def test_a_source_is_drawn_right_above_the_first_that_reads_it() -> None:
    layout = lay_out([SIZE] * 4, [Edge(0, 1, 0), Edge(1, 2, 0), Edge(3, 2, 0)])
    assert layout.corners[3].y == layout.corners[1].y


def test_a_tree_has_no_crossings() -> None:
    edges = [Edge((child - 1) // 3, child, 0) for child in range(1, 40)]
    corners = lay_out([SIZE] * 40, edges).corners
    for one, other in itertools.combinations(edges, 2):
        if corners[one.tail].y == corners[other.tail].y and one.tail != other.tail:
            leftmost = corners[one.tail].x < corners[other.tail].x
            assert leftmost == (corners[one.head].x < corners[other.head].x)


def test_crossings_that_need_not_be_are_taken_out() -> None:
    reversed_pairs = [Edge(n, 9 - n, 0) for n in range(5)] + [Edge(10, n, 0) for n in range(5)]
    corners = lay_out([SIZE] * 11, reversed_pairs).corners
    assert all(corners[n].x == corners[9 - n].x for n in range(5))


def test_parts_that_nothing_connects_fill_lines_of_a_page() -> None:
    layout = lay_out([SIZE] * 40, [Edge(n, n + 1, 0) for n in range(0, 40, 2)])
    assert len({corner.y for corner in layout.corners}) > 4
    assert 0.5 < layout.size.width / layout.size.height < 4
    expect_no_overlap([SIZE] * 40, layout)


def test_edges_of_a_bundle_share_their_way() -> None:
    chain = [Edge(n, n + 1, 0) for n in range(1, 6)]
    layout = lay_out([SIZE] * 7, [*chain, *(Edge(0, head, 1) for head in range(1, 7))])
    assert list(layout.ways) == [(n, 0) for n in range(1, 6)] + [(0, 1)]
    assert layout.passed[5:] == [0, 2, 4, 6, 8, 10]
    assert len({point.x for point in layout.ways[0, 1]}) == 1


def test_what_would_pass_too_many_layers_goes_straight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_layout, "BENDS_MAX", 10)
    edges = [Edge(n, n + 1, 0) for n in range(20)] + [Edge(0, 5, 1), Edge(0, 20, 2)]
    assert lay_out([SIZE] * 21, edges).passed[-2:] == [8, 0]


def test_nothing_takes_no_room() -> None:
    assert lay_out([], []) == Layout([], {}, [], Size(0, 0))
    assert lay_out([SIZE], []) == Layout([Point(0, 0)], {}, [], SIZE)


place = st.floats(-1000, 1000)


@given(st.lists(st.tuples(place, st.floats(0.1, 9), st.floats(0, 50)), min_size=1))
def test_places_keep_their_gaps_and_are_those_wanted_where_these_do(
    rows: list[tuple[float, float, float]],
) -> None:
    wanted, weights, gaps = map(list, zip(*rows, strict=True))
    places = spread(wanted, weights, gaps[1:])
    distances = [b - a for a, b in itertools.pairwise(places)]
    assert all(distance > gap - 1e-6 for distance, gap in zip(distances, gaps[1:], strict=True))
    far_apart = [5000.0 * n + want for n, want in enumerate(wanted)]
    assert spread(far_apart, weights, gaps[1:]) == pytest.approx(far_apart)


def test_two_that_want_one_place_share_it_by_their_weights() -> None:
    assert spread([0.0, 0.0], [3.0, 1.0], [8.0]) == [-2.0, 6.0]
