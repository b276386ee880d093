import time

from tacit.deploy import board
from tacit.deploy.board import Board


def test_silence_is_paid_for_once_and_by_the_silent_one_alone():
    found = Board()
    for name, took in (("quick", 2.0), ("slow", 20.0)):
        found.answered(name, took)
    assert found.patience("quick", 600) == found.patience("mute", 600) == 600
    found.was_silent("mute", 600, there=True)
    assert found.rests("mute")
    assert not found.rests("slow")
    waits = []
    for _ in range(8):
        waits.append(found.patience("mute", 600))
        found.was_silent("mute", waits[-1], there=True)
    assert waits == [60, 120, 240, 480, 600, 600, 600, 600], "three times the slowest, and more with every try"
    assert found.of("mute").rests - time.monotonic() <= board.LONGEST
    assert found.patience("slow", 600) == 600
    found.answered("mute", 1.0)
    assert not found.rests("mute")
    assert found.patience("mute", 600) == 600


def test_a_process_that_ended_may_come_back_at_once_the_first_time():
    found = Board()
    found.was_silent("gone", 20, there=False)
    assert not found.rests("gone")
    found.was_silent("gone", 20, there=False)
    assert found.rests("gone")
    found.pardon()
    assert not found.rests("gone")


def test_counts_go_on_after_a_restart_of_the_server():
    first, second = Board(), Board()
    first.of("a").bytes_up, first.of("a").refused, first.of("a").reason = 7, 2, "why"
    first.look({5: "a"})
    assert first.of("a").up
    second.take(first.shown())
    assert (second.of("a").bytes_up, second.of("a").refused, second.of("a").reason) == (7, 2, "why")
    assert not second.of("a").up
    for damaged in ({}, {"nodes": 3}, {"nodes": {"a": 3}}, {"nodes": {"a": {"other": 1}}}):
        Board().take(damaged)


def test_what_a_node_was_sent_before_it_said_who_it_is_is_its_own():
    board = Board()
    board.of("17").bytes_down, board.of("a").bytes_down = 5, 7
    board.rename("17", "a")
    board.rename("17", "a")
    assert list(board.nodes) == ["a"]
    assert board.of("a").bytes_down == 12
