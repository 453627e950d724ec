"""MovieLens in its three forms and RecBole's atomic files: one set of ratings, the same corpus from each."""

import pytest
from support.builder import build, read_movielens, read_recbole
from support.interactions import corpus_rows

from minionerec.core.errors import DataError
from minionerec.data.source import BadRows
from minionerec.pipeline.config.data import PrepareConfig
from minionerec.pipeline.prepare_data import run_prepare

FILMS = [("1", 'Café "X", The (1995)', "Drama|War"), ("2", "Heat (1995)", "Action"), ("31", "Léon", "")]
RATINGS = [(str(1 + n % 3), FILMS[n * 7 % 3][0], n * 5 % 11) for n in range(30)]


def rated(form):
    return "".join(form.format(*rating) for rating in RATINGS)


def quoted(text):
    return '"' + text.replace('"', '""') + '"'


LATEST = "".join(f"{i},{quoted(t)},{g or '(no genres listed)'}\n" for i, t, g in FILMS)
RECBOLE = "".join(f"{i}\t{t}\t{g.replace('|', ', ')}\n" for i, t, g in FILMS)
FORMS = {
    "ml-1m": (
        ("ratings.dat", rated("{}::{}::4::{}\n")),
        ("movies.dat", "".join("::".join(film) + "\n" for film in FILMS)),
        "latin-1",
    ),
    "ml-latest": (
        ("ratings.csv", "userId,movieId,rating,timestamp\n" + rated("{},{},4.5,{}\n")),
        ("movies.csv", f"movieId,title,genres\n{LATEST}"),
        "utf-8",
    ),
    "ml-100k": (
        ("u.data", rated("{}\t{}\t4\t{}\n")),
        ("u.item", "".join(f"{i}|{t}|01-Jan-1995||http://x|0|1\n" for i, t, _ in FILMS)),
        "latin-1",
    ),
    "recbole": (
        ("ml.inter", "user_id:token\titem_id:token\trating:float\ttimestamp:float\n" + rated("{}\t{}\t4\t{}\n")),
        ("ml.item", f"item_id:token\ttitle:token_seq\tdescription:token_seq\n{RECBOLE}"),
        "utf-8",
    ),
}


def write(folder, form):
    *files, encoding = FORMS[form]
    for name, text in files:
        (folder / name).write_text(text, encoding=encoding)
    return tuple(folder / name for name, _ in files)


def rows_by_loop():
    past, rows = {}, []
    for user, item, _ in sorted(RATINGS, key=lambda rating: rating[2]):
        if history := past.setdefault(user, []):
            rows.append((user, history[-10:], item))
        history.append(item)
    return rows


@pytest.mark.parametrize("form", list(FORMS))
def test_every_form_gives_the_same_corpus(tmp_path, form):
    interactions, items = write(tmp_path, form)
    source = "recbole" if form == "recbole" else "movielens"
    paths = {"interactions": str(interactions), "items": str(items), "output": str(tmp_path / "out")}
    run_prepare(PrepareConfig(source=source, **paths))
    read = read_recbole if source == "recbole" else read_movielens
    corpus = build(read(interactions, items)).corpus()
    assert corpus.items["item_id"].tolist() == ["1", "2", "31"]
    assert corpus.items["title"].tolist() == [title for _, title, _ in FILMS]
    genres = ["Drama, War", "Action", ""] if form != "ml-100k" else ["", "", ""]
    assert corpus.items["description"].tolist() == genres
    assert corpus_rows(corpus) == rows_by_loop()


@pytest.mark.parametrize(
    ("form", "line", "message", "kind"),
    [
        ("ml-1m", "1::2::4::soon", r"ratings\.dat, line 31, column 'timestamp': 'soon' is not a number", "bad_time"),
        ("ml-1m", "1::9::4::5", r"ratings\.dat, line 31, column 'movieId': item '9' is not in ", "unknown_item"),
        ("ml-1m", "::2::4::5", r"ratings\.dat, line 31, column 'userId': the id is empty", "missing_id"),
        ("ml-latest", ",2,4,5", r"ratings\.csv, line 32, column 'userId': the id is empty", "missing_id"),
        ("ml-100k", "1\t\t4\t5", r"u\.data, line 31, column 'movieId': the id is empty", "missing_id"),
        ("recbole", "1\t9\t4\t5", r"ml\.inter, line 32, column 'item_id': item '9' is not in", "unknown_item"),
    ],
)
def test_bad_rows_are_named_and_may_be_dropped(tmp_path, form, line, message, kind):
    interactions, items = write(tmp_path, form)
    with open(interactions, "a") as file:
        file.write(line + "\n")
    read = read_recbole if form == "recbole" else read_movielens
    with pytest.raises(DataError, match=message):
        read(interactions, items)
    bad = BadRows(1)
    assert len(read(interactions, items, bad).users) == 30
    assert bad.counts() == {"bad_rows": 1, f"bad_rows_{kind}": 1}


def test_a_film_twice(tmp_path):
    interactions, items = write(tmp_path, "ml-1m")
    with open(items, "a") as file:
        file.write("2::Heat again::Action\n")
    message = r"movies\.dat, line 4: item '2' is already in .*movies\.dat, line 2\. Keep one"
    with pytest.raises(DataError, match=message):
        read_movielens(interactions, items)
    assert len(read_movielens(interactions, items, BadRows(1)).items) == 3


def test_recbole_without_items_and_with_histories(tmp_path):
    interactions, _ = write(tmp_path, "recbole")
    source = read_recbole(interactions)
    assert source.items["item_id"].tolist() == list(dict.fromkeys(item for _, item, _ in RATINGS))
    assert source.items["title"].tolist() == ["", "", ""]
    (tmp_path / "s.inter").write_text("user_id:token\titem_id_list:token_seq\titem_id:token\n1\t2 3\t4\n")
    with pytest.raises(DataError, match=r"s\.inter: column 'item_id_list' means that its rows are histories"):
        read_recbole(tmp_path / "s.inter")
    with pytest.raises(DataError, match="column 'when' is missing; it has user_id, item_id, rating, timestamp"):
        read_recbole(interactions, columns={"time": "when"})


def test_files_of_other_kinds(tmp_path):
    (tmp_path / "ratings.zip").write_text("")
    with pytest.raises(DataError, match=r"unknown kind of MovieLens file; known endings: \.csv, \.dat, \.data, \.item"):
        read_movielens(tmp_path / "ratings.zip", tmp_path / "movies.dat")
    with pytest.raises(DataError, match=r"ratings\.dat: no such file"):
        read_movielens(tmp_path / "ratings.dat", tmp_path / "movies.dat")


@pytest.mark.parametrize("name", ["timestamp", "movieId", "genres"])
def test_a_table_of_other_columns_is_no_file_of_movielens(name, tmp_path):
    interactions, items = write(tmp_path, "ml-latest")
    for path in (interactions, items):
        path.write_text(path.read_text().replace(name, "other", 1))
    with pytest.raises(DataError, match=rf"column '{name}' is missing; it has .*other.*\. Give MovieLens' own file\."):
        read_movielens(interactions, items)
