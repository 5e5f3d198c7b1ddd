"""Families: how a Hugging Face config.json and its tensors map to a Shape and to our parameters.

Apart, so that a family is one small description. Not here: reading files (``checkpoint.py``) and
the mathematics, which the fields of Shape select (``layer.py``). Free of torch.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from methods.engine.shape import RopeScaling, Shape, complete_fields

Config = Mapping[str, Any]


class UnsupportedError(ValueError):
    """An architecture or option that the engine does not have."""


@dataclass(frozen=True, slots=True)
class Family:
    """One family of checkpoints.

    Attributes:
        name: the value of ``Shape.family``.
        architecture: class name in a config.json.
        read: config.json -> Shape fields.
        write: Shape -> config.json.
        globals: our parameter -> tensor name, outside the layers.
        layer: our parameter within a block -> tensor names that are stacked, in order.
        layer_prefix: tensor-name prefix of layer ``{}``.
        ignored: endings of stored tensors that are no parameters.
    """

    name: str
    architecture: str
    read: Callable[[Config], dict[str, object]]
    write: Callable[[Shape], dict[str, Any]]
    globals: Mapping[str, str]
    layer: Mapping[str, tuple[str, ...]]
    layer_prefix: str
    ignored: tuple[str, ...] = ()


def _require(config: Config, key: str, allowed: object, default: object) -> None:
    """Refuses a config whose key has a value other than the supported one."""
    value = config.get(key, default)
    if value != allowed:
        raise UnsupportedError(f"{key}={value!r} is not supported (supported: {allowed!r})")


def _eos(config: Config) -> tuple[int, ...]:
    eos = config.get("eos_token_id")
    if eos is None:
        return ()
    return tuple(eos) if isinstance(eos, list | tuple) else (int(eos),)


def _tokens(config: Config, *, tied: bool) -> dict[str, object]:
    return {
        "vocab_size": config["vocab_size"],
        "max_positions": config["max_position_embeddings"],
        "tied_embeddings": bool(config.get("tie_word_embeddings", tied)),
        "bos_token_id": config.get("bos_token_id"),
        "eos_token_ids": _eos(config),
        "pad_token_id": config.get("pad_token_id"),
    }


def _read_opt(config: Config) -> dict[str, object]:
    _require(config, "activation_function", "relu", "relu")
    _require(config, "enable_bias", True, True)
    _require(config, "layer_norm_elementwise_affine", True, True)
    pre = bool(config.get("do_layer_norm_before", True))
    return _tokens(config, tied=True) | {
        "family": "opt",
        "num_layers": config["num_hidden_layers"],
        "width": config["hidden_size"],
        "num_heads": config["num_attention_heads"],
        "ffn_width": config["ffn_dim"],
        "embed_width": config.get("word_embed_proj_dim") or config["hidden_size"],
        "norm_placement": "pre" if pre else "post",
        "final_norm": pre and not config.get("_remove_final_layer_norm", False),
    }


def _write_opt(shape: Shape) -> dict[str, Any]:
    return {
        "model_type": "opt",
        "num_hidden_layers": shape.num_layers,
        "hidden_size": shape.width,
        "num_attention_heads": shape.num_heads,
        "ffn_dim": shape.ffn_width,
        "word_embed_proj_dim": shape.embed_width,
        "do_layer_norm_before": shape.norm_placement == "pre",
        "_remove_final_layer_norm": shape.norm_placement == "pre" and not shape.final_norm,
        "activation_function": shape.activation,
        "dropout": 0.0,
    }


def _read_rope(config: Config) -> dict[str, object]:
    """Rope of both config forms: ``rope_theta`` + ``rope_scaling``, or ``rope_parameters``."""
    parameters = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = parameters.get("rope_theta", config.get("rope_theta"))
    if theta is None:
        raise UnsupportedError("the config names no rope_theta")
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if kind not in ("default", "llama3"):
        raise UnsupportedError(f"rope_type={kind!r} is not supported (supported: default, llama3)")
    scaling = None
    if kind == "llama3":
        scaling = RopeScaling(
            factor=float(parameters["factor"]),
            low_freq_factor=float(parameters["low_freq_factor"]),
            high_freq_factor=float(parameters["high_freq_factor"]),
            original_max_positions=int(parameters["original_max_position_embeddings"]),
        )
    return {"rope_theta": float(theta), "rope_scaling": scaling}


def _read_llama(config: Config) -> dict[str, object]:
    _require(config, "attention_bias", False, False)
    return _read_llama_like(config, "llama")


def _read_qwen2(config: Config) -> dict[str, object]:
    # The bias of q, k and v is fixed in the model's code; no key announces it.
    _require(config, "use_sliding_window", False, False)
    return _read_llama_like(config, "qwen2")


def _read_llama_like(config: Config, family: str) -> dict[str, object]:
    _require(config, "hidden_act", "silu", "silu")
    _require(config, "mlp_bias", False, False)
    heads = config["num_attention_heads"]
    fields = _tokens(config, tied=False) | _read_rope(config)
    return fields | {
        "family": family,
        "num_layers": config["num_hidden_layers"],
        "width": config["hidden_size"],
        "num_heads": heads,
        "num_kv_heads": config.get("num_key_value_heads") or heads,
        "head_dim": config.get("head_dim") or config["hidden_size"] // heads,
        "ffn_width": config["intermediate_size"],
        "norm_eps": float(config["rms_norm_eps"]),
    }


def _write_llama(shape: Shape) -> dict[str, Any]:
    config: dict[str, Any] = {
        "model_type": shape.family,
        "num_hidden_layers": shape.num_layers,
        "hidden_size": shape.width,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "intermediate_size": shape.ffn_width,
        "hidden_act": shape.activation,
        "rms_norm_eps": shape.norm_eps,
        "rope_theta": shape.rope_theta,
    }
    if shape.rope_scaling:
        config["rope_scaling"] = {
            "rope_type": "llama3",
            "factor": shape.rope_scaling.factor,
            "low_freq_factor": shape.rope_scaling.low_freq_factor,
            "high_freq_factor": shape.rope_scaling.high_freq_factor,
            "original_max_position_embeddings": shape.rope_scaling.original_max_positions,
        }
    return config


OPT = Family(
    name="opt",
    architecture="OPTForCausalLM",
    read=_read_opt,
    write=_write_opt,
    globals={
        "embedding.weight": "model.decoder.embed_tokens.weight",
        "position_embedding.weight": "model.decoder.embed_positions.weight",
        "project_in.weight": "model.decoder.project_in.weight",
        "project_out.weight": "model.decoder.project_out.weight",
        # Not a layer's norm of the same name: the decoder's own, before the head.
        "final_norm.weight": "model.decoder.final_layer_norm.weight",
        "final_norm.bias": "model.decoder.final_layer_norm.bias",
        "lm_head.weight": "lm_head.weight",
    },
    layer={
        f"{ours}.{part}": tuple(f"{name}.{part}" for name in theirs)
        for part in ("weight", "bias")
        for ours, theirs in {
            "attention_norm": ("self_attn_layer_norm",),
            "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            "out": ("self_attn.out_proj",),
            "mlp_norm": ("final_layer_norm",),
            "up": ("fc1",),
            "down": ("fc2",),
        }.items()
    },
    layer_prefix="model.decoder.layers.{}.",
)

LLAMA = Family(
    name="llama",
    architecture="LlamaForCausalLM",
    read=_read_llama,
    write=_write_llama,
    globals={
        "embedding.weight": "model.embed_tokens.weight",
        "final_norm.weight": "model.norm.weight",
        "lm_head.weight": "lm_head.weight",
    },
    layer={
        "attention_norm.weight": ("input_layernorm.weight",),
        "qkv.weight": (
            "self_attn.q_proj.weight",
            "self_attn.k_proj.weight",
            "self_attn.v_proj.weight",
        ),
        "out.weight": ("self_attn.o_proj.weight",),
        "mlp_norm.weight": ("post_attention_layernorm.weight",),
        "up.weight": ("mlp.gate_proj.weight", "mlp.up_proj.weight"),
        "down.weight": ("mlp.down_proj.weight",),
    },
    layer_prefix="model.layers.{}.",
    ignored=("rotary_emb.inv_freq",),
)

QWEN2 = replace(
    LLAMA,
    name="qwen2",
    architecture="Qwen2ForCausalLM",
    read=_read_qwen2,
    layer={
        **LLAMA.layer,
        "qkv.bias": ("self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"),
    },
)

FAMILIES: Mapping[str, Family] = {family.name: family for family in (OPT, LLAMA, QWEN2)}


def shape_of_config(config: Config) -> Shape:
    """The Shape of a config.json.

    Raises:
        UnsupportedError: for an architecture or option that the engine does not have.
    """
    architectures = config.get("architectures") or []
    supported = {family.architecture: family for family in FAMILIES.values()}
    found = next((supported[name] for name in architectures if name in supported), None)
    if found is None:
        raise UnsupportedError(
            f"architectures={architectures} is not supported (supported: {sorted(supported)})"
        )
    return Shape(**complete_fields(found.read(config)))  # type: ignore[arg-type]  # fields by name


def config_of_shape(shape: Shape, dtype: str) -> dict[str, Any]:
    """The config.json with which ``transformers`` opens a checkpoint of this Shape."""
    eos = shape.eos_token_ids
    family = FAMILIES[shape.family]
    return family.write(shape) | {
        "architectures": [family.architecture],
        "vocab_size": shape.vocab_size,
        "max_position_embeddings": shape.max_positions,
        "tie_word_embeddings": shape.tied_embeddings,
        "bos_token_id": shape.bos_token_id,
        "eos_token_id": eos[0] if len(eos) == 1 else (list(eos) or None),
        "pad_token_id": shape.pad_token_id,
        "torch_dtype": dtype,
    }
