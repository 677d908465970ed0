"""Comparison groups: results of one track, protocol, backbone and domain, which may be compared with each other.

In a group, every method has scores by k, test split and seed. Scores are accuracies if no other metric was chosen.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from operator import attrgetter

from orchestrator.analysis.comparable import seedless_methods
from orchestrator.analysis.metrics import METRICS, Metric
from orchestrator.analysis.rows import Row
from orchestrator.analysis.seed_means import Summary, seed_means, summarize
from orchestrator.core.cell import Place
from orchestrator.report.styles import DASH, SELECTED, digits_of
from orchestrator.tracks import Track, stored_track
from orchestrator.util.identity import slug
from orchestrator.util.units import pluralize

ValueOf = Callable[[Row], "float | None"]
_SCORE: ValueOf = attrgetter("score")


class ComparisonGroup:
    """All scores of one place, by method, k, test split and seed.

    Attributes:
        place: the track, protocol, backbone and domain of all rows.
        ablations: whether the group is about ablations, variants that are planned on only some of the datasets.
        slug: the group's part of a file name.
        methods: labels in the order of the plan, the ``fixed`` ones first.
        ks: the k that have results; (0,) on a track without k.
        fixed: methods that draw nothing at random. They have one row per test split, with k = 0 and seed 0. This row
            counts at every k.
        of_changed_protocol: whether the protocol changes switches of another protocol in the same report.
        selects_on_test: whether test labels may have chosen a setting of any row.
    """

    def __init__(
        self,
        place: Place,
        title: str,
        rows: Sequence[Row],
        methods: Sequence[str],
        *,
        ablations: bool,
        curves: Mapping[str, Sequence[float]],
        of_changed_protocol: bool,
    ) -> None:
        """``curves``: id of a cell that was scored after every epoch -> the accuracies on the target's test split."""
        self.place, self.ablations, self.rows, self._curves = place, ablations, rows, curves
        self.of_changed_protocol = of_changed_protocol
        track, protocol, backbone, domain = place
        self.slug = slug(f"{track}_{domain}_{backbone}_{protocol}{'_ablations' * ablations}")
        self.selects_on_test = any(row.selects_on_test for row in rows)
        self.title = f"{title} {SELECTED}" if self.selects_on_test else title
        self.ks: tuple[int, ...] = tuple(sorted({row.k for row in rows} - {0})) or (0,)
        self._rows: dict[tuple[str, int, str], dict[int, Row]] = defaultdict(dict)
        for row in rows:
            self._rows[row.method, row.k, row.test][row.seed] = row
        present = {row.method for row in rows}
        self.fixed = seedless_methods((row.method, row.k, row.seed) for row in rows)
        order = [m for m in methods if m in present]
        self.methods: tuple[str, ...] = tuple(sorted(order, key=lambda m: m not in self.fixed))
        self._tests: dict[tuple[int, bool], tuple[str, ...]] = {}

    @property
    def metric(self) -> Metric:
        """The metric of the scores of all rows."""
        return METRICS[self.rows[0].metric]

    @property
    def track(self) -> Track:
        """The track of all rows."""
        return stored_track(self.place.track)

    @property
    def score_text(self) -> str:
        """The name and unit of scores, for notes: ``Accuracy in per cent``."""
        return f"{self.metric.heading} {self.metric.in_per_cent}"

    @property
    def mean_of(self) -> str:
        """What a mean over datasets averages, in words: ``accuracy``."""
        return self.metric.averaged_on(self.track)

    @property
    def mean_text(self) -> str:
        """What a mean over datasets averages, in words, with the unit: ``accuracy in per cent``."""
        return f"{self.mean_of} {self.metric.in_per_cent}"

    @cached_property
    def digits(self) -> int:
        """Number of decimals of the group's scores, chosen by the number of images in its smallest test split."""
        return digits_of(min(row.total for row in self.rows))

    def rows_by_seed(self, method: str, k: int, test: str) -> Mapping[int, Row]:
        """Return the rows of one method on one test split, by seed.

        A fixed method, which draws nothing at random, has the same row at every k.
        """
        return self._rows.get((method, 0 if method in self.fixed else k, test), {})

    def rows_at(self, method: str, k: int) -> list[Row]:
        """Return the rows of one method at one k, of every test split and seed."""
        return [row for test in self.tests(k) for row in self.rows_by_seed(method, k, test).values()]

    def tests(self, k: int, *, averaged: bool = False) -> tuple[str, ...]:
        """Return the test splits with a row at ``k``, sorted. With ``averaged``, only rows that count in means.

        If there is no such row, as in a group of fixed methods, the test splits of all rows are returned.
        """
        if (k, averaged) not in self._tests:
            rows = [row for row in self.rows if row.k == k and (row.averaged or not averaged)]
            self._tests[k, averaged] = tuple(sorted({row.test for row in rows or self.rows}, key=str.casefold))
        return self._tests[k, averaged]

    def is_zero_shot(self, method: str) -> bool:
        """Return whether the method's accuracy is the zero-shot accuracy everywhere: its gain is always 0."""
        return all(row.gain == 0 for row in self.rows if row.method == method)

    def seed_means(
        self, method: str, k: int, value_of: ValueOf = _SCORE, *, tests: Sequence[str] | None = None
    ) -> dict[int, float]:
        """Return for each seed the mean of ``value_of(row)`` over ``tests``, for one method at one k.

        By default, ``tests`` are the test splits that count in means. A seed is left out if it has no row or the value
        ``None`` on any of them.
        """
        tests = self.tests(k, averaged=True) if tests is None else tests
        scores: dict[str, dict[int, float]] = {}
        for test in tests:
            values = {seed: value_of(row) for seed, row in self.rows_by_seed(method, k, test).items()}
            scores[test] = {seed: value for seed, value in values.items() if value is not None}
        return seed_means(scores, tests)

    def mean(
        self, method: str, k: int, value_of: ValueOf = _SCORE, *, tests: Sequence[str] | None = None
    ) -> Summary | None:
        """Return the mean and deviation over seeds of :meth:`seed_means`; ``None`` if no seed remains."""
        means = self.seed_means(method, k, value_of, tests=tests)
        return summarize(list(means.values())) if means else None

    def measured_tests(self, method: str, k: int) -> str:
        """Return how many of the averaged test splits have a result of the method: ``3/8``."""
        tests = self.tests(k, averaged=True)
        return f"{sum(bool(self.rows_by_seed(method, k, test)) for test in tests)}/{len(tests)}"

    def score(self, method: str, k: int, test: str) -> Summary | None:
        """Return mean and deviation over seeds of the score on one test split; ``None`` without a result."""
        return self.mean(method, k, tests=[test])

    def zero_shot(self, k: int, test: str) -> float | None:
        """Return the frozen backbone's score on one of ``tests(k)``; ``None`` if no cell measured it."""
        rows = (row for method in self.methods for row in self.rows_by_seed(method, k, test).values())
        return next((row.score_zero_shot for row in rows if row.score_zero_shot is not None), None)

    @cached_property
    def scored_on_other_images(self) -> tuple[str, ...]:
        """The methods that, on any test split, were scored on more or fewer images than most methods.

        The numbers differ because, under some protocols, some methods are not scored on all test images.
        """
        counts: dict[str, Counter[int]] = defaultdict(Counter)
        for row in self.rows:
            counts[row.test][row.total] += 1
        usual = {test: count.most_common(1)[0][0] for test, count in counts.items()}
        others = {row.method for row in self.rows if row.total != usual[row.test]}
        return tuple(method for method in self.methods if method in others)

    @cached_property
    def last_epoch(self) -> int:
        """The largest number of epochs among the cells that were scored after every epoch.

        0 if there is no such cell, or if the metric of the group is not the accuracy.
        """
        if self.rows[0].metric != "accuracy":
            return 0
        return max((len(self._curves.get(row.cell_id, ())) for row in self.rows), default=0)

    def epoch_mean(self, method: str, k: int, epoch: int) -> Summary | None:
        """Return the mean and deviation over seeds of one method after an epoch. The first ``epoch`` is 1.

        The accuracy of a seed is its mean over targets. A seed that lacks a target is left out; ``None`` if none
        remains. A fixed method has the same accuracy after every epoch.
        """
        if method in self.fixed:
            return self.mean(method, k)

        def after_epoch(row: Row) -> float | None:
            curve = self._curves.get(row.cell_id, ())
            return curve[epoch - 1] if len(curve) >= epoch else None

        return self.mean(method, k, after_epoch)

    def dataset_count(self, noun: str = "dataset") -> str:
        """Return the number of datasets of a mean as text: ``8 datasets``, or ``6–8 datasets`` if it depends on k."""
        counts = sorted({len(self.tests(k, averaged=True)) for k in self.ks})
        return pluralize(DASH.join(dict.fromkeys((str(counts[0]), str(counts[-1])))), noun)

    @property
    def uneven_text(self) -> str:
        """A sentence for captions, with a space before it, if not every k has the same datasets; otherwise empty."""
        uneven = len({self.tests(k, averaged=True) for k in self.ks}) > 1
        return " Not every k has the same datasets: compare methods, not one k with another." if uneven else ""

    @cached_property
    def seed_counts(self) -> tuple[int, int]:
        """The fewest and the most seeds that a method has at one k; 0 if all methods are fixed."""
        drawn = ((row.method, row.k, row.seed) for row in self.rows if row.method not in self.fixed)
        counts = Counter((method, k) for method, k, _ in set(drawn)).values()
        return min(counts, default=0), max(counts, default=0)

    @property
    def seeds_text(self) -> str:
        """The number of seeds from which deviations are computed, for captions: ``n = 3``, or ``n = 1–3``."""
        counts = DASH.join(dict.fromkeys(map(str, self.seed_counts)))
        return f"n = {counts}" if counts != "1" else "n = 1, so no deviation"

    def deviation_text(self, mark: str, of: str = "") -> str:
        """Return a sentence for a caption that says what the error bars or bands of a figure are.

        ``mark``: the caption's word for the bars or bands, such as ``Bands``. ``of``: the values whose deviation is
        drawn.
        """
        if self.seed_counts[1] < 2:
            return f"Without a second seed there are no {mark.lower()}. Other seeds may give other values."
        return f"{mark}: ± one sample standard deviation{of and f' of {of}'} over {self.seeds_text} seeds."
