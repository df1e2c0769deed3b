"""What do people read if a defect of ours has ended their job?"""

from supervisor.core.defects import defect_sentence


def test_it_names_the_error_and_its_place() -> None:
    try:
        raise AssertionError("a store without a port")
    except AssertionError as error:
        text = defect_sentence(error)
    assert text.startswith("Holdfast hit a defect of its own (AssertionError: a store without a port at ")
    assert "test_defects.py:" in text


def test_an_error_without_words_or_place() -> None:
    assert defect_sentence(KeyError()).startswith("Holdfast hit a defect of its own (KeyError); the job is ended")
