"""Tiny random Qwen vision-language models on disk, laid out as the hub lays out the real ones."""

import json

import torch
from safetensors.torch import save_file

from tests.checkpoints.tokenizer import QWEN_SPECIAL, qwen_tokenizer

HIDDEN = 32
_TEXT = {
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
}


def qwen2_vl(folder, *, seed=0):
    """As Qwen/Qwen2-VL-2B-Instruct: a flat config.json, and the two towers under their old names."""
    flat = {
        **_flat("qwen2_vl", "Qwen2VLForConditionalGeneration"),
        "vision_config": {
            "depth": 2,
            "embed_dim": 32,
            "hidden_size": HIDDEN,
            "mlp_ratio": 2,
            "num_heads": 2,
            "patch_size": 14,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
        },
    }
    return _written(folder, "Qwen2VL", flat, qwen_tokenizer(), seed=seed)


def qwen2_5_vl(folder, *, special=QWEN_SPECIAL, extra=None, seed=0):
    """As Qwen/Qwen2.5-VL-3B-Instruct; `special` are its tokenizer's, `extra` tensors that lie beside the model's."""
    flat = {
        **_flat("qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration"),
        "vision_config": {
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_heads": 2,
            "out_hidden_size": HIDDEN,
            "patch_size": 14,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "window_size": 56,
            "fullatt_block_indexes": [1],
        },
    }
    return _written(folder, "Qwen2_5_VL", flat, qwen_tokenizer(special), extra=extra, seed=seed)


def qwen3_vl(folder, *, hidden=HIDDEN, layers=2, seed=0):
    """As Qwen/Qwen3-VL-Embedding-2B: the towers under their new names, and a token put behind every text."""
    from tokenizers.processors import TemplateProcessing

    tokenizer = qwen_tokenizer()
    end = ("<|endoftext|>", tokenizer.convert_tokens_to_ids("<|endoftext|>"))
    tokenizer._tokenizer.post_processor = TemplateProcessing(single="$A <|endoftext|>", special_tokens=[end])
    nested = {
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "model_type": "qwen3_vl",
        **_ids(tokenizer),
        "tie_word_embeddings": True,
        "text_config": {
            **_TEXT,
            "model_type": "qwen3_vl_text",
            "hidden_size": hidden,
            "head_dim": 8,
            "num_hidden_layers": layers,
            "vocab_size": len(tokenizer) + 8,
            "rope_scaling": {"mrope_interleaved": True, "mrope_section": [2, 1, 1], "rope_type": "default"},
            "rope_theta": 5000000,
        },
        "vision_config": {
            "model_type": "qwen3_vl",
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_heads": 2,
            "out_hidden_size": hidden,
            "patch_size": 16,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "num_position_embeddings": 64,
            "deepstack_visual_indexes": [0],
        },
    }
    return _written(folder, "Qwen3VL", nested, tokenizer, old_names=False, patch=16, seed=seed)


def lora(folder, base, model, *, dora=False, old_names=True, seed=1):
    """As TIGER-Lab/VLM2Vec-Qwen2VL-2B: an adapter for `model`, which lies at `base`; returns what peft merges it to."""
    import warnings

    from peft import LoraConfig, get_peft_model

    torch.manual_seed(seed)
    config = LoraConfig(r=2, lora_alpha=8, target_modules=["q_proj", "v_proj", "down_proj"], use_dora=dora)
    with warnings.catch_warnings():
        # Of peft and transformers to each other.
        warnings.simplefilter("ignore")
        adapted = get_peft_model(model, config)
    for name, tensor in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(tensor, std=0.3)
        elif "magnitude" in name:
            tensor.data *= 1 + 0.2 * torch.rand_like(tensor)
    adapted.save_pretrained(folder)
    path = folder / "adapter_model.safetensors"
    factors = _factors(path)
    if old_names:
        factors = {key.replace(".model.language_model.", ".model."): tensor for key, tensor in factors.items()}
    save_file(factors, path)
    settings = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**settings, "base_model_name_or_path": str(base)}))
    for name in ("tokenizer.json", "tokenizer_config.json", "preprocessor_config.json"):
        (folder / name).write_bytes((base / name).read_bytes())
    return adapted.merge_and_unload()


def jina_v4(folder, *, seed=0):
    """As jinaai/jina-embeddings-v4: a Qwen2.5-VL with a projection, and one adapter file for several tasks."""
    torch.manual_seed(seed + 7)
    projection = {
        "multi_vector_projector.weight": torch.randn(16, HIDDEN),
        "multi_vector_projector.bias": torch.randn(16),
    }
    model = qwen2_5_vl(folder, extra=projection, seed=seed)
    factors, r = {}, 2
    for layer in range(_TEXT["num_hidden_layers"]):
        for task in ("retrieval", "text-matching"):
            prefix = f"base_model.model.model.layers.{layer}.self_attn.o_proj"
            factors[f"{prefix}.lora_A.{task}.weight"] = torch.randn(r, HIDDEN)
            factors[f"{prefix}.lora_B.{task}.weight"] = 0.2 * torch.randn(HIDDEN, r)
    for task in ("retrieval", "text-matching"):
        factors[f"base_model.model.multi_vector_projector.lora_A.{task}.weight"] = torch.randn(r, HIDDEN)
        factors[f"base_model.model.multi_vector_projector.lora_B.{task}.weight"] = torch.randn(16, r)
    (folder / "adapters").mkdir()
    save_file(factors, folder / "adapters" / "adapter_model.safetensors")
    (folder / "adapters" / "adapter_config.json").write_text(
        json.dumps(
            {"peft_type": "LORA", "r": r, "lora_alpha": 4, "use_dora": False, "use_rslora": False, "bias": "none"}
        )
    )
    with torch.no_grad():
        for layer, block in enumerate(model.model.language_model.layers):
            A, B = (
                factors[f"base_model.model.model.layers.{layer}.self_attn.o_proj.lora_{side}.retrieval.weight"]
                for side in "AB"
            )
            block.self_attn.o_proj.weight += 2 * B @ A
    return model


def _written(folder, kind, config, tokenizer, *, old_names=True, patch=14, extra=None, seed=0):
    import transformers

    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(seed)
    described = getattr(transformers, f"{kind}Config").from_dict(config)
    model = getattr(transformers, f"{kind}ForConditionalGeneration")(described).eval()
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if tensor.ndim > 1:
                torch.nn.init.normal_(tensor, std=tensor.shape[-1] ** -0.5)
            elif "norm" not in name:
                torch.nn.init.normal_(tensor, std=0.1)
    weights = {key: tensor.clone() for key, tensor in model.state_dict().items() if key != "lm_head.weight"}
    if old_names:
        weights = {key.replace("model.language_model.", "model."): tensor for key, tensor in weights.items()}
        weights = {key.replace("model.visual.", "visual."): tensor for key, tensor in weights.items()}
    save_file({**weights, **(extra or {})}, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(
        json.dumps(
            {
                "image_processor_type": "Qwen2VLImageProcessor",
                "min_pixels": 4 * (2 * patch) ** 2,
                "max_pixels": 16 * (2 * patch) ** 2,
                "patch_size": patch,
                "temporal_patch_size": 2,
                "merge_size": 2,
                "image_mean": [0.48, 0.46, 0.41],
                "image_std": [0.27, 0.26, 0.28],
            }
        )
    )
    return model


def _flat(kind, architecture):
    tokenizer = qwen_tokenizer()
    return {
        "architectures": [architecture],
        "model_type": kind,
        **_ids(tokenizer),
        **_TEXT,
        "hidden_size": HIDDEN,
        "vocab_size": len(tokenizer) + 80,
        "tie_word_embeddings": True,
        "rope_scaling": {"type": "mrope", "mrope_section": [2, 1, 1]},
        "rope_theta": 1000000.0,
        "use_sliding_window": False,
    }


def _ids(tokenizer):
    names = {"image": "<|image_pad|>", "video": "<|video_pad|>"}
    ends = {"vision_start": "<|vision_start|>", "vision_end": "<|vision_end|>"}
    return {f"{key}_token_id": tokenizer.convert_tokens_to_ids(token) for key, token in (names | ends).items()}


def _factors(path):
    from safetensors.torch import load_file

    return load_file(path)


def making(family):
    """How to make the encoder of a family over a tiny checkpoint, given an empty folder."""

    def made(folder):
        from pagefacets.vectors.encoder import encoder

        place, options = folder / family, {"min_pixels": 28 * 28, "max_pixels": 16 * 28 * 28}
        if family.startswith("vlm2vec"):
            lora(place, folder / "base", qwen2_vl(folder / "base"), dora=family == "vlm2vec-v2")
        elif family == "unime-v2":
            qwen2_vl(place)
        elif family == "qwen3-vl-embedding":
            qwen3_vl(place)
        elif family == "jina-v4-single":
            jina_v4(place)
        elif family == "agc":
            qwen2_5_vl(place, special=(*QWEN_SPECIAL, *(f"<|mem{i}|>" for i in range(4))))
            options |= {"rows": 5, "tokens": 4}
        elif family == "metaembed":
            qwen2_5_vl(place, extra={"page_tokens": torch.randn(64, HIDDEN), "query_tokens": torch.randn(16, HIDDEN)})
            options |= {"page_tokens": "page_tokens", "query_tokens": "query_tokens"}
        return encoder(str(place), family=family, **options)

    return made
