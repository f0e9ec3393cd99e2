"""A vision-language model on this machine, through transformers."""

from __future__ import annotations

import zlib
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, final

import torch
from PIL.Image import Image

from pagefacets.data import Page
from pagefacets.errors import InputError, PageError
from pagefacets.evidence.asker import Answer, Asked, Asker
from pagefacets.vectors.backbones.batches import Batches
from pagefacets.vectors.checkpoints import checkpoint_file

__all__ = ["LocalModel"]

DTYPES = ("float32", "bfloat16", "float16")
# How later attempts at a page draw their words, where the checkpoint does not say.
SAMPLING = {"temperature": 0.7, "top_p": 0.8, "top_k": 20}


class _Loaded(NamedTuple):
    model: Any
    processor: Any
    # The generation config as the checkpoint came with it.
    own: Any


class _Shown(NamedTuple):
    page: Page
    image: Image


@final
@dataclass(frozen=True)
class LocalModel(Asker):
    """The checkpoint `model`, a hub id or a folder, loaded when it is first asked.

    Without `device` that is a GPU where there is one; without `dtype`, bfloat16 on a GPU and float32 on a CPU. `batch`
    pages are asked about at once, fewer where memory runs out. `settings` go into the generation config. Page images
    have at most `longest` pixels on their longer side.
    """

    model: str = "Qwen/Qwen3-VL-8B-Instruct"
    device: str | None = None
    dtype: str | None = None
    batch: int = 4
    longest: int = 1600
    max_tokens: int = 1024
    settings: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, least in (("batch", 1), ("longest", 64), ("max_tokens", 1)):
            if getattr(self, name) < least:
                raise InputError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if self.dtype is not None and self.dtype not in DTYPES:
            raise InputError(f"dtype must be one of {', '.join(DTYPES)}, got {self.dtype!r}")

    @property
    def id(self) -> str:
        return Path(self.model).resolve().name if Path(self.model).is_dir() else self.model

    def answers(self, pages: Iterable[Page], prompt: str, *, attempt: int = 0) -> Generator[Asked, None, None]:
        unread: list[Asked] = []
        batches: Batches[_Shown] = Batches(
            self.batch,
            tokens=lambda shown: shown.image.width * shown.image.height // 1024,
            device=self._device,
            remedy="ask with a smaller longest=, a smaller model, or an endpoint",
        )
        for answer in batches.run(self._shown(pages, unread), lambda batch: self._written(batch, prompt, attempt)):
            yield answer
            yield from unread
            unread.clear()
        yield from unread

    @property
    def _device(self) -> torch.device:
        try:
            return torch.device(self.device or ("cuda" if torch.cuda.is_available() else "cpu"))
        except RuntimeError as error:
            raise InputError(f"device must be cpu, cuda or cuda:1, got {self.device!r}") from error

    def _shown(self, pages: Iterable[Page], unread: list[Asked]) -> Iterator[_Shown]:
        for page in pages:
            try:
                image = page.image(self.longest)
            except PageError as error:
                unread.append((page, error))
            else:
                yield _Shown(page, image)

    def _written(self, batch: Sequence[_Shown], prompt: str, attempt: int) -> list[Asked]:
        model, processor, own = self._loaded
        asked = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": prompt}]}]
        text = processor.apply_chat_template(asked, add_generation_prompt=True, tokenize=False)
        images = [shown.image for shown in batch]
        inputs = processor(text=[text] * len(batch), images=images, padding=True, return_tensors="pt")
        model.generation_config = decoding = self._decoding(own, processor.tokenizer, attempt)
        seed = zlib.crc32("".join(shown.page.digest for shown in batch).encode(), attempt)
        cards = range(torch.cuda.device_count())
        with torch.inference_mode(), torch.random.fork_rng(cards):
            torch.manual_seed(seed)
            written = model.generate(**inputs.to(model.device))[:, inputs["input_ids"].shape[1] :].tolist()
        ends = decoding.eos_token_id
        stops = set(ends if isinstance(ends, list) else [ends])
        return [
            (shown.page, Answer(processor.tokenizer.decode(row, skip_special_tokens=True), cut=stops.isdisjoint(row)))
            for shown, row in zip(batch, written, strict=True)
        ]

    def _decoding(self, own: Any, tokenizer: Any, attempt: int) -> Any:
        """Greedy for the first attempt, the checkpoint's own way to draw words for later ones."""
        choices: dict[str, object] = {
            "eos_token_id": tokenizer.eos_token_id if own.eos_token_id is None else own.eos_token_id,
            "pad_token_id": tokenizer.pad_token_id,
            "max_new_tokens": self.max_tokens,
            "do_sample": attempt > 0,
        }
        if attempt > 0:
            choices |= {name: getattr(own, name, None) or value for name, value in SAMPLING.items()}
        return import_module("transformers").GenerationConfig(**{**choices, **self.settings})

    @cached_property
    def _loaded(self) -> _Loaded:
        checkpoint_file(self.model, "config.json")
        from safetensors import SafetensorError

        transformers = import_module("transformers")
        with _quiet():
            try:
                processor = _processor(self.model)
                model, found = transformers.AutoModelForImageTextToText.from_pretrained(
                    self.model,
                    dtype=getattr(torch, self.dtype or ("float32" if self._device.type == "cpu" else "bfloat16")),
                    output_loading_info=True,
                )
            except (OSError, ValueError, KeyError, SafetensorError) as error:
                raise InputError(
                    f"{self.model} cannot be loaded as a vision-language model ({_first_line(error)}): name one "
                    "such as Qwen/Qwen3-VL-8B-Instruct"
                ) from error
        if found["missing_keys"]:
            raise InputError(
                f"{self.model} lacks {len(found['missing_keys'])} weights, such as {min(found['missing_keys'])}: it is "
                "not a whole checkpoint, download or save it again"
            )
        own = model.generation_config
        return _Loaded(model.eval().requires_grad_(False).to(self._device), processor, own)


def _processor(model: str) -> Any:
    """The processor of a checkpoint for images and text: its part for video needs torchvision and is left out."""
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING

    kind: Any = PROCESSOR_MAPPING[type(import_module("transformers").AutoConfig.from_pretrained(model))]

    def without_video(_: Any) -> list[str]:
        names: list[str] = kind.get_attributes()
        return [name for name in names if name != "video_processor"]

    images_only = type(kind.__name__, (kind,), {"get_attributes": classmethod(without_video)})
    processor: Any = images_only.from_pretrained(model)  # type: ignore[attr-defined]
    if not (processor.chat_template or processor.tokenizer.chat_template):
        raise InputError(f"{model} has no chat template, so it cannot be asked: name an instruction-tuned checkpoint")
    processor.tokenizer.padding_side = "left"
    return processor


@contextmanager
def _quiet() -> Iterator[None]:
    """Loading says nothing of its own on standard error."""
    logging: Any = import_module("transformers.utils.logging")
    level, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bar:
            logging.enable_progress_bar()


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:200].rstrip(" .:")
