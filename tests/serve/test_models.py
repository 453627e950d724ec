"""Models come into service whole or not at all."""

import asyncio
import threading
from pathlib import Path

import pytest
from support.serving import IDS, load_fake, make_recommender

from minionerec.core.errors import ArtefactError
from minionerec.recommend.rankers.protocol import Ranking
from minionerec.serve.metrics import Metrics
from minionerec.serve.models import Shelf, Sources, below, try_out, without_paths
from minionerec.serve.reading import Refusal
from minionerec.serve.reloading import Reloader


@pytest.fixture
def root(tmp_path):
    for name in ("shift-0", "shift-1", "shift-2", "other"):
        (tmp_path / name).mkdir()
    return tmp_path


def version(shelf):
    return shelf.current.recommender.version


def test_a_model_is_loaded_tried_and_then_serves(root):
    seen = []
    shelf = Shelf(load_fake, batch=4, changed=seen.append)
    shelf.bring(Sources(root / "shift-0"))
    served = shelf.bring(Sources(root / "shift-1"))
    assert (shelf.current, shelf.previous) == (served, seen[0]) and version(shelf) == "version-1"
    assert served.recommender.ranker.batches == [1, 4]  # it was warmed alone and with a batch
    request, answer = served.example
    assert request.history == IDS[:3] and [item.item_id for item in answer.items] == ["i4", "i5", "i6"]
    assert served.loaded > 1e9


def test_one_that_does_not_belong_together_leaves_the_old_one(root):
    shelf = Shelf(load_fake)
    first = shelf.bring(Sources(root / "shift-0"))
    with pytest.raises(ArtefactError, match="of another catalogue"):
        shelf.bring(Sources(root / "other"))
    assert (shelf.current, shelf.previous) == (first, None)

    def broken(sources):
        raise KeyError("weights")

    shelf._load = broken
    with pytest.raises(ArtefactError, match=r"cannot be loaded \(KeyError\)"):
        shelf.bring(Sources(root / "shift-1"))
    assert shelf.current is first


def test_the_one_before_comes_back_and_goes_again(root):
    shelf = Shelf(load_fake)
    with pytest.raises(Refusal) as raised:
        shelf.back()
    assert (raised.value.status, raised.value.field) == (409, "back")
    shelf.bring(Sources(root / "shift-0"))
    shelf.bring(Sources(root / "shift-1"))
    shelf.back()
    assert version(shelf) == "version-0" and shelf.previous.recommender.version == "version-1"
    shelf.back()
    assert version(shelf) == "version-1"


@pytest.mark.parametrize("listed", [[], [0, 99]])
def test_one_that_lists_nothing_or_strange_items_is_refused(listed):
    recommender = make_recommender()
    recommender.ranker.rank = lambda histories, k, allowed=None: Ranking(
        [listed] * len(histories), [[0.0] * len(listed)] * len(histories)
    )
    if listed:
        recommender.items.ids.extend(f"strange {position}" for position in range(100))
        recommender.items.titles.extend(["strange"] * 100)
    with pytest.raises(ArtefactError, match="recommends"):
        try_out(recommender, 1)


@pytest.mark.parametrize(
    ("message", "known", "shown"),
    [
        ("/srv/models/a b/manifest.json: is gone", [], "a manifest.json: is gone"),
        ("runs/demo/sft: was trained on the corpus runs/demo/corpus.", [], "sft: was trained on the corpus corpus."),
        ("k is 3; expected 4", [], "k is 3; expected 4"),
        ("'/srv/x y/z' (in /etc/passwd, line 3)\nmore", [], "'x z' (in passwd, line 3) more"),
        (
            "/home/John Smith/m/manifest.json: is of runs/my shop/corpus.",
            [Path("/home/John Smith/m"), None, Path("runs/my shop/corpus")],
            "manifest.json: is of corpus.",
        ),
    ],
)
def test_messages_for_callers_have_no_folders(message, known, shown):
    assert without_paths(message, known) == shown


def test_paths_lie_below_the_folder(root):
    (root / "link").symlink_to(root / "shift-1")
    (root / "out").symlink_to("/etc")
    base = root / "shift-0"
    (base / "inner").mkdir()
    assert below(base, "inner", "checkpoint") == (base / "inner").resolve()
    assert below(root, str(base), "checkpoint") == base.resolve()
    assert below(root, "link", "checkpoint") == (root / "shift-1").resolve()
    for name in ("..", ".", "../shift-1", "/etc/passwd", "out/passwd", "inner/../..", "absent", "a\x00b", "x" * 999):
        with pytest.raises(Refusal) as raised:
            below(base, name, "checkpoint")
        assert (raised.value.status, raised.value.field) == (422, "checkpoint")
        assert str(root) not in raised.value.message


def reloader_of(folder, root=None):
    shelf = Shelf(load_fake)
    return shelf, Reloader(shelf, Metrics(), Sources(folder / "shift-0"), allowed=True, root=root)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ([], None),
        ({"path": "a"}, "path"),
        ({"back": 1}, "back"),
        ({"back": True, "checkpoint": "shift-1"}, "back"),
        ({"checkpoint": 7}, "checkpoint"),
        ({"checkpoint": ""}, "checkpoint"),
        ({"checkpoint": "../.."}, "checkpoint"),
        ({"corpus": "absent"}, "corpus"),
        ({"checkpoint": None}, "checkpoint"),
    ],
)
def test_what_a_caller_asks_is_checked(root, body, field):
    _, reloader = reloader_of(root, root=root)
    with pytest.raises(Refusal) as raised:
        reloader.read(body)
    assert (raised.value.status, raised.value.field) == (422, field)


def test_callers_name_paths_only_where_a_folder_is_given(root):
    _, with_root = reloader_of(root, root=root)
    assert with_root.read({"checkpoint": "shift-2"}) == {"checkpoint": (root / "shift-2").resolve()}
    _, without = reloader_of(root)
    assert without.read({}) == {} and without.read({"back": True}) is None
    with pytest.raises(Refusal, match="is not allowed"):
        without.read({"checkpoint": "shift-2"})


def test_what_is_not_named_stays(root):
    shelf, reloader = reloader_of(root, root=root)
    (root / "corpus").mkdir()

    async def play():
        await reloader.load(reloader.sources)
        await reloader.run({"checkpoint": root / "shift-2"})
        await reloader.run({"corpus": root / "corpus"})
        return shelf.current.sources

    assert asyncio.run(play()) == Sources(root / "shift-2", root / "corpus")
    assert reloader._metrics.registry.get_sample_value("minionerec_reloads_total", {"outcome": "done"}) == 2


def test_what_is_changed_while_it_is_read_is_refused(root):
    def load(sources):
        (sources.checkpoint / "model.safetensors").write_text("another")
        return load_fake(sources)

    shelf = Shelf(load_fake)
    first = shelf.bring(Sources(root / "shift-0"))
    (root / "shift-1" / "manifest.json").write_text("{}")
    shelf._load = load
    with pytest.raises(ArtefactError, match="files were changed while they were read"):
        shelf.bring(Sources(root / "shift-1"))
    assert shelf.current is first


def test_only_one_is_loaded_at_a_time(root):
    shelf, reloader = reloader_of(root)
    hold, loading = threading.Event(), threading.Event()

    def slowly(sources):
        loading.set()
        assert hold.wait(10)
        return load_fake(sources)

    async def play():
        shelf._load = slowly
        first = asyncio.ensure_future(reloader.load(reloader.sources))
        await asyncio.to_thread(loading.wait, 10)
        for paths in ({"checkpoint": root / "shift-1"}, None):
            with pytest.raises(Refusal) as raised:
                await reloader.run(paths)
            assert (raised.value.status, raised.value.retry_after) == (409, 5)
        await reloader.reload_quietly()
        hold.set()
        await first

    asyncio.run(asyncio.wait_for(play(), 20))
    assert version(shelf) == "version-0"
