"""Progress lines are seen once each, and only when they are whole."""

from zbench.launch.progress import ProgressTail


def test_lines_are_seen_once_and_whole(tmp_path):
    file = tmp_path / "progress.jsonl"
    tail = ProgressTail(file)
    assert tail.new_lines() == []
    file.write_text('{"step": 1}\n{"st')
    assert tail.new_lines() == [{"step": 1}]
    assert tail.new_lines() == []
    with file.open("a") as out:
        out.write('ep": 2}\n{"step": 3}\n')
    assert tail.new_lines() == [{"step": 2}, {"step": 3}]


def test_first_reason_ends_it(tmp_path):
    file = tmp_path / "progress.jsonl"
    file.write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n')
    seen = []

    def watch(line):
        seen.append(line["step"])
        return "enough" if line["step"] == 2 else None

    assert ProgressTail(file).feed(watch) == "enough"
    assert seen == [1, 2]
