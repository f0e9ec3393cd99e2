"""What models write around five questions, and what is made of it."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagefacets.evidence.asker import PROMPT, prompt_for
from pagefacets.evidence.parsing import questions_in

FIVE = (
    "What is the total revenue in 2023?",
    "How many plants does the company run, as of 31.12.2023?",
    "Which colour marks the forecast: red or blue?",
    'What does "EBITDA (adj.)" mean?',
    "Why did costs rise by 12.5% in Q3?",
)


def listed(questions, form):
    return "\n".join(form.format(i=i, q=question) for i, question in enumerate(questions, 1))


FORMS = {
    "as asked": listed(FIVE, "{i}. {q}"),
    "parentheses": listed(FIVE, "{i}) {q}"),
    "both parentheses": listed(FIVE, "({i}) {q}"),
    "bold numbers": listed(FIVE, "**{i}.** {q}"),
    "bold questions": listed(FIVE, "{i}. **{q}**"),
    "headings": listed(FIVE, "### Question {i}\n\n{q}\n"),
    "labels": listed(FIVE, "Question {i}: {q}"),
    "short labels": listed(FIVE, "**Q{i}:** {q}"),
    "all ones": listed(FIVE, "1. {q}"),
    "blank lines between": listed(FIVE, "{i}. {q}\n"),
    "windows": listed(FIVE, "{i}. {q}\r"),
    "bullets": listed(FIVE, "- {q}"),
    "round bullets": listed(FIVE, "  • {q}"),
    "one to a line": "\n".join(FIVE),
    "all on one line": listed(FIVE, "{i}. {q}").replace("\n", " "),
    "quoted": listed(FIVE, "{i}. “{q}”"),
    "with answers": listed(FIVE, "{i}. {q} Answer: it says so in line {i}."),
    "answers below": listed(FIVE, "{i}. {q}\n   - Answer: yes, in 2023"),
    "answers as a list": listed(FIVE, "{i}. {q}")
    + "\n\nAnswers:\n"
    + listed(["12", "3", "red", "no", "so"], "{i}. {q}"),
    "a reading first": "The page shows:\n1. A table\n2. A chart\n\nQuestions:\n" + listed(FIVE, "{i}. {q}"),
    "preamble and farewell": "Here are five questions:\n\n" + listed(FIVE, "{i}. {q}") + "\n\nShall I answer them?",
    "farewell without a gap": listed(FIVE, "{i}. {q}") + "\nI hope these help. Let me know!",
    "topics over bullets": listed(FIVE, "{i}. Topic {i}\n   - {q}"),
    "json list": json.dumps(FIVE),
    "json objects": json.dumps([{"type": "fact", "question": q, "answer": "42?"} for q in FIVE], indent=1),
    "json under a key": json.dumps({"page": "2?", "questions": FIVE}),
    "json by number": json.dumps({f"question_{i}": q for i, q in enumerate(FIVE)} | {"answer_1": "no?"}),
    "json lines": "\n".join(json.dumps({"query": q}) for q in FIVE),
    "fenced json": f"Sure!\n```json\n{json.dumps({'questions': FIVE}, indent=2)}\n```\nAnything else?",
    "fenced list": "```\n" + listed(FIVE, "{i}. {q}") + "\n```",
    "json that breaks off": json.dumps(FIVE, indent=1).removesuffix("\n]") + ',\n "Who sig',
    "after a thought": "<think>1. Is it a bill? 2. Or a letter?</think>\n" + listed(FIVE, "{i}. {q}"),
    "after the end of a thought": "It may be a bill?\n</think>\n\n" + listed(FIVE, "{i}. {q}"),
    "repeated": listed((*FIVE, FIVE[0].upper(), FIVE[2] + " "), "{i}. {q}"),
    "with the format repeated": listed([f"Question {i}" for i in range(1, 6)], "{i}. {q}")
    + "\n"
    + listed(FIVE, "{i}. {q}"),
}


@pytest.mark.parametrize("form", FORMS)
def test_the_same_five_questions_in_any_form(form):
    assert questions_in(FORMS[form]) == FIVE


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "\n \n",
        "I'm sorry, but I can't help with that. Could you upload the image?",
        "I’m unable to view the image.\nCan you share it again?",
        "As an AI, I cannot see images.",
        "1. I cannot read this page.\n2. I'm sorry about that.",
        "1. Question 1\n2. Question 2\n3. Question 3",
        "The page is a bill of 12.5 dollars from 2023: nothing can be asked.",
        "<think>What could be asked? Perhaps the sum?",
        "[1, 2, 3]",
        "{}",
        '{"error": "overloaded"}',
        "\x00\x1b[31m",
    ],
)
def test_what_holds_no_question(answer):
    assert questions_in(answer) == ()


@pytest.mark.parametrize(
    ("answer", "questions"),
    [
        ("1. 总收入是多少？\n2. 有几家工厂？", ("总收入是多少？", "有几家工厂？")),
        ("１．売上高はいくらですか？\n２．なぜですか？", ("売上高はいくらですか？", "なぜですか？")),
        ("١. ما هو الدخل؟\n٢. كم عددها؟", ("ما هو الدخل؟", "كم عددها؟")),
        ("1. Describe the chart.\n2. Name the auditor.", ("Describe the chart.", "Name the auditor.")),
        ("1. How high was\n   the profit?\n2. Why?", ("How high was the profit?", "Why?")),
        ("1. Costs rose by ____ percent.\n2. Why?", ("Costs rose by ____ percent.", "Why?")),
        ("1. What do ['a', \"b\"] and {x: 1} mean?\n2. Why?", ("What do ['a', \"b\"] and {x: 1} mean?", "Why?")),
        ("1. What\u2028is\tit?\n2. Why\x07?", ("What is it?", "Why ?")),
        (f"1. {'long ' * 200}?\n2. Why?", ("Why?",)),
    ],
)
def test_scripts_wrapped_lines_and_oddities(answer, questions):
    assert questions_in(answer) == questions


def test_an_answer_cut_off_loses_its_unfinished_question():
    text = "1. What is it?\n2. How many are there?\n3. Which of the plants was the"
    assert len(questions_in(text)) == 3
    assert questions_in(text, cut=True) == ("What is it?", "How many are there?")
    assert questions_in(json.dumps(FIVE)[:-20], cut=True) == FIVE[:4]


words = st.text(st.sampled_from("abcdefgh éß中"), min_size=3, max_size=30).map(lambda text: " ".join(text.split()))
asked = st.lists(words.filter(bool).map(lambda text: f"What about {text}?"), min_size=1, max_size=7, unique=True)


@given(asked, st.sampled_from(["{i}. {q}", "({i}) {q}", "- {q}", "{q}", "**Q{i}.** {q}"]), st.booleans())
def test_any_questions_come_back_from_any_list(questions, form, talkative):
    text = listed(questions, form)
    assert questions_in(f"Here you are:\n\n{text}\n\nThat is all." if talkative else text) == tuple(questions)
    assert questions_in(json.dumps({"questions": questions})) == tuple(questions)


@given(st.text(st.sampled_from("1234.)?:-*\"'`[]{}\\,aQ \n\ud800\u2028"), max_size=200) | st.text(max_size=300))
def test_whatever_comes_is_read_as_lines_of_plain_text(answer):
    for question in questions_in(answer):
        assert question.strip()
        assert len(question.splitlines()) == 1
        question.encode()


@pytest.mark.parametrize(
    "piece", ["[", "{", "1. ", "**", "? 1. ", '"', '"a?" ', "1.\n", "\\", "(answer: ", " a", "_ ", "?\n"]
)
def test_no_answer_takes_long_to_read(piece):
    started = time.perf_counter()
    questions_in(piece * (200_000 // len(piece)))
    assert time.perf_counter() - started < 2


def test_the_prompt_is_the_papers_and_counts():
    assert prompt_for(5) == PROMPT
    assert PROMPT.count("\n") == 5
    assert prompt_for(2).endswith("The output should be formatted as:\n1. Question 1\n2. Question 2")
    assert "asked to generate two question that" in prompt_for(2)
    assert "asked to generate 20 question that" in prompt_for(20)
    assert questions_in(PROMPT) == ()
