"""Pages to ask about, a server that answers or misbehaves, and a vision-language model small enough to make here."""

import base64
import contextlib
import io
import json
import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from PIL import Image

from pagefacets.data import Page
from pagefacets.errors import PageError

CHAT = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% for part in message.content %}"
    "{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True)
class Plain:
    """A page of one grey, which says its number even after JPEG."""

    grey: int
    size: tuple[int, int] = (90, 120)

    def image(self, longest):
        image = Image.new("RGB", self.size, (self.grey,) * 3)
        if longest is not None:
            image.thumbnail((longest, longest))
        return image

    def words(self):
        return None


@dataclass(frozen=True)
class Unreadable:
    place: str

    def image(self, longest):
        raise PageError(self.place, "the image is truncated: save it again")

    def words(self):
        return None


def a_page(number, *, digest="", size=(90, 120)):
    return Page(f"report.pdf#{number}", "report.pdf", number, None, digest or f"d{number}", Plain(number * 8, size))


def number_of(body):
    """Which page a request shows."""
    url = body["messages"][0]["content"][0]["image_url"]["url"]
    kind, _, data = url.partition(",")
    assert kind == "data:image/jpeg;base64"
    image = Image.open(io.BytesIO(base64.b64decode(data)))
    return round(image.getpixel((0, 0))[0] / 8)


def questions_about(number, count=5):
    return [f"What stands in line {line} of page {number}?" for line in range(1, count + 1)]


def numbered(questions):
    return "\n".join(f"{place}. {question}" for place, question in enumerate(questions, 1))


def completion(text, **choice):
    return json.dumps({"choices": [{"message": {"role": "assistant", "content": text}, **choice}]})


class Server:
    """An HTTP server on loopback; `behave(request, nth)` says what happens to the nth request about that page.

    It returns (status, body) or (status, body, headers), or a function that is given the handler and the socket's file.
    """

    def __init__(self, behave):
        self.requests = []
        self.under_way = self.most_under_way = 0
        self.released = threading.Event()
        lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                request = {"path": self.path, "headers": dict(self.headers), "body": body, "page": number_of(body)}
                with lock:
                    nth = sum(before["page"] == request["page"] for before in outer.requests)
                    outer.requests.append(request | {"time": time.monotonic()})
                    outer.under_way += 1
                    outer.most_under_way = max(outer.most_under_way, outer.under_way)
                try:
                    done = behave(request, nth)
                    with contextlib.suppress(ConnectionError):
                        if callable(done):
                            done(self)
                            self.close_connection = True
                        else:
                            self.answer(*done)
                finally:
                    with lock:
                        outer.under_way -= 1

            def answer(self, status, body, headers=()):
                data = body.encode() if isinstance(body, str) else body
                self.send_response(status)
                for name, value in {"Content-Length": str(len(data)), **dict(headers)}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *arguments):
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self._http.handle_error = lambda *arguments: None
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}/v1"
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *error):
        self.released.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    @property
    def pages(self):
        return [request["page"] for request in self.requests]


def well(request, nth):
    return 200, completion(numbered(questions_about(request["page"])))


def make_checkpoint(folder, *, template=CHAT):
    """A Qwen3-VL with random weights: its own classes of model, tokenizer and image processor, saved as they save."""
    import torch
    from checkpoints.tokenizer import qwen_tokenizer
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    tokenizer = qwen_tokenizer(chat_template=template)
    tokenizer.eos_token, tokenizer.pad_token = "<|im_end|>", "<|endoftext|>"
    ids = {
        f"{name}_token_id": tokenizer.convert_tokens_to_ids(f"<|{token}|>")
        for name, token in (
            ("image", "image_pad"),
            ("video", "video_pad"),
            ("vision_start", "vision_start"),
            ("vision_end", "vision_end"),
        )
    }
    rope = {"rope_type": "default", "rope_theta": 5e6, "mrope_section": [4, 2, 2], "mrope_interleaved": True}
    config = Qwen3VLConfig(
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 16,
            "max_position_embeddings": 4096,
            "rope_parameters": rope,
        },
        vision_config={
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_heads": 2,
            "out_hidden_size": 32,
            "num_position_embeddings": 64,
            "deepstack_visual_indexes": [0],
        },
        **ids,
    )
    torch.manual_seed(0)
    model = Qwen3VLForConditionalGeneration(config)
    model.generation_config.update(
        do_sample=True,
        temperature=0.7,
        top_p=0.8,
        top_k=20,
        eos_token_id=[tokenizer.eos_token_id, tokenizer.pad_token_id],
        pad_token_id=tokenizer.pad_token_id,
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    Qwen2VLImageProcessorPil(
        patch_size=16,
        image_mean=[0.5] * 3,
        image_std=[0.5] * 3,
        size={"shortest_edge": 64 * 64, "longest_edge": 128 * 128},
    ).save_pretrained(folder)
    return folder


def learn(folder, pages, *, steps=110):
    """Teach the checkpoint in `folder` what to ask about two pages that only their images tell apart."""
    import torch

    from pagefacets.evidence.asker import prompt_for
    from pagefacets.evidence.local import LocalModel

    model, processor, own = LocalModel(str(folder), device="cpu")._loaded
    asked = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": prompt_for(5)}]}]
    prompt = processor.apply_chat_template(asked, add_generation_prompt=True, tokenize=False)
    answers = [numbered(questions_about(page.number)) for page in pages]
    images = [page.image(1600) for page in pages]
    inputs = processor(
        text=[f"{prompt}{answer}<|im_end|>" for answer in answers], images=images, padding=True, return_tensors="pt"
    )
    alone = processor(text=[prompt], images=images[:1], return_tensors="pt")["input_ids"].shape[1]
    labels = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, -100)
    starts = (inputs["attention_mask"] == 0).sum(1) + alone
    labels[torch.arange(labels.shape[1])[None] < starts[:, None]] = -100
    optimiser = torch.optim.AdamW([one.requires_grad_() for one in model.parameters()], lr=8e-3)
    for _ in range(steps):
        loss = model(**inputs, labels=labels).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    model.generation_config = own
    model.save_pretrained(folder)
    return loss.item()
