"""A model without weights, small enough for a test: its tokenizer, and what a vLLM server needs besides."""

from __future__ import annotations

import json
import sysconfig
from pathlib import Path

import pytest


def tiny_tokenizer(folder):
    """Write a byte-level tokenizer trained on this Python's library, as that of the samples' model."""
    tokenizers = pytest.importorskip("tokenizers", reason="needs the package tokenizers")
    tokens = tokenizers.Tokenizer(tokenizers.models.BPE(byte_fallback=False))
    tokens.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokens.decoder = tokenizers.decoders.ByteLevel()
    files = sorted(map(str, Path(sysconfig.get_paths()["stdlib"]).glob("*.py")))[:120]
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=4096,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokens.train(files, trainer)
    tokens.save(str(folder / "tokenizer.json"))
    template = (
        "{%- for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + (m['content'] or '') }}"
        "{{ '<|im_end|>\n' }}{%- endfor %}"
        "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{%- endif %}"
    )
    config = {
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "model_max_length": 8192,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": template,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")


def tiny_model(folder):
    """Write what `vllm serve --load-format dummy` wants: a Qwen3 of 4 layers."""
    tiny_tokenizer(folder)
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "dtype": "bfloat16",
        "vocab_size": 4096,
        "hidden_size": 256,
        "intermediate_size": 768,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-06,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "generation_config.json").write_text('{"eos_token_id": 2, "pad_token_id": 0}', encoding="utf-8")
