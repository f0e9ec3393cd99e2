"""A tiny data set laid out as ViDoRe's are on the hub, and a sample of training data, with pages drawn here."""

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image, ImageDraw

WORDS = ("revenue", "capital expenditure", "users", "passage", "total", "image", "year")
LANGUAGES = ("english", "french", "german", "spanish")


def picture(seed, size=(112, 140)):
    """A page with a few blocks of colour, as different as its seed."""
    rng = np.random.default_rng(seed)
    image = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(image)
    for _ in range(9):
        left, top = rng.integers(0, size[0] - 20), rng.integers(0, size[1] - 20)
        right, bottom = left + rng.integers(8, 60), top + rng.integers(6, 50)
        draw.rectangle((left, top, right, bottom), fill=tuple(int(c) for c in rng.integers(0, 230, 3)))
    data = io.BytesIO()
    image.save(data, "PNG")
    return {"bytes": data.getvalue(), "path": f"{seed}.png"}


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path)


def evaluation(folder, *, pages=5, languages=("english",), seed=0):
    """corpus, queries and qrels: one question in each language about every page, the first page answering two more."""
    corpus = [{"corpus-id": i, "image": picture(seed + i)} for i in range(pages)]
    asked = [
        {"query-id": n * pages + i, "query": f"what is the {WORDS[(i + n) % 7]} of page {i}?", "language": language}
        for n, language in enumerate(languages)
        for i in range(pages)
    ]
    judged = [{"query-id": one["query-id"], "corpus-id": one["query-id"] % pages, "score": 1} for one in asked]
    judged.append({"query-id": 1, "corpus-id": 0, "score": 1})
    for name, rows in (("corpus", corpus), ("queries", asked), ("qrels", judged)):
        write(folder / name / "test-00000-of-00001.parquet", rows)
    return folder


def training(folder, *, rows=8, shards=4):
    """Questions and images in one table, as vidore/colpali_train_set: several files of a training split, and a test."""
    for shard in range(shards):
        made = [
            {
                "query": f"how much {WORDS[(shard + i) % 7]} in row {i}?",
                "image": picture(1000 + rows * shard + i),
                "image_filename": f"train-{shard}-{i}.png",
            }
            for i in range(rows)
        ]
        write(folder / "data" / f"train-{shard:05}-of-{shards:05}.parquet", made)
    held = [{"query": "which test?", "image": picture(5000), "image_filename": "test.png"}]
    write(folder / "data" / "test-00000-of-00001.parquet", held)
    return folder
