"""What Java and the workers print: all of it but two kinds of noise."""

from __future__ import annotations

from pyspark import SparkConf

from headrace.spark.session import NoiseFilter, shown_settings

TRACEBACK = "Traceback (most recent call last):\n"
FRAME = '  File "/x/pyspark.zip/pyspark/daemon.py", line 264, in manager\n'
BROKEN = "BrokenPipeError: [Errno 32] Broken pipe\n"


def shown(lines: list[str]) -> str:
    noise = NoiseFilter()
    return "".join(map(noise.feed, lines))


def test_broken_pipe_of_an_idle_worker_is_left_out() -> None:
    assert shown([TRACEBACK, FRAME, FRAME, BROKEN, "next\n"]) == "next\n"


def test_broken_pipe_is_left_out_with_lines_of_source() -> None:
    source = ["    code = worker(sock, authenticated)\n", "           ^^^^^^^^^^^^^^\n"]
    lines = [TRACEBACK, FRAME, *source, FRAME, "    outfile.flush()\n", BROKEN, "    next\n"]
    assert shown(lines) == "    next\n"


def test_broken_pipes_of_two_workers_at_once_are_left_out() -> None:
    lines = [TRACEBACK, TRACEBACK, FRAME, FRAME, BROKEN, FRAME, FRAME, BROKEN, "next\n"]
    assert shown(lines) == "next\n"


def test_other_tracebacks_and_prints_come_through_whole() -> None:
    lines = [TRACEBACK, '  File "mine.py", line 1, in f\n', "ValueError: no\n", "a word\n"]
    assert shown(lines) == "".join(lines)


def test_failure_in_the_daemon_itself_comes_through() -> None:
    lines = [TRACEBACK, FRAME, "OSError: out of descriptors\n"]
    assert shown(lines) == "".join(lines)


def test_remark_on_incubator_modules_is_left_out() -> None:
    assert shown(["WARNING: Using incubator modules: jdk.incubator.vector\n"]) == ""


def test_settings_that_pages_hide_are_on_no_command_line() -> None:
    given = {
        "spark.authenticate.secret": "a",
        "spark.hadoop.fs.s3a.access.key": "b",
        "spark.ssl.keyPassword": "c",
        "spark.executorEnv.API_TOKEN": "d",
        # A value may look like the name of a secret: it is the path of a log, for example.
        "spark.driver.extraJavaOptions": "-Dlog=/srv/tokens/spark.log",
        "spark.account": "e",
    }
    conf = SparkConf(loadDefaults=False).setAll(list(given.items()))
    assert set(dict(shown_settings(conf)).values()) == {"-Dlog=/srv/tokens/spark.log", "e"}
    conf.set("spark.redaction.regex", "account")
    assert "spark.account" not in dict(shown_settings(conf))
    assert dict(shown_settings(conf))["spark.authenticate.secret"] == "a"
