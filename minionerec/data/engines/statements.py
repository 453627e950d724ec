"""The statements that turn interactions into a corpus, in the SQL that DuckDB and Spark share.

Tables, in the order in which they are made:

- `raw`: the interactions of a source that can be used. `source_row` (its index in the source's order), `user_id`,
  `item` (row of the source's item table), `timestamp` (in ticks; 0 where there is none), and further columns, which
  those of interactions made of it have too: `event` (the number of its event) where only some events are predicted,
  and `context_0`, `context_1`, … (the number of its value in a column that may be a request feature, -1 where there is
  none).
- `users`: `user_id`, and `user_key`, the user's number in the order of ids (UTF-8).
- `interactions`: `source_row`, `user_key`, `item`, `timestamp` of those that pass the window and the core.
- `firsts`: `user_key`, and `first_row`, the source row of the user's first interaction among these.
- `items`: `item` → `item_index` of the corpus, and the ranks of its id, `text_rank` as text, `number_rank` as number.
- `sequences`: a user's interactions, oldest first, numbered by `position` from 0; `step` is the position at which the
  step begins that the interaction belongs to: its own, or with ties together the first of its second. An interaction
  whose step is above 0 is the target of an example, if its event is predicted.
- `ordered`: the same numbered by `example`, the order of examples; interactions that are no target are last.
- `active`: the users with an example (`Borders.known`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from minionerec.data.names import SPLITS
from minionerec.data.times import NO_TIME

USERS = "SELECT user_id FROM raw GROUP BY user_id"
FIRSTS = "SELECT user_key, min(source_row) AS first_row FROM interactions GROUP BY user_key"
ITEM_COUNTS = "SELECT item, count(*) AS purchases FROM interactions GROUP BY item"
COUNT = "SELECT (SELECT count(*) FROM interactions), (SELECT count(*) FROM firsts)"
SHARD_DIGITS = "substr(md5(u.user_id), 1, 8)"
"""The hexadecimal digits that decide a user's shard."""


def whole(number: int) -> str:
    """A whole number as a literal."""
    return f"CAST({number} AS BIGINT)"


def real(number: float) -> str:
    """A number as a literal of double precision."""
    return f"CAST('{number!r}' AS DOUBLE)"


def _with(further: Iterable[str], table: str = "") -> str:
    """Further columns of a query, of a table where one is named."""
    return "".join(f", {table}{name}" for name in further)


def raw(reals: bool, further: Sequence[str]) -> str:
    """The interactions of `batches` that stay.

    Args:
        reals: Whether times are doubles: one batch of doubles makes all doubles, as one column of all would be.
        further: Their further columns.
    """
    timestamp = "coalesce(real_time, CAST(whole_time AS DOUBLE))" if reals else "whole_time"
    return f"SELECT source_row, user_id, item, {timestamp} AS timestamp{_with(further)} FROM batches WHERE item >= 0"


def distinct(table: str, events: bool) -> str:
    """Interactions of a table like `raw`, of those of one user, item, timestamp (and event) the first."""
    same = f"user_id, item, timestamp{', event' * events}"
    firsts = f"SELECT min(source_row) AS first_row FROM {table} GROUP BY {same}"
    return f"SELECT r.* FROM {table} r JOIN ({firsts}) AS f ON r.source_row = f.first_row"


def interactions(first: float | None, last: float | None, timestamp: str, further: Sequence[str]) -> str:
    """All interactions of `raw` in a window.

    Args:
        first: The first tick, included, compared as a double; open if None.
        last: The last tick, included; open if None.
        timestamp: The time that they have from then on.
        further: Their further columns.
    """
    bounds = [] if first is None else [f"CAST(r.timestamp AS DOUBLE) >= {real(first)}"]
    bounds += [] if last is None else [f"CAST(r.timestamp AS DOUBLE) <= {real(last)}"]
    where = f" WHERE {' AND '.join(bounds)}" if bounds else ""
    return (
        f"SELECT r.source_row, CAST(u.user_key AS INT) AS user_key, r.item, {timestamp} AS timestamp"
        f"{_with(further, 'r.')} FROM raw r JOIN users u ON r.user_id = u.user_id{where}"
    )


def core_round(k: int) -> str:
    """The interactions whose user and item both have k of them."""
    often = "(SELECT {0} FROM interactions GROUP BY {0} HAVING count(*) >= {1})"
    return (
        "SELECT n.* FROM interactions n "
        f"JOIN {often.format('user_key', k)} a ON n.user_key = a.user_key "
        f"JOIN {often.format('item', k)} b ON n.item = b.item"
    )


MET_ITEMS = """
SELECT item FROM (
    SELECT n.item, row_number() OVER (ORDER BY f.first_row, n.timestamp, n.source_row) AS met FROM (
        SELECT i.item, min(f.first_row) AS first_row FROM interactions i JOIN firsts f ON i.user_key = f.user_key
        GROUP BY i.item
    ) AS m JOIN firsts f ON m.first_row = f.first_row
    JOIN interactions n ON m.item = n.item AND f.user_key = n.user_key
) AS by_first_user GROUP BY item ORDER BY min(met)
"""
"""Items in the order in which they first appear when one user is read after another, each from old to new."""


def seconds(timestamp: str, divide: str, ticks: int, reals: bool) -> str:
    """The whole seconds of a time, rounded down, above `NO_TIME`; of doubles as numpy divides them, step by step.

    Args:
        timestamp: The time.
        divide: The engine's division of whole numbers.
        ticks: Ticks in a second.
        reals: Whether times are doubles.
    """
    if reals:
        t = real(float(ticks))
        less = f"CASE WHEN {timestamp} % {t} < 0 THEN {real(1.0)} ELSE {real(0.0)} END"
        quotient = f"(({timestamp} - {timestamp} % {t}) / {t} - {less})"
        found = f"CAST(floor({quotient} + CASE WHEN {quotient} - floor({quotient}) > 0.5 THEN 1 ELSE 0 END) AS BIGINT)"
    elif ticks == 1:
        found = timestamp
    else:
        less = f"CASE WHEN {timestamp} % {whole(ticks)} < 0 THEN 1 ELSE 0 END"
        found = f"({timestamp} {divide} {whole(ticks)} - {less})"
    return f"greatest({found}, {whole(NO_TIME + 1)})"


_LAST_OUT = "CASE WHEN steps_left = 0 THEN 2 WHEN steps_left = 1 THEN 1 ELSE 0 END"
"""The split of an example of "leave_last_out"."""


@dataclass(frozen=True)
class Sequences:
    """How users' sequences are made.

    Attributes:
        time: The expression of an interaction's whole second; None where none is known.
        together: Whether the interactions of a user in one second are one step.
        last_out: Whether each user's last steps are needed, for the split "leave_last_out".
        shuffled: Whether ties and their positions are needed.
        by_user: Whether examples of one time are in the order of their users.
        targets: Numbers of the events that are predicted; None for all interactions.
        contexts: The columns of `interactions` that may be request features.
    """

    time: str | None
    together: bool
    last_out: bool
    shuffled: bool
    by_user: bool
    targets: Sequence[int] | None = None
    contexts: Sequence[str] = ()

    @property
    def further(self) -> list[str]:
        """The columns of `ordered` that not every corpus has."""
        return ["event"] * (self.targets is not None) + [*self.contexts]

    @property
    def extra(self) -> list[str]:
        """The columns of `sequences` that not every corpus needs."""
        return (
            ["steps_left"] * self.last_out
            + ["first_row"] * (self.shuffled or self.by_user)
            + ["tie_size", "tie_begin"] * self.shuffled
            + ["predicted"] * (self.targets is not None)
            + self.further
        )

    @property
    def _is_target(self) -> str:
        """The condition on rows of `sequences` that are the target of an example."""
        return "step > 0" if self.targets is None else "step > 0 AND predicted = 1"

    def table(self) -> str:
        """The statement of `sequences`.

        In addition to the module's description: `previous`, the item of the interaction before; `tied`, whether that is
        of the same second; `row_sign`, whether source rows rise (1) or fall (-1) from it; `steps_left`, steps to the
        user's last, of those that are predicted; `first_row`, as in `firsts`; `tie_size`, how many interactions its
        second holds, from position `tie_begin`; `predicted`, whether its event is (1 or 0); `event`.
        """
        steps = "row_number() OVER w" if not self.together else "rank() OVER (PARTITION BY user_key ORDER BY time)"
        alike, within = ("user_key", "w")
        if self.targets is not None:
            alike = "user_key, predicted"
            within = f"(PARTITION BY {alike} ORDER BY timestamp, source_row)"
        left = (
            f"dense_rank() OVER (PARTITION BY {alike} ORDER BY time DESC) - 1"
            if self.together
            else f"count(*) OVER (PARTITION BY {alike}) - row_number() OVER {within}"
        )
        columns = {
            "position": "CAST(row_number() OVER w - 1 AS INT)",
            "step": f"CAST({steps} - 1 AS INT)",
            "previous": "lag(item_index) OVER w",
            "tied": "CASE WHEN time = lag(time) OVER w THEN 1 ELSE 0 END",
            "row_sign": "CAST(sign(source_row - lag(source_row) OVER w) AS INT)",
        }
        extra = {
            "steps_left": f"CAST({left} AS INT)",
            "first_row": "first_row",
            "tie_size": "count(*) OVER (PARTITION BY user_key, time)",
            "tie_begin": "CAST(rank() OVER (PARTITION BY user_key ORDER BY time) - 1 AS INT)",
            "predicted": "predicted",
            **{name: name for name in self.further},
        }
        columns |= {name: extra[name] for name in self.extra}
        made = ", ".join(f"{expression} AS {name}" for name, expression in columns.items())
        needed = "first_row" in self.extra
        first, joined = (", f.first_row", " JOIN firsts f ON n.user_key = f.user_key") if needed else ("", "")
        first += _with(self.further, "n.")
        if self.targets is not None:
            numbers = ", ".join(map(str, self.targets))
            first += f", CASE WHEN n.event IN ({numbers}) THEN 1 ELSE 0 END AS predicted"
        inner = (
            f"SELECT n.source_row, n.user_key, i.item_index, n.timestamp{first}, "
            f"{self.time or whole(0)} AS time FROM interactions n JOIN items i ON n.item = i.item{joined}"
        )
        return (
            f"SELECT source_row, user_key, item_index, timestamp, time, {made} FROM ({inner}) AS timed "
            "WINDOW w AS (PARTITION BY user_key ORDER BY timestamp, source_row)"
        )

    def shuffled_table(self) -> str:
        """`sequences` with the items of each tie in the order of `draws` (`source_row`, `draw`)."""
        moved = (
            f"SELECT s.user_key, s.item_index{_with(self.contexts, 's.')}, s.tie_begin - 1 + "
            "row_number() OVER (PARTITION BY s.user_key, s.tie_begin ORDER BY d.draw, s.position) AS target "
            "FROM sequences s JOIN draws d ON s.source_row = d.source_row"
        )
        rest = _with((name for name in self.extra if name not in self.contexts), "s.")
        rest += "".join(f", coalesce(m.{name}, s.{name}) AS {name}" for name in self.contexts)
        return (
            "SELECT s.source_row, s.user_key, coalesce(m.item_index, s.item_index) AS item_index, s.timestamp, s.time, "
            f"s.position, s.step{rest} FROM sequences s LEFT JOIN ({moved}) AS m "
            "ON s.user_key = m.user_key AND s.position = m.target"
        )

    def ordered(self) -> tuple[str, str]:
        """The query of `ordered`, and its order: targets first; split by split where that is known."""
        order = [f"CASE WHEN {self._is_target} THEN 0 ELSE 1 END", *[_LAST_OUT] * self.last_out]
        order += ["timestamp", *["first_row"] * self.by_user, "source_row"]
        columns = f"user_key, item_index, time, position, step{_with(self.further)}"
        return f"SELECT {columns} FROM sequences", ", ".join(order)

    @property
    def parts(self) -> str:
        """How many examples there are, by split where that is known."""
        if self.last_out:
            return f"SELECT {_LAST_OUT} AS part, count(*) FROM sequences WHERE {self._is_target} GROUP BY part"
        return f"SELECT 0, count(*) FROM sequences WHERE {self._is_target}"


AUDIT = (
    "SELECT tied, CAST(sign(i.text_rank - p.text_rank) AS INT) AS text_sign, "
    "CAST(sign(i.number_rank - p.number_rank) AS INT) AS number_sign, row_sign, count(*) FROM sequences s "
    "JOIN items i ON s.item_index = i.item_index JOIN items p ON s.previous = p.item_index "
    "GROUP BY tied, text_sign, number_sign, row_sign"
)
"""How many interactions there are whose ids, as text and as numbers, rise (1) or fall (-1) from the one before."""
TIED = "SELECT source_row FROM sequences WHERE tie_size > 1 ORDER BY first_row, position"
USER_NUMBERS = "SELECT u.user_id FROM users u JOIN firsts f ON u.user_key = f.user_key ORDER BY f.first_row"
"""Users by their first interaction that passes the filters."""


def listed(shards: int, first_digits: str) -> str:
    """The users of `active` with their shard: `user_key`, `user_id`, `shard`.

    Args:
        shards: How many there are.
        first_digits: `SHARD_DIGITS` as a number, in the engine's SQL.
    """
    shard = "0" if shards == 1 else f"{first_digits} % {shards}"
    return (
        f"SELECT u.user_key, u.user_id, CAST({shard} AS INT) AS shard FROM users u "
        "JOIN active a ON u.user_key = a.user_key"
    )


def novelties(table: str) -> str:
    """How many values `Borders.known` gives, their interactions, and the examples of valid and test new to training."""
    new = "sum(CASE WHEN train = 0 THEN {} ELSE 0 END)"
    return f"SELECT count(*), sum(size), {new.format('valid')}, {new.format('test')} FROM {table}"


@dataclass(frozen=True)
class Borders:
    """Where splits begin among the examples, and which of them stay.

    Attributes:
        valid: The first example of valid.
        test: The first example of test.
        examples: All examples.
        most: Examples of valid and of test that stay at most, evenly spread over their order; 0 leaves all. Example r
            of R of a split stays where r · most mod R < most, and is then example r · most div R.
        divide: The engine's division of whole numbers.
    """

    valid: int
    test: int
    examples: int
    most: int
    divide: str

    def _by_split(self, train: str, valid: str, test: str) -> str:
        """An expression for each split, and -1 for interactions that are no target."""
        return (
            f"CASE WHEN example >= {self.examples} THEN -1 WHEN example < {self.valid} THEN {train} "
            f"WHEN example < {self.test} THEN {valid} ELSE {test} END"
        )

    def _kept(self, begin: int, end: int, value: str, of_thinned: str | None = None) -> str:
        """A value of the examples of a split that stay, -1 of the others; another value where a split is thinned."""
        if not 0 < self.most < end - begin:
            return value
        drawn = f"(example - {begin}) * {whole(self.most)}"
        value = value if of_thinned is None else f"({drawn} {self.divide} {end - begin})"
        return f"CASE WHEN {drawn} % {end - begin} < {self.most} THEN {value} ELSE -1 END"

    @property
    def split(self) -> str:
        """The split of an example: 0 train, 1 valid, 2 test, -1 none."""
        return self._by_split("0", self._kept(self.valid, self.test, "1"), self._kept(self.test, self.examples, "2"))

    @property
    def number(self) -> str:
        """The number of an example within its split; -1 where it is in none."""
        borders = ((self.valid, self.test), (self.test, self.examples))
        valid, test = (self._kept(begin, end, f"example - {begin}", "thinned") for begin, end in borders)
        return self._by_split("example", valid, test)

    def sizes(self, max_history: int) -> str:
        """Examples of each split, those with full histories, and those whose histories lost items."""
        return (
            f"SELECT split, count(*), count(CASE WHEN step >= {max_history} THEN 1 END), "
            f"count(CASE WHEN step > {max_history} THEN 1 END) "
            f"FROM (SELECT step, {self.split} AS split FROM ordered) AS marked WHERE split >= 0 GROUP BY split"
        )

    def known(self, column: str) -> str:
        """The values of a column with an example, such as items that are its target.

        Beside the value, how many interactions (`size`) and examples of each split (`train`, `valid`, `test`) have it.
        """
        counts = (f"count(CASE WHEN split = {number} THEN 1 END) AS {name}" for number, name in enumerate(SPLITS))
        return (
            f"SELECT {column}, count(*) AS size, {', '.join(counts)} "
            f"FROM (SELECT {column}, {self.split} AS split FROM ordered) AS marked "
            f"GROUP BY {column} HAVING max(split) >= 0"
        )

    def _trained(self, column: str) -> str:
        """How often each item is the target of a training example with each value of a column: the count is `n`."""
        return (
            f"SELECT item_index, {column}, count(*) AS n FROM (SELECT item_index, {column}, {self.split} AS split "
            f"FROM ordered) AS marked WHERE split = 0 GROUP BY item_index, {column}"
        )

    def value_counts(self, column: str) -> str:
        """The values of a column in the rows of the targets of training examples, and how often each is there."""
        return f"SELECT {column}, sum(n) FROM ({self._trained(column)}) AS trained GROUP BY {column}"

    def values_by_item(self, column: str) -> str:
        """Training targets with a value in a column, and those with the most frequent value of their item.

        Of items that have two of them or more.
        """
        by_item = (
            f"SELECT sum(n) AS size, max(n) AS most FROM ({self._trained(column)}) AS trained "
            f"WHERE {column} >= 0 GROUP BY item_index"
        )
        return f"SELECT sum(size), sum(most) FROM ({by_item}) AS by_item WHERE size > 1"

    def sequences(self, users: str, further: Sequence[str] = ()) -> str:
        """Interactions sorted by shard, user and position.

        Args:
            users: The users, see `listed`.
            further: The further columns of `ordered` that are read.
        """
        return (
            f"SELECT o.user_key, o.item_index, o.time{_with(further, 'o.')}, CAST({self.number} AS INT) AS example, "
            f"CAST({self.split} AS TINYINT) AS split FROM ordered o JOIN ({users}) AS l ON o.user_key = l.user_key "
            "ORDER BY l.shard, o.user_key, o.position"
        )
