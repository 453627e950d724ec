"""The statements that turn interactions into a corpus, in the words that DuckDB and Spark share.

Tables, in the order in which they are made:

- `raw`: what a source says, cleaned. `place` (its order), `person` (the user's id), `item` (row of the item table),
  `stamp` (time in ticks; 0 where there is none).
- `people`: `person`, and `who`, the place of the user's first interaction, which stands for the user from then on.
- `visits`: `place`, `who`, `item`, `stamp` of the interactions that pass the window and the core.
- `goods`: `item` → `number`, the item index of the corpus, and the ranks of its id, `word` as text, `digits` as number.
- `walked`: a user's interactions numbered by `spot`, from 0, oldest first; `step` is the spot at which the step begins
  that the interaction belongs to: its own, or with ties together the first of its moment. Above 0 it is a row's target.
- `lined`: the same numbered in the order of rows, `line`; what is nobody's target comes last.
"""

from dataclasses import dataclass

from minionerec.data.times import NO_TIME
from minionerec.data.units import BEYOND, DATE_FORMS, SMALL, unit_borders

PEOPLE = "SELECT person, min(place) AS who FROM raw GROUP BY person"
ITEMS = "SELECT item, count(*) AS chosen FROM visits GROUP BY item"
COUNT = "SELECT count(*), count(DISTINCT who) FROM visits"
DIGITS = "substr(md5(p.person), 1, 8)"
"""What tells a user's shard."""


def whole(number: int) -> str:
    """A whole number as a literal."""
    return f"CAST({number} AS BIGINT)"


def real(number: float) -> str:
    """A number as a literal of double precision."""
    return f"CAST('{number!r}' AS DOUBLE)"


def units(stamp: str) -> str:
    """The place in `UNITS` of the unit that a number looks like, `SMALL` or `BEYOND`, as `unit_numbers` has it."""
    cases = [
        f"WHEN {stamp} > {real(last)} THEN {BEYOND} WHEN {stamp} >= {real(first)} THEN {unit}"
        for unit, (first, last) in enumerate(unit_borders())
    ]
    return f"CASE {' '.join(reversed(cases))} ELSE {SMALL} END"


def has_form(stamp: str, form: str, divide: str) -> str:
    """Whether a number has the digits of a form of `DATE_FORMS`, as `minionerec.data.units.has_form` has it."""
    number = f"CAST({stamp} AS BIGINT)"
    year, *fields = DATE_FORMS[form]
    parts = {100**place: each for place, each in enumerate(reversed(fields))}
    held = [f"({number} {divide} {whole(n)}) % 100 BETWEEN {least} AND {most}" for n, (_, least, most) in parts.items()]
    return " AND ".join([*held, f"{number} {divide} {whole(100 ** len(fields))} BETWEEN {year[1]} AND {year[2]}"])


def visits(first: float | None, last: float | None) -> str:
    """All interactions of `raw` in a window, both ends included, in ticks; compared as doubles, as numpy does."""
    bounds = [] if first is None else [f"CAST(r.stamp AS DOUBLE) >= {real(first)}"]
    bounds += [] if last is None else [f"CAST(r.stamp AS DOUBLE) <= {real(last)}"]
    where = f" WHERE {' AND '.join(bounds)}" if bounds else ""
    return f"SELECT r.place, p.who, r.item, r.stamp FROM raw r JOIN people p ON r.person = p.person{where}"


def core_round(k: int) -> str:
    """The interactions of `visits` whose user and item both have k of them."""
    often = "(SELECT {0} FROM visits GROUP BY {0} HAVING count(*) >= {1})"
    return (
        "SELECT v.place, v.who, v.item, v.stamp FROM visits v "
        f"JOIN {often.format('who', k)} a ON v.who = a.who JOIN {often.format('item', k)} b ON v.item = b.item"
    )


def seconds(divide: str, ticks: int, real_stamps: bool) -> str:
    """The whole seconds, rounded down, of `stamp`, as `minionerec.data.times.whole_seconds` has them.

    Args:
        divide: The engine's division of whole numbers.
        ticks: Ticks in a second.
        real_stamps: Whether stamps are doubles; numpy's division of them is rebuilt step by step.
    """
    if real_stamps:
        t = real(float(ticks))
        less = f"CASE WHEN stamp % {t} < 0 THEN {real(1.0)} ELSE {real(0.0)} END"
        quotient = f"((stamp - stamp % {t}) / {t} - {less})"
        found = f"CAST(floor({quotient} + CASE WHEN {quotient} - floor({quotient}) > 0.5 THEN 1 ELSE 0 END) AS BIGINT)"
    elif ticks == 1:
        found = "stamp"
    else:
        found = f"(stamp {divide} {whole(ticks)} - CASE WHEN stamp % {whole(ticks)} < 0 THEN 1 ELSE 0 END)"
    return f"greatest({found}, {NO_TIME + 1})"


@dataclass(frozen=True)
class Walk:
    """How users' sequences are made.

    Attributes:
        moment: The expression of an interaction's whole second; None where none is known.
        together: Whether what a user chose at one moment is one step.
        last_out: Whether each user's last steps are told, for the split "leave_last_out".
        shuffled: Whether what finds the ties and their places is wanted.
    """

    moment: str | None
    together: bool
    last_out: bool
    shuffled: bool

    @property
    def extra(self) -> list[str]:
        """The columns of `walked` that not every corpus needs."""
        return ["behind"] * self.last_out + ["came", "run", "begins"] * self.shuffled

    def walked(self) -> str:
        """The statement of `walked`.

        Beside what the module says: `tied`, whether the interaction before is of the same moment; `by_word`,
        `by_digits` and `by_place`, whether ids and places rise (1) or fall (-1) from it; `behind`, steps to the user's
        last; `came`, the first place of the user; `run`, how many interactions its moment holds, from spot `begins`.
        """
        steps = "row_number() OVER w" if not self.together else "rank() OVER (PARTITION BY who ORDER BY moment)"
        behind = (
            "dense_rank() OVER (PARTITION BY who ORDER BY moment DESC) - 1"
            if self.together
            else "count(*) OVER (PARTITION BY who) - row_number() OVER w"
        )
        columns = {
            "spot": "CAST(row_number() OVER w - 1 AS INT)",
            "step": f"CAST({steps} - 1 AS INT)",
            "tied": "CASE WHEN moment = lag(moment) OVER w THEN 1 ELSE 0 END",
            **{f"by_{name}": f"CAST(sign({name} - lag({name}) OVER w) AS INT)" for name in ("word", "digits", "place")},
        }
        if self.last_out:
            columns["behind"] = f"CAST({behind} AS INT)"
        if self.shuffled:
            columns["came"] = "min(place) OVER (PARTITION BY who)"
            columns["run"] = "count(*) OVER (PARTITION BY who, moment)"
            columns["begins"] = "CAST(rank() OVER (PARTITION BY who ORDER BY moment) - 1 AS INT)"
        made = ", ".join(f"{expression} AS {name}" for name, expression in columns.items())
        inner = (
            f"SELECT v.place, v.who, g.number AS item, v.stamp, g.word, g.digits, {self.moment or whole(0)} AS moment "
            "FROM visits v JOIN goods g ON v.item = g.item"
        )
        return (
            f"SELECT place, who, item, stamp, moment, {made} FROM ({inner}) AS timed "
            "WINDOW w AS (PARTITION BY who ORDER BY stamp, place)"
        )


AUDIT = (
    "SELECT tied, by_word, by_digits, by_place, count(*) FROM walked WHERE spot > 0 "
    "GROUP BY tied, by_word, by_digits, by_place"
)
TIED = "SELECT place FROM walked WHERE run > 1 ORDER BY came, spot"


def shuffled(extra: list[str]) -> str:
    """`walked` with the items of each tie in the order of `draws` (`place`, `draw`); all else stays where it is."""
    moved = (
        "SELECT w.who, w.item, w.begins + row_number() OVER (PARTITION BY w.who, w.begins ORDER BY d.draw, w.spot) - 1 "
        "AS target FROM walked w JOIN draws d ON w.place = d.place"
    )
    rest = "".join(f", w.{name}" for name in extra)
    return (
        f"SELECT w.place, w.who, coalesce(m.item, w.item) AS item, w.stamp, w.moment, w.spot, w.step{rest} "
        f"FROM walked w LEFT JOIN ({moved}) AS m ON w.who = m.who AND w.spot = m.target"
    )


def lines(last_out: bool) -> tuple[str, str]:
    """What `lined` is made of, and its order: rows before what is none; split by split where that is known."""
    split = "CASE WHEN behind = 0 THEN 2 WHEN behind = 1 THEN 1 ELSE 0 END" if last_out else "0"
    found = (
        "SELECT place, who, item, stamp, moment, spot, step, CASE WHEN step > 0 THEN 0 ELSE 1 END AS idle, "
        f"{split} AS part FROM walked"
    )
    return found, "idle, part, stamp, place"


PARTS = "SELECT part, count(*) FROM lined WHERE step > 0 GROUP BY part"
"""How many rows `lined` has, by split where that is known."""


@dataclass(frozen=True)
class Borders:
    """Where splits begin among the lines, and which of their rows stay.

    Attributes:
        valid: The first line of valid.
        test: The first line of test.
        rows: Rows of all.
        most: Rows of valid and of test that stay at most, as `minionerec.data.splits.evenly_thinned` has it; at 0 all.
        divide: The engine's division of whole numbers.
    """

    valid: int
    test: int
    rows: int
    most: int
    divide: str

    def _by_split(self, train: str, valid: str, test: str) -> str:
        """An expression for each split, and -1 for lines that are no rows."""
        return (
            f"CASE WHEN line >= {self.rows} THEN -1 WHEN line < {self.valid} THEN {train} "
            f"WHEN line < {self.test} THEN {valid} ELSE {test} END"
        )

    def _kept(self, begin: int, end: int, value: str) -> str:
        """A value of the rows of a split that stay, -1 of the others."""
        if not 0 < self.most < end - begin:
            return value
        return f"CASE WHEN (line - {begin}) * {whole(self.most)} % {end - begin} < {self.most} THEN {value} ELSE -1 END"

    def _number(self, begin: int, end: int) -> str:
        if not 0 < self.most < end - begin:
            return f"line - {begin}"
        return self._kept(begin, end, f"((line - {begin}) * {whole(self.most)} {self.divide} {end - begin})")

    @property
    def cut(self) -> str:
        """The split of a line: 0 train, 1 valid, 2 test, -1 none."""
        return self._by_split("0", self._kept(self.valid, self.test, "1"), self._kept(self.test, self.rows, "2"))

    @property
    def number(self) -> str:
        """The row number of a line within its split; -1 where it is no row."""
        return self._by_split("line", self._number(self.valid, self.test), self._number(self.test, self.rows))

    def sizes(self, max_history: int) -> str:
        """Rows of each split, those with full histories, and those whose histories lost items."""
        return (
            f"SELECT cut, count(*), count(CASE WHEN step >= {max_history} THEN 1 END), "
            f"count(CASE WHEN step > {max_history} THEN 1 END) "
            f"FROM (SELECT step, {self.cut} AS cut FROM lined) AS marked WHERE cut >= 0 GROUP BY cut"
        )

    def known(self, max_history: int) -> str:
        """The items of training rows, as targets or in histories.

        Training rows are the first of their user. So every item of a later step is a target of one, and of those of
        the first step the history of the second reaches the newest `max_history`.
        """
        return (
            f"SELECT item FROM lined WHERE line < {self.valid} GROUP BY item UNION "
            f"SELECT l.item FROM lined l JOIN ({self.trained}) AS t ON l.who = t.who "
            f"WHERE l.step = 0 AND l.spot >= t.second - {max_history} GROUP BY l.item"
        )

    @property
    def trained(self) -> str:
        """The users with a training row, and the spot at which their second step begins."""
        return f"SELECT who, min(step) AS second FROM lined WHERE line < {self.valid} GROUP BY who"

    @property
    def asked(self) -> str:
        """How often each item is the target of valid and of test."""
        return (
            f"SELECT cut, item, count(*) AS chosen FROM (SELECT item, {self.cut} AS cut FROM lined) AS marked "
            "WHERE cut > 0 GROUP BY cut, item"
        )

    @property
    def new_users(self) -> str:
        """Rows of valid and of test whose user has no training row."""
        return (
            f"SELECT cut, count(*) FROM (SELECT who, {self.cut} AS cut FROM lined) AS marked "
            f"LEFT JOIN ({self.trained}) AS t ON marked.who = t.who WHERE cut > 0 AND t.who IS NULL GROUP BY cut"
        )

    @property
    def with_rows(self) -> str:
        """The users with a row, and how many interactions they have: `who`, `spots`."""
        return (
            f"SELECT who, count(*) AS spots FROM (SELECT who, {self.cut} AS cut FROM lined) AS marked "
            "GROUP BY who HAVING max(cut) >= 0"
        )

    def sequences(self, shards: int, first_digits: str) -> str:
        """Interactions of `active`, the users with a row, sorted by shard, user and spot.

        Args:
            shards: How many there are.
            first_digits: `DIGITS` as a number, in the engine's words.
        """
        shard = "0" if shards == 1 else f"{first_digits} % {shards}"
        return (
            f"SELECT CAST({shard} AS INT) AS shard, p.person, l.item, l.moment, CAST({self.number} AS INT) AS number, "
            f"CAST({self.cut} AS TINYINT) AS cut FROM lined l JOIN people p ON l.who = p.who "
            "JOIN active a ON l.who = a.who ORDER BY shard, p.person, l.spot"
        )


ACTIVE = "SELECT count(*), sum(spots) FROM active"
"""How many users have a row, and how many interactions they have together."""
