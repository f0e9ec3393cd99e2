"""What asks questions about a page: a model that is shown its image and given a prompt."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable
from typing import NamedTuple, TypeAlias

from pagefacets.data import Page
from pagefacets.errors import PageError

__all__ = ["PROMPT", "Answer", "Asked", "Asker", "prompt_for"]

# Appendix A.2 of the paper, to the letter.
PROMPT = """\
Given the screenshot of a document/poster, you are asked to generate five question that can be answered by looking at \
the image. The questions should be relevant to the content of the image. The questions should be unique and be of \
varying question types. The output should be formatted as:
1. Question 1
2. Question 2
3. Question 3
4. Question 4
5. Question 5"""

_WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


class Answer(NamedTuple):
    """What a model wrote; `cut` where it ran into its length limit and was not finished."""

    text: str
    cut: bool = False


# A page with what the model wrote about it, or with why there is nothing.
Asked: TypeAlias = "tuple[Page, Answer | PageError]"


class Asker(ABC):
    """A vision-language model that is shown one page at a time."""

    @property
    @abstractmethod
    def id(self) -> str:
        """The model, as it is recorded beside each question."""

    @abstractmethod
    def answers(self, pages: Iterable[Page], prompt: str, *, attempt: int = 0) -> Generator[Asked, None, None]:
        """What the model writes about each page, in any order.

        Attempt 0 takes the likeliest words; later ones, made where an answer was of no use, draw others. What stops one
        page comes in place of its answer; what would stop every page is raised. Closing it ends what is under way.
        """


def prompt_for(count: int) -> str:
    """The paper's prompt, with another number of questions where that is asked for."""
    word = _WORDS[count - 1] if count <= len(_WORDS) else str(count)
    introduction = PROMPT.partition("\n")[0].replace("generate five", f"generate {word}")
    return "\n".join((introduction, *(f"{i}. Question {i}" for i in range(1, count + 1))))
