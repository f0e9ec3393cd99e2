"""Weights: one name for each whoever saved it, adapters really added, and nothing left at random."""

import json
import re
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from pagefacets.errors import FileFormatError, InputError
from pagefacets.vectors.backbones.weights import canonical
from pagefacets.vectors.encoder import encoder
from tests.checkpoints import retrievers
from tests.checkpoints.pages import pages


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    root = tmp_path_factory.mktemp("weights")
    base = retrievers.colqwen_base(root / "base", "qwen2_5_vl")
    retrievers.colqwen_adapter(root / "adapter", base)
    retrievers.colpali_adapter(root / "colpali", retrievers.colpali_base(root / "colpali-base"))
    retrievers.jina_v4(root / "jina")
    return root


@pytest.fixture
def copied(made, tmp_path):
    """A base and an adapter of one's own, to be damaged."""
    shutil.copytree(made / "base", tmp_path / "base")
    shutil.copytree(made / "adapter", tmp_path / "adapter")
    change_json(tmp_path / "adapter" / "adapter_config.json", base_model_name_or_path=str(tmp_path / "base"))
    return tmp_path


def opened(name, **options):
    return encoder(name, **{"device": "cpu", **options})


def change_json(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def change_weights(path, change):
    """Rewrite a safetensors file, in place of the old one only when the new one is whole."""
    weights = {key: tensor.clone() for key, tensor in load_file(path).items()}
    save_file(change(weights) or weights, path.with_suffix(".new"), {"format": "pt"})
    path.with_suffix(".new").rename(path)


def vectors(folder, **options):
    model = opened(str(folder), **options)
    return [*(found.vectors for found in model.encode_pages(pages())), *model.encode_queries(["total revenue"])]


def far(found, expected):
    return max(float((one - other).abs().max()) for one, other in zip(found, expected, strict=True))


# Names seen in published files: by colpali-engine under old and new transformers, by transformers, by Jina.
@pytest.mark.parametrize(
    ("stored", "name"),
    [
        ("model.layers.3.mlp.up_proj.weight", "language_model.layers.3.mlp.up_proj.weight"),
        ("language_model.layers.3.mlp.up_proj.weight", "language_model.layers.3.mlp.up_proj.weight"),
        ("model.language_model.layers.3.mlp.up_proj.weight", "language_model.layers.3.mlp.up_proj.weight"),
        ("vlm.model.layers.3.mlp.up_proj.weight", "language_model.layers.3.mlp.up_proj.weight"),
        ("vlm.model.language_model.norm.weight", "language_model.norm.weight"),
        ("model.embed_tokens.weight", "language_model.embed_tokens.weight"),
        ("model.norm.weight", "language_model.norm.weight"),
        ("visual.blocks.0.attn.qkv.weight", "visual.blocks.0.attn.qkv.weight"),
        ("model.visual.blocks.0.attn.qkv.weight", "visual.blocks.0.attn.qkv.weight"),
        ("vlm.visual.merger.mlp.0.weight", "visual.merger.mlp.0.weight"),
        ("model.language_model.model.layers.0.mlp.up_proj.weight", "language_model.layers.0.mlp.up_proj.weight"),
        ("model.model.language_model.layers.0.mlp.up_proj.weight", "language_model.layers.0.mlp.up_proj.weight"),
        ("vlm.language_model.model.norm.weight", "language_model.norm.weight"),
        ("model.multi_modal_projector.linear.bias", "multi_modal_projector.linear.bias"),
        (
            "model.vision_tower.vision_model.encoder.layers.1.mlp.fc1.bias",
            "vision_tower.vision_model.encoder.layers.1.mlp.fc1.bias",
        ),
        ("custom_text_proj.weight", "projection.weight"),
        ("embedding_proj_layer.bias", "projection.bias"),
        ("multi_vector_projector.weight", "projection.weight"),
        ("base_model.model.custom_text_proj.weight", "projection.weight"),
        (
            "base_model.model.model.layers.35.mlp.down_proj.weight",
            "language_model.layers.35.mlp.down_proj.weight",
        ),
        (
            "base_model.model.model.language_model.model.layers.0.mlp.up_proj.weight",
            "language_model.layers.0.mlp.up_proj.weight",
        ),
        ("lm_head.weight", None),
        ("model.lm_head.weight", None),
        ("model.language_model.lm_head.weight", None),
        ("single_vector_projector.weight", None),
    ],
)
def test_every_published_name_of_a_weight_is_one(stored, name):
    assert canonical(stored) == name


def test_a_checkpoint_is_the_same_under_every_layout(made, tmp_path):
    """The newest names of colpali-engine, one file instead of shards, and a config.json with the text's apart."""
    expected = vectors(made / "base")
    shutil.copytree(made / "base", tmp_path / "new", ignore=shutil.ignore_patterns("*.safetensors*"))
    weights = {}
    for shard in (made / "base").glob("*.safetensors"):
        weights |= load_file(shard)
    weights = {re.sub(r"^model\.", "language_model.", key): tensor for key, tensor in weights.items()}
    save_file({key: tensor.contiguous() for key, tensor in weights.items()}, tmp_path / "new" / "model.safetensors")
    assert far(vectors(tmp_path / "new"), expected) == 0
    config = retrievers.qwen_config("qwen2_5_vl", retrievers.qwen_tokenizer()).to_dict()
    (tmp_path / "new" / "config.json").write_text(json.dumps(config | {"architectures": ["ColQwen2_5"]}))
    assert far(vectors(tmp_path / "new"), expected) == 0


@pytest.mark.parametrize("name", ["adapter", "colpali", "jina"])
def test_the_adapter_equals_peft(made, tmp_path, name):
    """peft adds the same matrices to the output of each layer; here they are added to its weights."""
    from peft import PeftModel

    expected = vectors(made / name)
    source = made / name / "adapters" if name == "jina" else made / name
    weights = {}
    for key, tensor in load_file(source / "adapter_model.safetensors").items():
        if "lora_A.code" in key or "lora_B.code" in key or "text-matching" in key:
            continue
        place = key.removeprefix("base_model.model.").replace(".retrieval.", ".")
        place = re.sub(r"^(custom_text_proj|multi_vector_projector)", "projection", place)
        place = re.sub(r"^model\.(language_model\.model\.)?(?=layers)", "vlm.language_model.", place)
        weights[f"base_model.model.{place}"] = tensor
    save_file(weights, tmp_path / "adapter_model.safetensors", {"format": "pt"})
    shutil.copy(source / "adapter_config.json", tmp_path)
    change_json(tmp_path / "adapter_config.json", target_modules=r".*language_model.*_proj$|projection")
    bases = {"adapter": made / "base", "colpali": made / "colpali-base", "jina": made / "jina-alone"}
    if name == "jina":
        shutil.copytree(made / "jina", bases[name], ignore=shutil.ignore_patterns("adapters"))
        with_an_adapter_that_adds_nothing(bases[name])
    model = opened(str(bases[name]))
    bare = [*(found.vectors for found in model.encode_pages(pages())), *model.encode_queries(["total revenue"])]
    assert far(bare, expected) > 0.1
    tuned = PeftModel.from_pretrained(model._retriever, tmp_path)
    assert sum("lora_A" in key for key, _ in tuned.named_parameters()) == len(weights) // 2
    found = [*(found.vectors for found in model.encode_pages(pages())), *model.encode_queries(["total revenue"])]
    assert far(found, expected) < 1e-5


def with_an_adapter_that_adds_nothing(folder):
    """The same checkpoint with an adapter that adds nothing."""
    shutil.copytree(folder.parent / "jina" / "adapters", folder / "adapters")
    change_weights(
        folder / "adapters" / "adapter_model.safetensors",
        lambda weights: {key: tensor * ("lora_A" in key) for key, tensor in weights.items()},
    )


def test_every_matrix_of_the_adapter_counts(copied):
    before = vectors(copied / "adapter")
    keys = [key for key in load_file(copied / "adapter" / "adapter_model.safetensors") if "lora_B" in key]
    assert len(keys) == 7 * retrievers.LAYERS + 1
    for key in (keys[0], keys[-1], next(key for key in keys if "custom_text_proj" in key)):
        change_weights(
            copied / "adapter" / "adapter_model.safetensors",
            lambda weights, key=key: {**weights, key: weights[key] * 3},
        )
        after = vectors(copied / "adapter")
        assert far(before, after) > 1e-3, key
        before = after


def test_only_the_retrieval_task_of_jina_counts(made, tmp_path):
    shutil.copytree(made / "jina", tmp_path / "jina")
    file = tmp_path / "jina" / "adapters" / "adapter_model.safetensors"

    def scaled(task):
        return lambda weights: {key: tensor * (3 if f"lora_B.{task}." in key else 1) for key, tensor in weights.items()}

    change_weights(file, scaled("text-matching"))
    assert far(vectors(tmp_path / "jina"), vectors(made / "jina")) == 0
    change_weights(file, scaled("retrieval"))
    assert far(vectors(tmp_path / "jina"), vectors(made / "jina")) > 1e-3


def test_ranks_and_scales_by_pattern(copied):
    """alpha_pattern of one layer's queries: the same as matrices scaled by hand."""
    config, file = (copied / "adapter" / name for name in ("adapter_config.json", "adapter_model.safetensors"))
    change_json(config, alpha_pattern={"layers.0.self_attn.q_proj": 3 * retrievers.ALPHA})
    patterned = vectors(copied / "adapter")
    change_json(config, alpha_pattern={})
    key = "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight"
    change_weights(file, lambda weights: {**weights, key: weights[key] * 3})
    assert far(vectors(copied / "adapter"), patterned) < 1e-6
    change_json(config, use_rslora=True, lora_alpha=retrievers.ALPHA / retrievers.RANK**0.5)
    assert far(vectors(copied / "adapter"), patterned) < 1e-5


def test_a_projection_saved_whole_with_the_adapter_replaces_that_of_the_base(copied):
    key = "base_model.model.custom_text_proj"

    def whole(weights):
        kept = {name: tensor for name, tensor in weights.items() if not name.startswith(key)}
        return kept | {f"{key}.weight": torch.eye(128, 64), f"{key}.bias": torch.zeros(128)}

    change_weights(copied / "adapter" / "adapter_model.safetensors", whole)
    found = vectors(copied / "adapter")
    assert all((rows[:, 64:] == 0).all() for rows in found)


def refused(folder, match, kind=InputError):
    with pytest.raises(kind, match=match) as told:
        opened(str(folder)).encode_queries(["x"])
    assert "\n" not in str(told.value)


def shard_with(folder, key):
    return folder / json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"][key]


def test_a_missing_weight_is_an_error_and_never_drawn_at_random(copied):
    key = "model.layers.1.mlp.up_proj.weight"
    change_weights(
        shard_with(copied / "base", key), lambda weights: {k: tensor for k, tensor in weights.items() if k != key}
    )
    refused(copied / "base", "lacks weights of its own qwen2_5_vl model, 1 such as language_model.layers.1.mlp.up_proj")
    refused(copied / "adapter", "lacks weights")


def test_a_weight_nobody_knows_is_an_error(copied):
    shard = shard_with(copied / "base", "visual.patch_embed.proj.weight")
    change_weights(shard, lambda weights: {**weights, "model.layers.7.mlp.up_proj.weight": torch.ones(2, 2)})
    refused(copied / "base", "has unknown weights .* language_model.layers.7")


def test_a_weight_of_another_shape_is_an_error(copied):
    key = "model.layers.1.mlp.up_proj.weight"
    change_weights(shard_with(copied / "base", key), lambda weights: {**weights, key: torch.ones(3, 3)})
    refused(copied / "base", r"stores language_model.layers.1.mlp.up_proj.weight in shape \(3, 3\)")


def test_a_base_without_projection_is_an_error(copied):
    """An adapter on plain Qwen2.5-VL would be added to a projection drawn at random."""
    key = "custom_text_proj.weight"
    change_weights(
        shard_with(copied / "base", key), lambda weights: {k: tensor for k, tensor in weights.items() if k != key}
    )
    refused(copied / "adapter", "has no projection .* pass base=")


def test_an_adapter_for_another_base_is_an_error(copied, made):
    adapter = copied / "adapter" / "adapter_model.safetensors"
    change_weights(
        adapter, lambda weights: {key.replace("layers.1.", "layers.8."): value for key, value in weights.items()}
    )
    refused(copied / "adapter", r"changes language_model.layers.8.* but its base has no such weight: pass base=")
    change_weights(adapter, lambda weights: {key: value[:, :3].contiguous() for key, value in weights.items()})
    refused(copied / "adapter", "changes .* by matrices of shape .* but its base has a weight of shape")


def test_half_an_adapter_or_none_is_an_error(copied):
    adapter = copied / "adapter" / "adapter_model.safetensors"
    key = "base_model.model.custom_text_proj.lora_B.weight"
    change_weights(adapter, lambda weights: {k: tensor for k, tensor in weights.items() if k != key})
    refused(copied / "adapter", "holds only one of the two matrices of projection.weight")
    change_weights(adapter, lambda weights: {"lm_head.weight": torch.ones(2, 2)})
    refused(copied / "adapter", "holds no LoRA matrices")


@pytest.mark.parametrize(("setting", "value"), [("lora_bias", True), ("fan_in_fan_out", True), ("bias", "all")])
def test_adapters_beyond_plain_lora_are_an_error(copied, setting, value):
    change_json(copied / "adapter" / "adapter_config.json", **{setting: value})
    refused(copied / "adapter", f"asks for {setting}=.*merge the adapter into its base with peft")


def test_damaged_and_missing_files(copied):
    path = copied / "adapter" / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    refused(copied / "adapter", "is no whole safetensors file", FileFormatError)
    path.unlink()
    refused(copied / "adapter", "holds no adapter_model.safetensors")
    (copied / "base" / "model.safetensors.index.json").unlink()
    refused(copied / "base", "holds no model.safetensors")


def test_the_small_files_are_read_first_and_their_faults_told(copied, made):
    def faulty(name, text, match, kind=InputError):
        path = copied / "adapter" / name
        before = path.read_bytes()
        path.write_text(text) if text is not None else path.unlink()
        with pytest.raises(kind, match=match):
            opened(str(copied / "adapter"))
        path.write_bytes(before)

    faulty("tokenizer.json", None, "holds no tokenizer.json")
    faulty("tokenizer.json", "{}", "is no tokenizer", FileFormatError)
    faulty("preprocessor_config.json", None, "holds no preprocessor_config.json")
    faulty("preprocessor_config.json", "{", "is not JSON")
    change_json(copied / "base" / "config.json", image_token_id=5)
    with pytest.raises(InputError, match=r"has the image token 5 in its config\.json, but its tokenizer\.json gives"):
        opened(str(copied / "adapter"))
    with pytest.raises(InputError, match="is a qwen2_5_vl model, but family 'colqwen2' is built on qwen2_vl"):
        opened(str(made / "adapter"), family="colqwen2")
    with pytest.raises(InputError, match="so it has no base"):
        opened(str(made / "base"), base=str(made / "base"))
