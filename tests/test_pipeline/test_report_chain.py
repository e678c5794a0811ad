"""The picture of what made what."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from pipeline.reporting.build import build_report
from pipeline.reporting.chain_picture import FIRST, LAST, draw_chain
from pipeline.reporting.collect import collect
from pipeline.store import Store
from pipeline.tainted import Tainted, mark
from pipeline.tombstones import Tombstone, bury
from tests.test_pipeline.report_run import EVIL, whole_run


def drawn(svg: str) -> tuple[ET.Element, list[str]]:
    picture = ET.fromstring(svg)
    boxes = [box.findtext("title") or "" for box in picture.iter("g")]
    return picture, boxes


def test_boxes_name_digest_and_time_and_arrows_follow_the_manifests(tmp_path: Path):
    run = whole_run(tmp_path, iterations=2)
    report = collect(run)
    links = {(link.source, link.target, link.role) for link in report.chain.links}
    assert ("iterations/0/rollout", "iterations/0/group", "rollout") in links
    assert ("setup/base", "iterations/0/train", "base") in links
    assert ("iterations/0/train", "iterations/1/rollout", "adapter") in links, "an adapter counts as its policy"
    assert ("iterations/0/train", "iterations/1/train", "previous") in links
    assert ("iterations/1/train", "evaluate/dev/2", "adapter") in links
    picture = draw_chain(report.chain)
    assert picture is not None
    svg, boxes = drawn(picture.svg)
    assert len(boxes) == len(report.chain.boxes)
    rollout = next(box for box in report.chain.boxes if box.name == "iterations/0/rollout")
    assert f"rollout: digest {(rollout.digest or '')[:12]}, 30.0 s" in boxes
    assert svg.get("role") == "img"
    assert (svg.findtext("title") or "").startswith(f"What made what: {len(boxes)} artifacts")
    assert len([path for path in svg.iter("path") if path.get("class") == "arrow"]) > 8


@pytest.mark.parametrize("iterations", [FIRST + LAST, FIRST + LAST + 1, 12])
def test_a_long_run_is_drawn_by_its_ends_and_says_what_is_left_out(tmp_path: Path, iterations: int):
    report = collect(whole_run(tmp_path, iterations=iterations))
    picture = draw_chain(report.chain)
    assert picture is not None
    left_out = max(0, iterations - FIRST - LAST)
    assert picture.left_out == left_out
    texts = [text.text for text in ET.fromstring(picture.svg).iter("text")]
    heads = [f"iteration {index}" for index in range(iterations)]
    gone = heads[FIRST : FIRST + left_out]
    assert [head for head in heads if head in texts] == [head for head in heads if head not in gone]
    assert (f"… {left_out} more …" in texts) == bool(left_out)


def test_nothing_is_drawn_outside_the_picture(tmp_path: Path):
    picture = draw_chain(collect(whole_run(tmp_path, iterations=8)).chain)
    assert picture is not None
    svg = ET.fromstring(picture.svg)
    width, height = float(svg.get("width", "")), float(svg.get("height", ""))
    for rect in svg.iter("rect"):
        assert float(rect.get("x", "")) + float(rect.get("width", "")) < width
        assert float(rect.get("y", "")) + float(rect.get("height", "")) < height
    for path in svg.iter("path"):
        if path.get("class") == "arrow":
            numbers = [float(part) for part in path.get("d", "").translate(str.maketrans("MCV", "   ")).split()]
            assert max(numbers[::2]) <= width


def test_what_is_missing_deleted_or_tainted_is_marked_and_the_first_screen_says_so(tmp_path: Path):
    run = whole_run(tmp_path, iterations=3)
    report = collect(run)
    by_name = {box.name: box for box in report.chain.boxes}
    store = Store(run / "artifacts")
    gone, lost = by_name["iterations/0/rollout"], by_name["iterations/1/rollout"]
    trained = by_name["iterations/2/train"].digest or ""
    stone = Tombstone(artifact=gone.digest or "", traces=("t",), by="a", at="now", why="asked", successor=None)
    bury(store.folder("rollout", gone.key), stone)
    shutil.rmtree(store.folder("rollout", lost.key))
    mark(run, Tainted(traces=("t",), artifacts=(trained,), policies=(), clean=None, successor="snap/2", at="now"))
    page = build_report(run).read_text()
    numbers = json.loads((run / "report.json").read_text())
    marks = {box["name"]: box["mark"] for box in numbers["chain"]["boxes"] if box["mark"]}
    rollouts = {"iterations/0/rollout": "deleted", "iterations/1/rollout": "missing"}
    assert marks == rollouts | {"iterations/2/train": "tainted"}
    assert numbers["advice"][0]["title"] == "Train again without what was forgotten"
    assert "set traces.snapshot to snap/2" in numbers["advice"][0]["text"]
    data = next(answer for answer in numbers["answers"] if answer["key"] == "data")
    assert data["level"] == "warning"
    assert "1 deleted and 1 tainted" in data["text"]
    for kind in ("missing", "deleted", "tainted"):
        assert f'class="box {kind}"' in page


def test_names_from_a_recipe_are_escaped_in_the_picture(tmp_path: Path):
    run = whole_run(tmp_path, iterations=1)
    chain = collect(run).chain
    boxes = tuple(dataclasses.replace(box, label=EVIL) for box in chain.boxes)
    picture = draw_chain(dataclasses.replace(chain, boxes=boxes))
    assert picture is not None
    assert "<script" not in picture.svg
    drawn(picture.svg)
