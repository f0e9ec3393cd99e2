"""Tiny retrievers of the real architectures, saved as their authors save them, with weights drawn at random."""

import json
import re

import torch
from safetensors.torch import save_file

from tests.checkpoints.tokenizer import gemma_tokenizer, qwen_tokenizer

DIM = 128
RANK, ALPHA = 4, 8
LAYERS = 2
TASKS = ("retrieval", "text-matching", "code")
LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
# As in the preprocessor_config.json of vidore/colqwen2-v1.0, but for the bounds on pixels, which are smaller.
QWEN_PIXELS = {
    "do_convert_rgb": True,
    "do_normalize": True,
    "do_rescale": True,
    "do_resize": True,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_processor_type": "Qwen2VLImageProcessor",
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "max_pixels": 24 * 28 * 28,
    "merge_size": 2,
    "min_pixels": 4 * 28 * 28,
    "patch_size": 14,
    "processor_class": "ColQwen2Processor",
    "resample": 3,
    "rescale_factor": 0.00392156862745098,
    "size": {"max_pixels": 24 * 28 * 28, "min_pixels": 4 * 28 * 28},
    "temporal_patch_size": 2,
}
# As in vidore/colpali-v1.3, but for a square of 56 pixels instead of 448.
SIGLIP_PIXELS = {
    "do_convert_rgb": None,
    "do_normalize": True,
    "do_rescale": True,
    "do_resize": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_processor_type": "SiglipImageProcessor",
    "image_seq_length": 16,
    "image_std": [0.5, 0.5, 0.5],
    "processor_class": "ColPaliProcessor",
    "resample": 3,
    "rescale_factor": 0.00392156862745098,
    "size": {"height": 56, "width": 56},
}


def saved(name, folder):
    """The path of one of these, saved whole under `folder`."""
    if name in ("colqwen2", "colqwen2.5"):
        kind = {"colqwen2": "qwen2_vl", "colqwen2.5": "qwen2_5_vl"}[name]
        return str(colqwen_adapter(folder / name, colqwen_base(folder / f"{name}-base", kind)))
    if name == "colpali":
        return str(colpali_adapter(folder / name, colpali_base(folder / "colpali-base")))
    return str({"colpali-hf": colpali_hf, "colqwen2-hf": colqwen2_hf, "jina-v4": jina_v4}[name](folder / name))


def colqwen_base(folder, kind, *, seed=0, architecture=None):
    """vidore/colqwen2-base or vidore/colqwen2.5-base: all weights and the projection, in colpali-engine's names."""
    tokenizer = qwen_tokenizer()
    weights = {_engine_name(key): value for key, value in _qwen(kind, tokenizer, seed).items()}
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    weights |= _linear("custom_text_proj", 64, seed + 1)
    architecture = architecture or {"qwen2_vl": "ColQwen2", "qwen2_5_vl": "ColQwen2_5"}[kind]
    config = flat_config(kind, tokenizer) | {"architectures": [architecture]}
    return _saved(folder, weights, config, tokenizer, QWEN_PIXELS, shards=2)


def colqwen_adapter(folder, base, *, seed=5):
    """vidore/colqwen2-v1.0 or vidore/colqwen2.5-v0.2: a LoRA adapter, with tokenizer and preprocessor, on a base."""
    weights = json.loads((base / "model.safetensors.index.json").read_text())["weight_map"]
    places = [key.removesuffix(".weight") for key in weights if re.search(r"^model\.layers.*_proj\.weight", key)]
    _adapter(folder, base, [*places, "custom_text_proj"], shapes(base), seed=seed)
    qwen_tokenizer().save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(QWEN_PIXELS))
    return folder


def colpali_base(folder, *, seed=0):
    """vidore/colpaligemma-3b-pt-448-base in the names that colpali-engine saved it with."""
    tokenizer = gemma_tokenizer()
    weights = {f"model.{key}": value for key, value in _paligemma(tokenizer, seed).items()}
    weights |= _linear("custom_text_proj", 32, seed + 1)
    config = {**paligemma_config(tokenizer).to_dict(), "architectures": ["ColPali"]}
    return _saved(folder, weights, config, tokenizer, SIGLIP_PIXELS, shards=2)


def colpali_adapter(folder, base, *, seed=5):
    """vidore/colpali-v1.3."""
    keys = shapes(base)
    places = [
        key.removesuffix(".weight")
        for key in keys
        if re.search(r"language_model.*_proj\.weight$|custom_text_proj\.weight$", key)
    ]
    _adapter(folder, base, places, keys, seed=seed)
    gemma_tokenizer().save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(SIGLIP_PIXELS))
    return folder


def jina_v4(folder, *, seed=0):
    """jinaai/jina-embeddings-v4: Qwen2.5-VL in its oldest names, a projector, and one adapter for three tasks."""
    tokenizer = qwen_tokenizer()
    weights = {_engine_name(key): value for key, value in _qwen("qwen2_5_vl", tokenizer, seed).items()}
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    weights |= _linear("multi_vector_projector", 64, seed + 1)
    config = qwen_config("qwen2_5_vl", tokenizer).to_dict() | {
        "architectures": ["JinaEmbeddingsV4Model"],
        "auto_map": {"AutoModel": "modeling_jina_embeddings_v4.JinaEmbeddingsV4Model"},
        "multi_vector_projector_dim": DIM,
        "single_vector_pool_strategy": "mean",
        "task_names": list(TASKS),
    }
    _saved(folder, weights, config, tokenizer, QWEN_PIXELS, shards=2)
    places = [key.removesuffix(".weight") for key in weights if re.search(r"^model\.layers.*_proj\.weight", key)]
    places.append("multi_vector_projector")
    (folder / "adapters").mkdir()
    _adapter(folder / "adapters", folder, places, shapes(folder), seed=seed + 5, tasks=TASKS)
    return folder


def colqwen2_hf(folder, *, seed=0):
    """vidore/colqwen2-v1.0-hf, as transformers itself saves a model and a processor."""
    from transformers import ColQwen2Config, ColQwen2ForRetrieval, ColQwen2Processor
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    tokenizer = qwen_tokenizer()
    torch.manual_seed(seed)
    config = ColQwen2Config(vlm_config=qwen_config("qwen2_vl", tokenizer).to_dict(), embedding_dim=DIM)
    _lively(ColQwen2ForRetrieval(config)).save_pretrained(folder)
    known = {key: value for key, value in QWEN_PIXELS.items() if not key.endswith(("class", "type")) and key != "size"}
    ColQwen2Processor(Qwen2VLImageProcessorPil(**known), tokenizer).save_pretrained(folder)
    return folder


def colpali_hf(folder, *, seed=0):
    """vidore/colpali-v1.3-hf."""
    from transformers import ColPaliConfig, ColPaliForRetrieval, ColPaliProcessor
    from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

    tokenizer = gemma_tokenizer()
    torch.manual_seed(seed)
    config = ColPaliConfig(vlm_config=paligemma_config(tokenizer).to_dict(), embedding_dim=DIM)
    _lively(ColPaliForRetrieval(config)).save_pretrained(folder)
    known = {key: value for key, value in SIGLIP_PIXELS.items() if not key.endswith(("class", "type"))}
    image_processor = SiglipImageProcessorPil(**known)
    image_processor.image_seq_length = 16
    ColPaliProcessor(image_processor, tokenizer).save_pretrained(folder)
    return folder


def qwen_config(kind, tokenizer):
    from transformers import Qwen2_5_VLConfig, Qwen2VLConfig

    text = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 3, 3]},
        "vocab_size": 512,
        "bos_token_id": tokenizer.convert_tokens_to_ids("<|endoftext|>"),
        "eos_token_id": tokenizer.convert_tokens_to_ids("<|im_end|>"),
        "tie_word_embeddings": True,
    }
    vision = {"depth": 2, "num_heads": 2, "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2}
    ids = {
        f"{name}_token_id": tokenizer.convert_tokens_to_ids(f"<|{token}|>")
        for name, token in {
            "image": "image_pad",
            "video": "video_pad",
            "vision_start": "vision_start",
            "vision_end": "vision_end",
        }.items()
    }
    if kind == "qwen2_vl":
        return Qwen2VLConfig(text_config=text, vision_config={**vision, "embed_dim": 32, "hidden_size": 64}, **ids)
    own = {"hidden_size": 32, "intermediate_size": 48, "out_hidden_size": 64, "fullatt_block_indexes": [1]}
    return Qwen2_5_VLConfig(text_config=text, vision_config={**vision, **own, "window_size": 56}, **ids)


def flat_config(kind, tokenizer):
    """The same as published before transformers kept the settings of text apart."""
    nested = qwen_config(kind, tokenizer).to_dict()
    text = nested.pop("text_config")
    rope = text.pop("rope_parameters")
    text |= {
        "rope_theta": rope["rope_theta"],
        "rope_scaling": {"type": "mrope", "mrope_section": rope["mrope_section"]},
    }
    return text | nested


def paligemma_config(tokenizer):
    from transformers import PaliGemmaConfig

    text = {
        "model_type": "gemma",
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "vocab_size": 1792,
    }
    vision = {
        "model_type": "siglip_vision_model",
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 56,
        "patch_size": 14,
        "projection_dim": 32,
        "vision_use_head": False,
    }
    image = tokenizer.convert_tokens_to_ids("<image>")
    return PaliGemmaConfig(text_config=text, vision_config=vision, image_token_index=image, projection_dim=32)


def shapes(base):
    """The shape of every weight of a saved checkpoint."""
    from safetensors import safe_open

    found = {}
    for path in sorted(base.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            found |= {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118
    return found


def _qwen(kind, tokenizer, seed):
    import transformers

    torch.manual_seed(seed)
    model = {"qwen2_vl": transformers.Qwen2VLModel, "qwen2_5_vl": transformers.Qwen2_5_VLModel}[kind]
    return _lively(model(qwen_config(kind, tokenizer))).state_dict()


def _paligemma(tokenizer, seed):
    """Weights of PaliGemma in the names it was published with."""
    from transformers import PaliGemmaModel

    torch.manual_seed(seed)
    weights = {}
    for key, value in _lively(PaliGemmaModel(paligemma_config(tokenizer))).state_dict().items():
        key = re.sub(r"^language_model\.", "language_model.model.", key)
        weights[re.sub(r"^vision_tower\.(?!vision_model)", "vision_tower.vision_model.", key)] = value
    return weights


def _engine_name(key):
    return re.sub(r"^language_model\.", "model.", key)


def _lively(model):
    """Larger weights than those a model starts to learn from, so that every part of it changes what comes out."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim > 1:
                weight.normal_(std=weight.shape[-1] ** -0.5 if "embed" not in name else 1.0)
    return model.eval()


def _linear(name, width, seed):
    generator = torch.Generator().manual_seed(seed)
    return {
        f"{name}.weight": torch.randn(DIM, width, generator=generator) / width**0.5,
        f"{name}.bias": torch.randn(DIM, generator=generator) / 10,
    }


def _saved(folder, weights, config, tokenizer, pixels, *, shards):
    folder.mkdir(parents=True, exist_ok=True)
    names = sorted(weights)
    placed = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        mine = names[shard::shards]
        save_file({name: weights[name].contiguous() for name in mine}, folder / file, {"format": "pt"})
        placed |= dict.fromkeys(mine, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": placed}))
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "preprocessor_config.json").write_text(json.dumps(pixels))
    tokenizer.save_pretrained(folder)
    return folder


def _adapter(folder, base, places, shapes_of, *, seed, tasks=(None,)):
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for place in places:
        rows, columns = shapes_of[f"{place}.weight"]
        for task in tasks:
            part = "weight" if task is None else f"{task}.weight"
            weights[f"base_model.model.{place}.lora_A.{part}"] = torch.randn(RANK, columns, generator=generator) / 8
            weights[f"base_model.model.{place}.lora_B.{part}"] = torch.randn(rows, RANK, generator=generator) / 8
    save_file(weights, folder / "adapter_model.safetensors", {"format": "pt"})
    settings = {
        "base_model_name_or_path": str(base),
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": "gaussian",
        "lora_alpha": ALPHA,
        "lora_dropout": 0.1,
        "modules_to_save": None,
        "peft_type": "LORA",
        "r": RANK,
        "rank_pattern": {},
        "alpha_pattern": {},
        "target_modules": r"(.*(model).*(down_proj|gate_proj|up_proj|k_proj|q_proj|v_proj|o_proj).*$|.*(text_proj).*$)",
        "task_type": "FEATURE_EXTRACTION",
        "use_dora": False,
        "use_rslora": False,
    }
    (folder / "adapter_config.json").write_text(json.dumps(settings))
