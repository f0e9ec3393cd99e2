"""Which encoder reads a checkpoint, and what is said where none does or the files are not here."""

import json

import pytest
import torch

from pagefacets.errors import InputError
from pagefacets.vectors.checkpoints import ARCHITECTURES, BASES, CHECKPOINTS, FAMILIES, checkpoint_file, family_of, load
from pagefacets.vectors.encoder import encoder
from tests.checkpoints import retrievers
from tests.checkpoints.pages import pages


@pytest.fixture(autouse=True)
def _offline(monkeypatch):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


def saved(folder, **files):
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return str(folder)


def test_every_family_named_anywhere_has_a_class_that_exists():
    from importlib import import_module

    for table in (CHECKPOINTS, ARCHITECTURES, BASES):
        assert set(table.values()) <= set(FAMILIES)
    for place in FAMILIES.values():
        module, _, attribute = place.partition(":")
        assert hasattr(import_module(module), attribute)


def test_hub_ids_are_known_without_a_network():
    assert family_of("vidore/colpali-v1.3") == "colpali"
    assert family_of("vidore/colqwen2-v1.0") == "colqwen2"
    assert family_of("vidore/colqwen2.5-v0.2") == "colqwen2.5"
    assert family_of("nomic-ai/colnomic-embed-multimodal-7b") == "colqwen2.5"


@pytest.mark.parametrize(("architecture", "family"), sorted(ARCHITECTURES.items()))
def test_a_folder_tells_its_family_by_its_architecture(tmp_path, architecture, family):
    assert family_of(saved(tmp_path, config={"architectures": [architecture]})) == family


def test_an_adapter_is_of_the_family_of_its_base(tmp_path):
    base = saved(tmp_path / "base", config={"architectures": ["ColQwen2_5"]})
    adapter = saved(tmp_path / "adapter", adapter_config={"base_model_name_or_path": base})
    assert family_of(adapter) == "colqwen2.5"
    named = saved(tmp_path / "named", adapter_config={"base_model_name_or_path": "vidore/colqwen2-base"})
    assert family_of(named) == "colqwen2"
    tuned = saved(tmp_path / "tuned", adapter_config={"base_model_name_or_path": "vidore/colqwen2-v1.0-merged"})
    assert family_of(tuned) == "colqwen2"


def test_what_nobody_reads_is_one_sentence_with_the_choice(tmp_path):
    folder = saved(tmp_path, config={"architectures": ["LlamaForCausalLM"]})
    with pytest.raises(InputError, match="architecture LlamaForCausalLM, which nobody reads here: pass family= as one"):
        encoder(folder)
    with pytest.raises(InputError, match=r"family 'colpony', which is not one of .*colpali, .*jina-v4"):
        load(folder, family="colpony")
    (tmp_path / "config.json").unlink()
    with pytest.raises(InputError, match=r"with no config.json that tells it"):
        encoder(folder)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(InputError, match=r"config.json is not JSON .* download or save the checkpoint again"):
        encoder(folder)


def test_a_name_that_is_nowhere(tmp_path):
    for wrong in ("colqwen", "./nowhere", "/nowhere/at/all", "a/b/c"):
        with pytest.raises(InputError, match="neither a folder nor a hub id of the form owner/name: check the path"):
            encoder(wrong)
    with pytest.raises(InputError, match=r"is not on this machine .* run `hf download nobody/nothing`"):
        encoder("nobody/nothing")
    with pytest.raises(InputError, match=r"vidore/colqwen2.5-v0.2 is not on this machine"):
        encoder("vidore/colqwen2.5-v0.2")
    with pytest.raises(InputError, match=r"holds no config.json: it is not a whole checkpoint"):
        checkpoint_file(str(tmp_path), "config.json")
    assert checkpoint_file(str(tmp_path), "config.json", optional=True) is None


def test_a_checkpoint_fetched_before_needs_no_network(tmp_path, monkeypatch):
    """A cache of the hub as `hf download` leaves it: an adapter and the base it names, each a snapshot of its own."""
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))

    def cached(name):
        repository = tmp_path / f"models--{name.replace('/', '--')}"
        (repository / "refs").mkdir(parents=True)
        (repository / "refs" / "main").write_text("c0ffee")
        return repository / "snapshots" / "c0ffee"

    base = retrievers.colqwen_base(cached("vidore/colqwen2.5-base"), "qwen2_5_vl")
    adapter = retrievers.colqwen_adapter(cached("vidore/colqwen2.5-v0.2"), base)
    settings = json.loads((adapter / "adapter_config.json").read_text())
    named = settings | {"base_model_name_or_path": "vidore/colqwen2.5-base"}
    (adapter / "adapter_config.json").write_text(json.dumps(named))
    model = encoder("vidore/colqwen2.5-v0.2", device="cpu")
    assert model.id == "vidore/colqwen2.5-v0.2"
    (found,) = model.encode_pages(pages()[:1])
    (expected,) = encoder(str(adapter), base=str(base), device="cpu").encode_pages(pages()[:1])
    assert torch.equal(found.vectors, expected.vectors)
    # The base alone is a plain checkpoint: no adapter is looked for on a network.
    assert family_of("vidore/colqwen2.5-base") == "colqwen2.5"
    assert checkpoint_file("vidore/colqwen2.5-base", "adapter_config.json", optional=True) is None
