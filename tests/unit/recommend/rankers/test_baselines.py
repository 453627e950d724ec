"""The baselines, against counting by hand, and how their constants are chosen."""

from dataclasses import asdict, replace
from itertools import product

import numpy as np
import pytest
from support.examples import in_blocks, source_of
from support.small_corpus import corpus_of, leave_last_out, rows_of

from minionerec.core.errors import ArtefactError, ConfigError
from minionerec.data.corpus import Corpus
from minionerec.data.ease import ease_weights
from minionerec.data.protocols import PROTOCOLS
from minionerec.data.rows import SplitExamples
from minionerec.data.times import NO_TIME, RowTimes
from minionerec.data.transitions import TransitionPairs
from minionerec.data.windows import padded_windows
from minionerec.models.nn.experts import EXPERTS, FEATURES
from minionerec.pipeline.config.data import PrepareConfig
from minionerec.pipeline.prepare_data import run_prepare
from minionerec.recommend.rankers import baselines
from minionerec.recommend.rankers.baselines import (
    EASE,
    MIXTURE,
    NAMES,
    POPULARITY,
    RECENT,
    TEXT,
    TRANSITIONS,
    Chosen,
    MixtureConstants,
    TextConstants,
    TransitionConstants,
    make_baselines,
)
from minionerec.recommend.rankers.experts import pooled_log_probs
from minionerec.recommend.rankers.lists import rank_rows, split_queries
from minionerec.recommend.rankers.protocol import Allowed, Queries, Ranker
from minionerec.sid.embed.texts import nearest_texts
from minionerec.sid.table import SidTable

MIXED = MixtureConstants(
    [[0.0, 0.0, 1.0, 0.2, 0.5, 0.1, 0.3, -0.2, *[0.4] * 12], *[[0.0, 0.0, *[0.02] * 18]] * 10],
    [-5.0] * 11,
    [5.0] * 11,
    [0.0, 0.0, 1.0, 0.2, 0.5, 0.1, 0.3, -0.2, *[0.4] * 12],
)


def rows(*pairs):
    return rows_of([(f"u{n}", *pair) for n, pair in enumerate(pairs)])


def choose(*given, **named):
    return make_baselines(*given, **named)[0]


def lists_of(baseline, corpus, table, frame, k, without=None, chosen=None):
    allowed = None if without is None else Allowed.leaving_out(without, corpus.n_items)
    return rank_rows(
        make_baselines(corpus, table, chosen or Chosen(mixture=MIXED))[1][baseline],
        frame,
        k,
        corpus.n_items,
        table=table,
        allowed=allowed,
    )


@pytest.fixture
def corpus():
    train = rows(([], 3), ([3], 3), ([], 1), ([], 4))  # popularity: 3 twice, 1 and 4 once, 0 and 2 never
    return corpus_of(train, rows(([], 0)), rows(([2, 0, 2], 2), ([], 4)), 5)


@pytest.fixture
def table():
    codes = np.array([[0, 0], [0, 1], [0, 2], [0, 3], [0, 1]])  # items 1 and 4 share theirs
    return SidTable(codes, [f"i{n}" for n in range(5)])


def test_popularity_breaks_ties_by_id_and_fills_k_distinct_sids(corpus, table):
    found = lists_of(POPULARITY, corpus, table, corpus.test, 3)
    assert found.items == [[3, 1, 4, 0]] * 2
    assert found.sids[0] == ["<a_0><b_3>", "<a_0><b_1>", "<a_0><b_1>", "<a_0><b_0>"]
    assert found.target_sids == ["<a_0><b_2>", "<a_0><b_1>"] and found.targets.tolist() == [2, 4]
    assert found.users == ["u0", "u1"]
    assert all(a > b for a, b in zip(found.scores[0], found.scores[0][1:], strict=False))


def test_last_item_then_earlier_history_then_popularity(corpus, table):
    found = lists_of(RECENT, corpus, table, corpus.test, 4)
    assert found.items == [[2, 0, 3, 1, 4], [3, 1, 4, 0, 2]]
    assert lists_of(RECENT, corpus, table, corpus.test, 1).items == [[2], [3]]


CONSTANTS = [
    TransitionConstants(),
    TransitionConstants(1, 0.0, 0.0, 0.0, None, 0.3, True),
    TransitionConstants(5, 0.3, 0.1, 1.0, 0.3, 0.01, False),
    TransitionConstants(5, 0.1, 0.8, 0.1, 0.1, 0.1, True),
]


@pytest.mark.parametrize("how", CONSTANTS)
def test_transition_counts_against_plain_loops(how):
    rng = np.random.default_rng(0)
    train, sequences = [], [rng.integers(0, 12, length).tolist() for length in (2, 3, 5, 4, 5, 2)]
    for user, sequence in enumerate(sequences):
        train += [(f"u{user}", sequence[:position], sequence[position]) for position in range(1, len(sequence))]
    test = rows(([3], 1), ([2, 7, 7], 0), ([], 5), ([11, 0, 4, 8], 2))
    corpus = corpus_of(train, test, test, 12, 4, "global time 8:1:1")
    table = SidTable(np.array([[n // 3, n % 3] for n in range(11)] + [[0, 0]]), [f"i{n}" for n in range(12)])
    number = table.sid_numbers
    counts, popular, age = np.zeros((11, 11)), np.zeros(11), len(train)
    for sequence in sequences:
        for later, item in enumerate(sequence[1:], start=1):
            age -= 1
            newness = 0.5 ** (age / len(train) / how.half_life) if how.half_life else 1
            popular[number[item]] += 0.5 ** (age / len(train) / 0.1)
            for earlier in range(max(0, later - how.reach), later):
                weight = newness * how.decay ** (later - earlier - 1)
                counts[number[sequence[earlier]], number[item]] += weight
                counts[number[item], number[sequence[earlier]]] += how.reverse * weight
    found = lists_of(TRANSITIONS, corpus, table, test, 6, chosen=Chosen(0.1, how, None))
    for history, sids in zip(test.histories, found.sids, strict=True):
        scores = np.zeros(11)
        for back, item in enumerate(history[::-1].tolist()):
            scores += how.score_decay**back * counts[number[item]] / np.sqrt(counts[number[item]].sum() + 1)
        scores = (1 - how.popularity) * scores / max(scores.sum(), 1e-12) + how.popularity * popular / popular.sum()
        if how.exclude_seen:
            scores[number[history]] = -1
        order = sorted(range(11), key=lambda sid: (-round(scores[sid], 6), -round(popular[sid], 9), sid))[:6]
        names = {int(number[item]): table.sids[item] for item in range(12)}
        assert list(dict.fromkeys(sids)) == [names[sid] for sid in order]
    assert any(len(row) > 6 for row in found.items)  # an SID of two items


def test_more_candidates_than_the_catalogue_has_is_an_error(corpus, table):
    for name, baseline in make_baselines(corpus, table, Chosen(mixture=MIXED))[1].items():
        assert isinstance(baseline, Ranker)
        with pytest.raises(ConfigError, match=r"k is 5; expected 1 to 4, the number of distinct SIDs"):
            lists_of(name, corpus, table, corpus.test, 5)
        with pytest.raises(ConfigError, match=r"k is 6; expected 1 to 5, the number of items"):
            lists_of(name, corpus, None, corpus.test, 6)


def test_without_sids_every_item_is_a_candidate(corpus):
    assert lists_of(POPULARITY, corpus, None, corpus.test, 2).items == [[3, 1]] * 2
    assert lists_of(RECENT, corpus, None, corpus.test, 4).items == [[2, 0, 3, 1], [3, 1, 4, 0]]
    found = lists_of(TRANSITIONS, corpus, None, rows(([3], 0)), 3)
    assert found.items == [[3, 1, 4]]  # 3 followed itself
    assert found.sids == [["", "", ""]] and found.target_sids == [""]


def test_items_left_out_make_room_for_the_next_candidates(corpus, table):
    gone = [[3, 1], [2]]
    for name in NAMES:
        everything = lists_of(name, corpus, table, corpus.test, 4)
        found = lists_of(name, corpus, table, corpus.test, 2, gone)
        for row, items, left_out in zip(everything.items, found.items, gone, strict=True):
            wanted = [item for item in row if item not in left_out]
            kept = list(dict.fromkeys(table.sids[item] for item in wanted))[:2]
            assert items == [item for item in wanted if table.sids[item] in kept]


@pytest.mark.parametrize("protocol", ["a", "b"])
def test_a_split_of_a_protocol_gives_what_its_training_rows_say(protocol):
    rng = np.random.default_rng(1)
    lengths = rng.integers(8, 20, 30)
    flat = rng.integers(1, 9, lengths.sum())
    users = [part.tolist() for part in np.split(flat, np.cumsum(lengths)[:-1])]
    split = PROTOCOLS[protocol].split(source_of(*users, n_items=8))
    histories = split.test.histories
    popular = np.argsort(-np.bincount(split.train.targets, minlength=split.n_items), kind="stable").tolist()
    baselines = make_baselines(split, None, Chosen())[1]
    found = {name: rank_rows(baseline, split.rows("test"), 8, split.n_items) for name, baseline in baselines.items()}
    assert found[POPULARITY].targets.tolist() == split.test.targets.tolist()
    assert found[POPULARITY].items == [popular] * 30
    for history, row in zip(histories, found[RECENT].items, strict=True):
        assert row == list(dict.fromkeys([*reversed(history.tolist()), *popular]))
    counts = np.zeros((8, 8))
    (whole,) = split.windows("train")
    for before, after, _ in zip(*padded_windows(whole, split.max_history, "left"), strict=True):
        for position in np.flatnonzero(after):
            for back in range(min(10, position + 1)):
                if before[position - back]:
                    pair = before[position - back] - 1, after[position] - 1
                    counts[pair] += 0.6**back
                    counts[pair[::-1]] += 0.3 * 0.6**back
    for history, row in zip(histories, found[TRANSITIONS].items, strict=True):
        scores = np.zeros(8)
        for back, item in enumerate(history[::-1][:10].tolist()):
            scores += 0.6**back * counts[item] / np.sqrt(counts[item].sum() + 1)
        assert row == sorted(range(8), key=lambda item: (-round(scores[item], 5), popular.index(item)))


@pytest.mark.parametrize("part", [1, 3])
def test_pairs_of_many_windows_are_counted_for_those_who_ask(monkeypatch, part):
    rng = np.random.default_rng(1)
    chains = [rng.integers(0, 20, length).tolist() for length in (9, 6, 12, 7)]
    train = [
        (f"u{user}", chain[:end][-4:], chain[end]) for user, chain in enumerate(chains) for end in range(1, len(chain))
    ]
    test = rows(([3], 1), ([2, 7, 7], 0), ([], 5), ([11, 0, 4, 8], 2))
    corpus = corpus_of(train, test, test, 20, 4)
    found = {}
    for size in (1 << 18, part):
        monkeypatch.setattr(baselines, "_PART", size)
        ranker = make_baselines(corpus, None, Chosen())[1][TRANSITIONS]
        assert (ranker.counts is None) == (size == part)
        found[size] = ranker.rank(Queries(corpus.test.histories.tolist()), 12)
    assert found[part] == found[1 << 18]


def chain_corpus(rng, transition, users=700, length=12):
    """Sequences of a first-order Markov chain: the last step of each user tests, the one before validates."""
    size = len(transition)
    steps = np.empty((users, length), dtype=np.int32)
    steps[:, 0] = rng.integers(0, size, users)
    for position in range(1, length):
        drawn = rng.random(users)[:, None] > transition.cumsum(1)[steps[:, position - 1]]
        steps[:, position] = np.minimum(drawn.sum(1), size - 1)
    return leave_last_out(steps, size)


@pytest.fixture(scope="module")
def chain():
    """A corpus of a Markov chain of 40 items, six likely ones after each, and the chain."""
    rng = np.random.default_rng(3)
    transition = np.zeros((40, 40))
    for row in transition:
        row[rng.choice(40, 12, replace=False)] = 0.55 ** np.arange(12)
    transition /= transition.sum(1, keepdims=True)
    return chain_corpus(rng, transition), transition


@pytest.fixture(scope="module")
def chosen(chain):
    return choose(chain[0])


def ndcg_of(ranker, corpus, split):
    kept = corpus.rows(split)
    lists = ranker.rank(Queries(kept.histories.tolist()), 10).items
    positions = [row.index(target) if target in row else None for row, target in zip(lists, kept.targets, strict=True)]
    return float(np.mean([0.0 if position is None else 1 / np.log2(position + 2) for position in positions]))


def test_counts_reach_the_ceiling_of_a_markov_chain(chain, chosen):
    """Held on the expected NDCG@10 of the lists, so that the draw of the test targets plays no part."""
    corpus, transition = chain
    lists = make_baselines(corpus, None, chosen)[1][TRANSITIONS].rank(Queries(corpus.test.histories.tolist()), 10).items
    gains, of_last = 1 / np.log2(np.arange(2, 12)), transition[corpus.test.newest]
    ceiling = (-np.sort(-of_last, axis=1)[:, :10] @ gains).mean()
    reached = np.mean([of_last[row, items] @ gains for row, items in enumerate(lists)])
    assert ceiling - 0.005 <= reached <= ceiling + 1e-9
    assert chosen.strongest == TRANSITIONS and chosen.transitions.score_decay <= 0.1


def grid_points(rows):
    """All constants of transition counts that the search may visit."""
    half_lives = baselines.COUNT_HALF_LIVES if rows.ordered else (None,)
    values = product(
        half_lives,
        baselines.COUNTING,
        baselines.REVERSE,
        baselines.SCORE_DECAY,
        baselines.SHARES,
        rows.seen_settings,
    )
    return [
        TransitionConstants(reach, decay, score, reverse, half_life, share, last)
        for half_life, (reach, decay), reverse, score, share, last in values
    ]


def test_the_grid_says_what_the_lists_say(chain):
    corpus, _ = chain
    for masked in (False, True):
        rows = baselines.BaselineExamples.of(corpus, masked=masked)
        examples = baselines._validation(rows)
        grid = baselines.TransitionGrid(rows, examples, None)
        points = grid_points(rows)
        for how in (points[number] for number in np.random.default_rng(0).choice(len(points), 10)):
            ranker = baselines.TransitionCounts(rows, how)
            assert grid.value(how) == pytest.approx(baselines.valid_ndcg(ranker, rows, examples), abs=1e-6)


def test_what_was_chosen_is_what_its_lists_reach_on_validation(chain, chosen):
    corpus, _ = chain
    assert chosen.examples == len(corpus.valid) and not baselines.BaselineExamples.of(corpus).ordered
    rankers = make_baselines(corpus, None, chosen)[1]
    assert list(rankers) == list(chosen.valid) == chosen.names == list(NAMES)
    for name, ranker in rankers.items():
        if name != MIXTURE:
            assert chosen.valid[name] == pytest.approx(ndcg_of(ranker, corpus, "valid"), abs=1e-6)
    assert Chosen.from_json(chosen.to_json(), "here") == chosen
    assert "constants: chosen on 700 validation examples, by item" in chosen.sentences()


def test_test_examples_are_not_read(chain, chosen):
    corpus, _ = chain
    turned = replace(corpus, test=replace(corpus.test, targets=corpus.test.targets[::-1]))
    assert choose(turned) == chosen == choose(replace(corpus, test=SplitExamples.none()))
    other = replace(corpus, valid=replace(corpus.valid, targets=corpus.valid.targets[::-1]))
    assert choose(other) != chosen


def test_fewer_validation_examples_are_read_of_many_training_examples():
    assert [baselines._examples_of(size) for size in (0, 100_000, 200_000, 1_000_000)] == [5000, 5000, 4000, 1000]


def test_without_validation_examples_constants_are_the_defaults(corpus):
    chosen = choose(replace(corpus, valid=SplitExamples.none()))
    assert chosen == Chosen() and chosen.strongest is None
    assert chosen.sentences()[-1] == "constants: defaults, for there are no validation examples"
    assert list(make_baselines(corpus, None, Chosen(ridge=None))[1]) == [POPULARITY, RECENT, TRANSITIONS, TEXT]
    assert list(make_baselines(corpus, None, Chosen(text=None))[1]) == [POPULARITY, RECENT, TRANSITIONS, EASE]


def test_a_shop_whose_fashion_changes_has_a_half_life():
    """Half of the training, the older, is of items that nobody chooses any more."""
    rng = np.random.default_rng(0)
    draws = np.concatenate([rng.integers(0, 20, 3000), rng.integers(20, 40, 1200)])
    users = [f"u{number}" for number in range(len(draws))]
    times = RowTimes(np.arange(len(draws)), np.full(len(draws), -1))
    every = SplitExamples.of(users, [[int(item)] for item in rng.integers(0, 40, len(draws))], draws, times)
    parts = [every.take(slice(*ends)) for ends in ((0, 3400), (3400, 3800), (3800, 4200))]
    chosen = choose(corpus_of(*parts, 40))
    assert chosen.popularity_half_life in (0.01, 0.03, 0.1)
    unknown = np.where(draws[:3400] < 20, NO_TIME, np.arange(3400)[::-1])
    partly = replace(parts[0], times=RowTimes(unknown, times.previous[:3400]))
    for train, split in ((parts[0], "by hand"), (partly, "global time 8:1:1")):
        rows = baselines.BaselineExamples.of(corpus_of(train, *parts[1:], 40, split=split))
        assert rows.ordered and (np.diff(rows.ages) < 0).all()
    flat = choose(corpus_of(*(replace(part, times=None) for part in parts), 40))
    assert flat.popularity_half_life is None and flat.transitions.half_life is None
    assert chosen.valid[POPULARITY] > flat.valid[POPULARITY]


@pytest.mark.parametrize("dtype_limit", [2000, 5])
def test_ease_against_a_dense_solution(chain, monkeypatch, dtype_limit):
    corpus, _ = chain
    monkeypatch.setattr(baselines, "_RIDGE_ITEMS", dtype_limit)
    sets = np.zeros((len(corpus.valid), 40))
    train = corpus.train
    for user, history, target in zip(train.user_numbers, train.histories, train.targets, strict=True):
        sets[user, [*history, target]] = 1
    wanted = np.zeros((40, 40))
    for item in range(40):  # the regression of each item on all others
        others = np.delete(np.arange(40), item)
        gram = sets[:, others].T @ sets[:, others] + 30 * np.eye(39)
        wanted[others, item] = np.linalg.solve(gram, sets[:, others].T @ sets[:, item])
    rows = baselines.BaselineExamples.of(corpus)
    ease = baselines.Ease(rows, ease_weights(rows.together(), 30.0))
    np.testing.assert_allclose(ease.weights, wanted, atol=2e-5)
    lists = ease.rank(Queries(corpus.test.histories.tolist()), 5).items
    for history, items in zip(corpus.test.histories, lists, strict=True):
        scores = np.isin(np.arange(40), history) @ wanted
        np.testing.assert_allclose(scores[items], -np.sort(-scores)[:5], atol=1e-4)


def test_of_more_candidates_than_can_be_compared_ease_and_texts_are_left_out(chain, monkeypatch):
    corpus, _ = chain
    monkeypatch.setattr(baselines, "ALL_PAIRS", 39)
    for of in (corpus, replace(corpus, valid=SplitExamples.none())):
        chosen = choose(of)
        assert chosen.ridge is None and chosen.text is None
        assert list(make_baselines(of, None, chosen)[1]) == [POPULARITY, RECENT, TRANSITIONS] == chosen.names
        assert "EASE: left out, of more than 39 candidates" in chosen.sentences()
        assert "neighbours by text: left out, of more than 39 candidates" in chosen.sentences()
        assert "mixture of baselines: left out, of more than 39 candidates" in chosen.sentences()
    assert "neighbours by text: left out, of items without texts" in Chosen(text=None).sentences()


def test_items_without_texts_leave_neighbours_by_text_out(chain):
    corpus, _ = chain
    silent = replace(corpus, items=corpus.items.assign(title="", description=""))
    chosen = choose(silent)
    assert chosen.text is None and TEXT not in make_baselines(silent, None, chosen)[1] and EASE in chosen.names


@pytest.fixture(scope="module")
def worded():
    """A corpus in which the next item is a new one that shares words with the two newest, most of all the newest."""
    rng = np.random.default_rng(6)
    words, titles = [f"word{n}" for n in range(12)], []
    for _ in range(60):
        titles.append(" ".join(rng.choice(words, 3, replace=False)))
    bags = [set(title.split()) for title in titles]
    alike = np.array([[len(a & b) for b in bags] for a in bags], dtype=float) - 10 * np.eye(60)
    chains = []
    for _ in range(150):
        chain = [int(rng.integers(60))]
        while len(chain) < 8:
            score = alike[chain[-1]] + 0.4 * alike[chain[-2]] if len(chain) > 1 else alike[chain[-1]].copy()
            score[chain] = -9
            chain.append(int(np.argmax(score + rng.gumbel(size=60) * 0.2)))
        chains.append(chain)
    corpus = leave_last_out(chains, 60)
    return replace(corpus, items=corpus.items.assign(title=titles, description=""))


TEXTS = [
    TextConstants(),
    TextConstants(0.0, 0.1, False),
    TextConstants(0.6, 0.3, True),
    TextConstants(1.0, 0.0, False),
]


@pytest.mark.parametrize("how", TEXTS)
@pytest.mark.parametrize("grouped", [False, True])
def test_neighbours_by_text_against_plain_loops(worded, how, grouped):
    from sklearn.feature_extraction.text import TfidfVectorizer

    table = SidTable(np.array([[n // 8, n % 8 // 2] for n in range(60)]), [f"i{n}" for n in range(60)])
    number = table.sid_numbers if grouped else np.arange(60)
    size, titles = number.max() + 1, worded.items["title"]
    texts = [" ".join(titles[number == candidate]) for candidate in range(size)]
    weights = TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2)).fit_transform(texts).toarray()
    alike, popular = weights @ weights.T, np.bincount(number[worded.train.targets], minlength=size)
    made = make_baselines(worded, table if grouped else None, Chosen(None, text=how))[1][TEXT]
    found = made.rank(Queries(worded.test.histories.tolist()), 6).items
    for history, items in zip(worded.test.histories, found, strict=True):
        scores = sum(how.score_decay**back * alike[number[item]] for back, item in enumerate(history[::-1].tolist()))
        scores = (1 - how.popularity) * scores / scores.sum() + how.popularity * popular / popular.sum()
        if how.exclude_seen:
            scores[number[history]] = -1
        listed = list(dict.fromkeys(number[items].tolist()))
        np.testing.assert_allclose(scores[listed], -np.sort(-scores)[:6], atol=1e-6)


def renumbered(corpus, order):
    """The same corpus with items in another order: int64 (N,), former numbers."""
    number = np.argsort(order)
    splits = {
        name: replace(rows, items=number[rows.items].astype(np.int32), targets=number[rows.targets].astype(np.int32))
        for name, rows in corpus.splits().items()
    }
    return replace(corpus, items=corpus.items.iloc[order].reset_index(drop=True), **splits)


@pytest.fixture(scope="module")
def tied():
    """A log in which many items are equally popular, follow one another equally often and are equally alike."""
    rng = np.random.default_rng(3)
    corpus = leave_last_out([rng.choice(90, 7, p=np.repeat([2, 1, 0], 30) / 90).tolist() for _ in range(60)], 90)
    titles = [f"word{n % 3} word{3 + n % 4} name{n // 2}" for n in range(90)]
    return replace(corpus, items=corpus.items.assign(title=titles, description=""))


@pytest.mark.parametrize("grouped", [False, True])
def test_lists_and_constants_do_not_depend_on_how_items_are_numbered(tied, grouped, monkeypatch):
    monkeypatch.setattr(baselines, "_NEAREST", 10)  # at which nearly all texts have ties
    codes = np.array([[n // 8, n % 8 // 2] for n in range(90)])

    def made(order):
        corpus, ids = renumbered(tied, order), tied.items["item_id"].to_numpy()[order]
        chosen, rankers = make_baselines(corpus, SidTable(codes[order], list(ids)) if grouped else None)
        queries = Queries(corpus.test.histories.tolist())
        allowed = Allowed.leaving_out([history[-1:] for history in queries.histories], corpus.n_items)
        return chosen, {
            (name, limit is None): [ids[items].tolist() for items in ranker.rank(queries, 20, limit).items]
            for name, ranker in rankers.items()
            for limit in (None, allowed)
        }

    chosen, lists = made(np.arange(90))
    for seed in range(5):
        others, their_lists = made(np.random.default_rng(seed).permutation(90))
        assert others == chosen
        assert their_lists == lists


@pytest.fixture(scope="module")
def long_histories(tmp_path_factory):
    """Users of 24 items, of whose histories models read three; and the same with all."""
    folder, rng = tmp_path_factory.mktemp("long"), np.random.default_rng(0)
    items = "".join(f"{n},word{n % 5} word{5 + n % 7}\n" for n in range(40))
    (folder / "items.csv").write_text("item_id,title\n" + items)
    lines = [
        f"u{user},{item},{1_600_000_000 + 60 * (25 * user + step)}\n"
        for user in range(40)
        for step, item in enumerate(rng.permutation(40)[:24])
    ]
    (folder / "interactions.csv").write_text("user_id,item_id,timestamp\n" + "".join(lines))
    files = {name: str(folder / f"{name}.csv") for name in ("items", "interactions")}
    found = {}
    for most in (3, 30):
        output = str(folder / f"corpus{most}")
        run_prepare(PrepareConfig(source="tables", **files, split="leave_last_out", max_history=most, output=output))
        found[most] = output
    return found


@pytest.mark.parametrize("stays", [False, True], ids=["one block", "several"])
def test_rankers_know_all_that_was_seen_however_much_models_read(long_histories, stays):
    short, whole = (Corpus.load(long_histories[most]) for most in (3, 30))
    if stays:
        short = in_blocks(long_histories[3])
    rows = short.chosen("test", np.arange(10, 40))
    expected = whole.test.take(np.arange(10, 40))
    assert all(len(history) == 3 for history in rows.histories)
    assert [past.tolist() for past in rows.seen] == [history.tolist() for history in expected.histories]
    every = short.training_on(["valid", "test"]).train
    assert sorted(map(len, every.seen)) == sorted(map(len, whole.training_on(["valid", "test"]).train.histories))
    assert set(rows.take(slice(1, 2)).compact().items.tolist()) == set(rows.seen[1].tolist())
    chosen, rankers = make_baselines(short)
    assert chosen.transitions.exclude_seen and chosen.popularity_exclude_seen and chosen.ease_exclude_seen
    their_rankers = make_baselines(whole, None, chosen)[1]
    queries, limit = split_queries(rows), Allowed.leaving_out(rows.seen, 40)
    for name, ranker in rankers.items():
        lists = rank_rows(ranker, rows, 10, 40).items
        if name not in (TRANSITIONS, MIXTURE):  # whose windows of training differ
            assert lists == their_rankers[name].rank(Queries(expected.histories.tolist()), 10).items
        if name != RECENT:
            assert not any(set(items) & set(past.tolist()) for items, past in zip(lists, rows.seen, strict=True))
            assert lists == ranker.rank(queries, 10, limit).items


@pytest.mark.parametrize("last", [False, True, "history"])
def test_what_ranks_seen_items_last_is_measured_as_listed(long_histories, last):
    corpus = Corpus.load(long_histories[3])
    rows = baselines.BaselineExamples.of(corpus)
    examples = corpus.valid.take(np.arange(30))
    how = TransitionConstants(score_decay=0.3, popularity=0.1, exclude_seen=last)
    grid = baselines.TransitionGrid(rows, examples, None)
    ranker = baselines.TransitionCounts(rows, how)
    assert grid.value(how) == pytest.approx(baselines.valid_ndcg(ranker, rows, examples))
    popularity = baselines.Popularity(rows, None, last)
    ease = baselines.Ease(rows, ease_weights(rows.together(), 30.0), None, last)
    found = baselines._ridge_values(rows, examples, grid.scored, rows.together())[30.0, last]
    assert found == pytest.approx(baselines.valid_ndcg(ease, rows, examples))
    queries = Queries(examples.histories.tolist(), seen=examples.seen.tolist())
    past = {True: queries.seen, "history": queries.histories}.get(last)
    for baseline in (ranker, popularity, ease):
        lists = baseline.rank(queries, 10).items
        assert past is None or not any(set(items) & set(own) for items, own in zip(lists, past, strict=True))


def test_neighbours_at_the_same_distance_are_all_kept_or_none():
    texts = ["red lamp", "blue lamp", "green lamp", "red lamp shade", "shade", *["oak table"] * 30]
    nearest = sparse_rows(nearest_texts(texts, 2))
    assert nearest[1] == {0, 2} and nearest[4] == {3}
    assert not nearest[5]  # 29 are as alike as the second
    assert all(len(others) == 29 for others in sparse_rows(nearest_texts(texts, 4))[5:])


def sparse_rows(found):
    """The neighbours of each text."""
    return [set(others.tolist()) for others in np.split(found.indices, found.indptr[1:-1])]


def test_constants_of_neighbours_by_text_are_the_best_of_all(worded):
    chosen = choose(worded)
    rows = baselines.BaselineExamples.of(worded)
    examples = baselines._validation(rows)
    reached = {}
    for decay, share, last in product(baselines.TEXT_DECAY, baselines.SHARES, (False, True)):
        how = TextConstants(decay, share, last)
        ranker = make_baselines(worded, None, replace(chosen, text=how))[1][TEXT]
        reached[how] = baselines.valid_ndcg(ranker, rows, examples)
    assert chosen.valid[TEXT] == pytest.approx(max(reached.values()), abs=1e-9)
    assert reached[chosen.text] == pytest.approx(chosen.valid[TEXT], abs=1e-9)
    assert min(reached.values()) < 0.5 * chosen.valid[TEXT]
    assert chosen.text.exclude_seen and 0 < chosen.text.score_decay < 1
    assert f"neighbours by text: decay {chosen.text.score_decay:g}, " in chosen.sentences()[3]
    assert Chosen.from_json(chosen.to_json(), "here") == chosen


@pytest.fixture(scope="module")
def once():
    """A corpus in which everybody chooses each item once at most, the popular ones first."""
    rng = np.random.default_rng(4)
    chance = 0.9 ** np.arange(30)
    chosen = [rng.choice(30, 8, replace=False, p=chance / chance.sum()).tolist() for _ in range(300)]
    return leave_last_out(chosen, 30)


def test_whether_seen_items_are_struck_is_chosen_for_each_baseline(once, chosen):
    repeating, chosen = chosen, choose(once)
    assert chosen.popularity_exclude_seen and chosen.ease_exclude_seen and chosen.transitions.exclude_seen
    assert all("seen items after all others" in sentence for sentence in chosen.sentences()[:3])
    table = SidTable(np.array([[n // 4, n % 4 // 2] for n in range(30)]), [f"i{n}" for n in range(30)])
    for groups in (None, table):
        made = make_baselines(once, groups, chosen)[1]
        numbers = baselines.BaselineExamples.of(once, groups).numbers
        for name in (POPULARITY, TRANSITIONS, EASE):
            for history, items in zip(
                once.test.histories, made[name].rank(Queries(once.test.histories), 5).items, strict=True
            ):
                assert not set(numbers[items]) & set(numbers[history])
    assert not repeating.popularity_exclude_seen and not repeating.transitions.exclude_seen
    masked = choose(once, masked=True)
    assert not masked.popularity_exclude_seen and not masked.ease_exclude_seen
    assert masked.valid[POPULARITY] == pytest.approx(chosen.valid[POPULARITY])


def test_pairs_of_some_sources_are_those_of_all(chain):
    rows, rng = baselines.BaselineExamples.of(chain[0]), np.random.default_rng(0)
    every, some = np.ones(40, dtype=bool), rng.random(40) < 0.3
    pairs = TransitionPairs(rows.parts(), 40, 10, every)
    for how in ((10, 0.6, 0.3, None), (5, 0.3, 0.0, 0.3), (1, 0.0, 1.0, None)):
        wanted = pairs.counts(*how).toarray() * some[:, None]
        np.testing.assert_array_equal(pairs.only(some).counts(*how).toarray(), wanted)
        np.testing.assert_array_equal(TransitionPairs(rows.parts(), 40, 10, some).counts(*how).toarray(), wanted)


def test_the_mixture_is_ahead_of_popularity_where_the_next_item_follows_from_the_last(chain, chosen):
    corpus, _ = chain
    rankers = make_baselines(corpus, None, chosen)[1]
    reached = {name: ndcg_of(rankers[name], corpus, "test") for name in (MIXTURE, POPULARITY)}
    assert reached[MIXTURE] > 2 * reached[POPULARITY]
    weights = np.array(chosen.mixture.weights)
    assert not weights[:, :2].any() and weights.shape == (len(FEATURES), len(EXPERTS))
    # Its lists are those of the pool, and its metric is of examples that its weights were not fitted to.
    rows = baselines.BaselineExamples.of(corpus)
    counts = baselines.MixedCounts(rows)
    queries = Queries(corpus.test.histories.tolist()[:20])
    pooled = pooled_log_probs(counts.experts.with_weights(asdict(chosen.mixture)), counts.numbers, queries)
    best = pooled[:, counts.position].topk(8).indices
    assert rankers[MIXTURE].rank(queries, 8).items == best.tolist()
    assert (chosen.mixture, chosen.valid[MIXTURE]) == counts.fit(corpus.valid)
    weight = f"transitions {chosen.mixture.typical[EXPERTS.index('transitions')]:.2f}"
    reported = next(sentence for sentence in chosen.sentences() if sentence.startswith(MIXTURE))
    assert weight in reported and reported.endswith(f"; validation NDCG@10 {chosen.valid[MIXTURE]:.4f}")


def test_the_mixture_is_fitted_to_fewer_examples_of_many_candidates(chain, monkeypatch, caplog):
    counts = baselines.MixedCounts(baselines.BaselineExamples.of(chain[0]))
    monkeypatch.setattr(baselines, "_MIXED_VALUES", 40 * 150)
    sampled, _ = counts.fit(chain[0].valid)
    monkeypatch.setattr(baselines, "_MIXED_VALUES", 40 * 20)
    caplog.set_level("INFO", "minionerec")
    assert len(sampled.typical) == len(EXPERTS) and counts.fit(chain[0].valid) is None
    assert "of 20 validation examples have their target among the candidates, and 50 are needed" in caplog.text
    found = Chosen(mixture=None).sentences()
    assert "mixture of baselines: left out, of too few validation examples" in found


def test_examples_of_seen_items_are_lost_where_these_may_not_be_listed(chain):
    corpus, _ = chain
    rows = baselines.BaselineExamples.of(corpus, masked=True)
    seen = [target in past for past, target in zip(corpus.valid.seen, corpus.valid.targets.tolist(), strict=True)]
    fitted, value = baselines.MixedCounts(rows).fit(corpus.valid)
    alone = corpus.valid.take(np.flatnonzero(np.logical_not(seen)))
    others, of_them = baselines.MixedCounts(replace(rows, masked=False)).fit(alone)
    assert 0 < sum(seen) < len(seen) and others == fitted
    assert value == pytest.approx(of_them * len(alone) / len(seen))


def test_constants_without_texts_are_read(chosen):
    content = chosen.to_json()
    del content["text"], content["mixture"]
    assert not {TEXT, MIXTURE} & set(Chosen.from_json(content, "here").names)
    with pytest.raises(ArtefactError, match=r"here: holds no constants"):
        Chosen.from_json({}, "here")
    shorter = replace(chosen, mixture=MIXED).to_json()
    shorter["mixture"]["weights"].pop()
    with pytest.raises(ArtefactError, match=r"here: holds no constants.*weights of a mixture are not 11 x 20"):
        Chosen.from_json(shorter, "here")


def test_the_strongest_is_that_of_validation(chosen):
    assert chosen.strongest == max(chosen.valid, key=chosen.valid.__getitem__) and Chosen().strongest is None
    assert chosen.to_json()["strongest"] == chosen.strongest


@pytest.mark.slow
def test_no_point_of_the_grid_is_better_on_the_demo_than_the_chosen_one(tmp_path):
    run_prepare(PrepareConfig(source="demo", output=str(tmp_path / "corpus")))
    corpus = Corpus.load(tmp_path / "corpus")
    chosen, rows = choose(corpus), baselines.BaselineExamples.of(corpus)
    examples = baselines._validation(rows)
    assert chosen.examples == len(corpus.valid)
    grid = baselines.TransitionGrid(rows, examples, chosen.popularity_half_life)
    points = grid_points(rows)
    assert len(points) == 1200 * len(rows.seen_settings)
    assert max(map(grid.value, points)) == grid.value(chosen.transitions) == chosen.valid[TRANSITIONS]
    every = product(baselines.HALF_LIVES, rows.seen_settings)
    assert chosen.valid[POPULARITY] == max(
        baselines.valid_ndcg(baselines.Popularity(rows, *how), rows, examples) for how in every
    )
    together = rows.together()
    every = product(baselines.RIDGES, rows.seen_settings)
    reached = {
        how: baselines.valid_ndcg(baselines.Ease(rows, ease_weights(together, how[0]), 0.1, how[1]), rows, examples)
        for how in every
    }
    assert chosen.popularity_half_life == 0.1 and reached[chosen.ridge, chosen.ease_exclude_seen] == max(
        reached.values()
    )
