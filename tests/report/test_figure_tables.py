"""CSV files of figures: what is compared, the command on the committed results, several problems, and damaged files."""

import json
from pathlib import Path

import pytest

from isda.lab.cli import main
from isda.lab.report.figure_tables import read_figure_tables
from isda.lab.report.statistics import many_to_one

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def reported(capsys, *words):
    main(["report", *map(str, words), "--json", "-"])
    return json.loads(capsys.readouterr().out)


def half_widths(record):
    return {round(method["difference_half_width"], 2) for method in record["methods"] if method["difference_mean"]}


def better(record):
    """Methods whose interval excludes zero, by the sign of their difference."""
    found = {-1: set(), 1: set()}
    for method in record["methods"]:
        if method["difference_mean"] is not None and abs(method["difference_mean"]) > method["difference_half_width"]:
            found[1 if method["difference_mean"] > 0 else -1].add(method["label"])
    return found


def test_rivals_are_told_apart(capsys):
    (record,) = reported(capsys, RESULTS / "rivals.csv")
    assert half_widths(record) == {1.38}
    assert better(record) == {
        -1: {"mixup+isda", "cross-entropy, dropout", "mixup", "isda:decay=0.99", "isda", "isda-tilted"},
        1: {"label-smoothing", "center"},
    }
    means = {method["label"]: method["difference_mean"] for method in record["methods"][1:]}
    assert [round(means[name], 2) for name in ("mixup+isda", "cross-entropy, dropout", "mixup")] == [-3.34, -3.25, -3.0]
    assert record["intervals"]["procedure"] == "Dunnett"
    assert record["intervals"]["degrees_of_freedom"] == 44
    assert set(record["other_figures"]) == {"nll", "calibration", "seconds"}


def test_strengths_and_parts_of_isda_are_told_apart(capsys):
    records = {record["title"]: record for record in reported(capsys, RESULTS / "sensitivity.csv")}
    plain, augmented = (
        records[f"sensitivity.csv: CIFAR-10, 3,000 images{words}"] for words in ("", ", crops and flips")
    )
    tilted = {"isda-tilted:lambda_0=5", "isda-tilted:lambda_0=10"}
    parts = ("covariance=low_rank", "schedule=constant", "decay=0.99")
    lower = {"isda:lambda_0=2", "isda:lambda_0=5", *tilted, *(f"isda:lambda_0=2,{part}" for part in parts)}
    assert better(plain) == {-1: lower, 1: set()}
    higher = lower | {"isda:lambda_0=10", "isda:lambda_0=2,covariance=identity"}
    assert better(augmented) == {-1: set(), 1: higher}
    assert (plain["intervals"]["missing"], augmented["intervals"]["missing"]) == (5, 2)


def write_pairs(path):
    """Two algorithms alone and with ISDA, three seeds, with what ISDA adds to each run: -1, -2, -3 and 0, -1, -2."""
    lines = ["method,seed,error"]
    for seed in range(3):
        lines += [f"vat:eta_2=1,{seed},20", f"vat+isda:lambda_0=0.5,{seed},{19 - seed}"]
        lines += [f"mean-teacher,{seed},{30 + seed}", f"mean-teacher+isda,{seed},30"]
    return write(path, "\n".join(lines))


def test_isda_s_part_over_several_algorithms_which_may_have_options(tmp_path, capsys):
    (record,) = reported(capsys, write_pairs(tmp_path / "t.csv"))
    parts = {method["label"]: method["from_isda_mean"] for method in record["methods"]}
    assert parts.pop("vat:eta_2=1") is parts.pop("mean-teacher") is None
    assert parts == pytest.approx({"vat+isda:lambda_0=0.5": -2, "mean-teacher+isda": -1})
    gaps = [-1, -2, -3, 0, -1, -2]
    deviation = (sum((gap + 1.5) ** 2 for gap in gaps) / 5) ** 0.5
    overall = record["from_isda_overall"]
    assert (overall["mean"], overall["pairs"]) == pytest.approx((-1.5, 6))
    assert overall["half_width"] == pytest.approx(
        2.5706 * deviation / 6**0.5, rel=1e-4
    )  # Student's, 5 degrees of freedom


def test_a_method_with_isda_has_no_part_where_several_could_be_its_base(tmp_path):
    lines = ["method,seed,error"]
    lines += [f"{name},{seed},1" for name in ("vat:eta_2=1", "vat:eta_2=2", "vat+isda") for seed in range(3)]
    (table,) = read_figure_tables(write(tmp_path / "t.csv", "\n".join(lines)))
    assert table.isda_pairs == {}
    (table,) = read_figure_tables(write(tmp_path / "t.csv", "\n".join([*lines, "vat,0,1"])))
    assert table.isda_pairs == {"vat+isda": ("vat+isda", "vat")}


def test_columns_name_comparisons_methods_and_variants(tmp_path):
    lines = ["data,method,option,seed,error,note", "a,cross-entropy,,0,3,x", "a,isda,1,0,2,x", "a,isda,2,0,1,"]
    lines += ["b,cross-entropy,,0,5,x", "b,isda,1,0,4,x", "b,isda,1,1,nan,x"]
    first, second = read_figure_tables(write(tmp_path / "t.csv", "\n".join(lines)))
    assert (first.title, second.title) == ("t.csv: a", "t.csv: b")
    assert list(first.values) == ["cross-entropy", "isda option=1", "isda option=2"]
    assert list(second.values) == ["cross-entropy", "isda"]
    assert second.figures == ("error",)
    assert second.by_seed("error") == {"cross-entropy": {0: 5.0}, "isda": {0: 4.0}}


def test_without_a_control_all_pairs_are_compared(tmp_path, capsys):
    lines = ["draw,method,error", *(f"{seed},{name},{seed + shift + 0.1 * (seed % 2) * shift}"
             for seed in range(4) for name, shift in (("x", 0), ("y", 1), ("z", 3)))]  # fmt: skip
    (record,) = reported(capsys, write(tmp_path / "t.csv", "\n".join(lines)))
    assert record["baseline"] is None
    assert set(record["intervals"]["differences"]) == {"x - y", "x - z", "y - z"}
    main(["report", str(tmp_path / "t.csv")])
    assert "all pairs, simultaneous 95% confidence intervals (Tukey, pooled over 3 methods x 4 seeds)" in " ".join(
        capsys.readouterr().out.split()
    )


def test_the_terminal_shows_the_first_figure_s_differences(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    main(["report", str(write_pairs(tmp_path / "t.csv")), "--plan", "1"])
    text = " ".join(capsys.readouterr().out.split())
    assert "all pairs, simultaneous 95% confidence intervals (Tukey, pooled over 4 methods x 3 seeds)" in text
    assert "From ISDA over all of these: −1.50 ± 1.10 (Student, 6 pairs of runs)" in text
    assert "To tell a difference of 1 in error with a probability of 80%, " in text
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]  # a table of figures has no page


def test_several_problems_are_pooled(tmp_path, capsys):
    record = reported(capsys, RESULTS / "transfer.csv", "--across", "--out", tmp_path / "page.html")
    effect = record["effects"]["isda"]
    families = [table.family("error") for table in read_figure_tables(RESULTS / "transfer.csv")]
    assert effect["problems"] == 3
    assert min(f["isda"].mean for f in families) < effect["mean"] < max(f["isda"].mean for f in families)
    assert effect["heterogeneity"] > 0.8
    assert record["ranking"]["ranks"] == {"isda": pytest.approx(5 / 3), "cross-entropy": pytest.approx(4 / 3)}
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "3 problems pooled" in page
    assert page.count('class="dot pooled"') == 2  # for wide and narrow screens
    main(["report", str(RESULTS / "transfer.csv"), "--across", "--out", str(tmp_path / "page.html")])
    assert "random-effects meta-analysis" in capsys.readouterr().out


def test_run_folders_are_problems_too(tmp_path, make_run, capsys):
    for data, shift in (("cifar10", -1.0), ("svhn", -0.5), ("cifar100", -2.0)):
        for seed in range(3):
            for method, gain in (("cross-entropy", 0.0), ("isda", shift)):
                error = 30 + seed + gain + 0.1 * (seed == 1) * gain
                make_run(tmp_path / data / method / f"seed-{seed}", method, seed, error=error, data=data)
    folders = [tmp_path / data for data in ("cifar10", "svhn", "cifar100")]
    record = reported(capsys, *folders, "--across", "--out", tmp_path / "page.html")
    assert record["effects"]["isda"]["problems"] == 3
    assert -2.2 < record["effects"]["isda"]["mean"] < -0.5


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "must have a line of names and at least one run, got none"),
        ("method,error\na,1", r"must have the columns method and seed \(or draw\), got method, error"),
        ("method,seed,error\na,0,high", "must have a column of numbers right of method and seed, got none"),
        ("method,seed,error\na,zero,1", "must have integers as seed, got 'zero'"),
        ("method,seed,error\na,0,1\na,0,2", "must have one line of each method and seed, got two of a, 0"),
    ],
)
def test_damaged_files_are_refused(tmp_path, text, words):
    path = write(tmp_path / "t.csv", text)
    with pytest.raises(ValueError, match=words):
        read_figure_tables(path)
    with pytest.raises(SystemExit, match=words):
        main(["report", str(path)])


def test_bytes_that_are_no_text_are_refused(tmp_path):
    (tmp_path / "t.csv").write_bytes(b"method,seed\xff\xfe")
    with pytest.raises(ValueError, match="cannot be read as a CSV file"):
        read_figure_tables(tmp_path / "t.csv")


def test_what_cannot_be_pooled_is_refused(tmp_path):
    one = write(tmp_path / "one.csv", "method,seed,error\ncross-entropy,0,1\ncross-entropy,1,2\na,0,1\na,1,3")
    other = write(tmp_path / "other.csv", "method,seed,miou\ncross-entropy,0,1\ncross-entropy,1,2\na,0,1\na,1,3")
    alone = write(tmp_path / "alone.csv", "method,seed,error\nx,0,1\nx,1,2\na,0,1\na,1,3")
    for paths, words in (
        ([one], "at least 2 comparisons, got 1"),
        ([one, other], "same figure, got error, miou"),
        ([one, alone], "needs a control in every comparison, got none in alone.csv"),
    ):
        with pytest.raises(SystemExit, match=words):
            main(["report", *map(str, paths), "--across", "--out", str(tmp_path / "page.html")])
    assert not (tmp_path / "page.html").exists()


def test_a_family_of_a_file_is_that_of_its_figures():
    (table,) = read_figure_tables(RESULTS / "rivals.csv")
    cells = {name: list(by_seed.values()) for name, by_seed in table.by_seed("nll").items()}
    assert dict(table.family("nll")) == dict(many_to_one(cells))
