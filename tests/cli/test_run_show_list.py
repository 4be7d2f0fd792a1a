"""One configuration in full, runs as tables and lists, finished or not."""

from pathlib import Path

from tests.cli.calling import only_run


def test_run_shows_everything_that_was_measured(zbench, sweep_file):
    said = zbench("run", sweep_file, "--set", "zero_stage=1")
    assert said.code == 0
    lines = [line.split() for line in said.out.splitlines()]
    assert ["outcome", "ok"] in lines
    assert ["verdict", "identical"] in lines
    assert ["median", "step", "10", "ms", "(each", "repeat:", "10", "ms,", "10", "ms)"] in lines
    assert "axes: {}" in (only_run() / "spec.yaml").read_text()


def test_run_of_a_file_takes_its_base_and_can_be_resumed(zbench, refusal, sweep_file):
    trials = zbench("run", sweep_file, "--json").document["trials"]
    assert {record["config"]["engine"]["zero_stage"] for record in trials} == {0}
    assert zbench("sweep", "--resume", "last", "--json").document["trials"] == trials
    sweep_file.write_text(sweep_file.read_text().replace("repeats: 2", "repeats: 3"))
    assert "run.repeats was 2, is 3" in refusal("sweep", sweep_file, "--resume", "last")


def test_run_needs_no_file(zbench):
    document = zbench("run", "--set", "world_size=2", "--repeats", "1", "--json").document
    assert [record["config"]["run"]["world_size"] for record in document["trials"]] == [2]


def test_dry_run_prints_the_configuration_and_leaves_nothing(zbench):
    assert "  seed: 5" in zbench("run", "--dry-run", "--seed", "5").out.splitlines()
    assert zbench("run", "--dry-run", "--json").document["sweep"]["name"] == "run"
    assert not Path("results").exists()


def test_show_repeats_the_table_of_a_run(zbench, sweep_file):
    table = zbench("sweep", sweep_file).out
    assert zbench("show").out == table
    assert zbench("show", "tried").out == table
    document = zbench("show", "--json").document
    assert (document["exit_code"], len(document["trials"])) == (0, 4)
    rows = document["configurations"]
    assert [(row["repeats"], row["tokens_per_s"], row["verdict"]) for row in rows] == [
        (2, 1000, "identical")
    ] * 2


def test_show_one_configuration_by_the_start_of_its_id(zbench, refusal, sweep_file):
    assert "no run 'last' in results" in refusal("show")
    trial_id = zbench("sweep", sweep_file, "--json").document["recommended"]
    assert zbench("show", "--trial", trial_id[:6]).out.startswith(trial_id)
    assert trial_id in refusal("show", "--trial", "zzz")


def test_list_names_each_run_with_its_best(zbench, sweep_file):
    zbench("sweep", sweep_file)
    zbench("sweep", sweep_file, "--set", 'workload.options={"do": "crash"}')
    rows = zbench("list", "--json").document["runs"]
    assert [(row["configurations"], row["failed"], row["recommended"] is None) for row in rows] == [
        (2, 0, False),
        (2, 2, True),
    ]
    assert all(row["machine"] == rows[0]["machine"] for row in rows)
    zbench("tag", rows[0]["run_id"], "before")
    text = zbench("list").out
    assert all(row["run_id"] in text for row in rows)
    assert f"{rows[0]['run_id']} (before)" in text
    assert [row["tags"] for row in zbench("list", "--json").document["runs"]] == [["before"], []]


def test_list_goes_on_past_a_run_that_cannot_be_read(zbench, sweep_file):
    zbench("sweep", sweep_file)
    trials = only_run() / "trials.jsonl"
    trials.write_text("{damaged\n" + trials.read_text())
    (row,) = zbench("list", "--json").document["runs"]
    assert "trials.jsonl:1: damaged line" in row["problem"]


def test_list_of_nothing_says_how_to_begin(zbench):
    said = zbench("list")
    assert (said.code, said.out) == (0, "")
    assert "zbench sweep" in said.err
