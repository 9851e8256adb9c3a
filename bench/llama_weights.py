"""Random Llama weights as a Hugging Face folder that PyTorch and sluice both start from."""

import json

import numpy

from safetensors_file import write_file


def weight_shapes(model):
    """Name -> shape of every weight; a linear weight is [out, in]."""
    hidden, intermediate = model["hidden_size"], model["intermediate_size"]
    kv = hidden // model["num_attention_heads"] * model["num_key_value_heads"]
    shapes = {"model.embed_tokens.weight": (model["vocab_size"], hidden)}
    for i in range(model["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        shapes |= {layer + "input_layernorm.weight": (hidden,),
                   layer + "self_attn.q_proj.weight": (hidden, hidden),
                   layer + "self_attn.k_proj.weight": (kv, hidden),
                   layer + "self_attn.v_proj.weight": (kv, hidden),
                   layer + "self_attn.o_proj.weight": (hidden, hidden),
                   layer + "post_attention_layernorm.weight": (hidden,),
                   layer + "mlp.gate_proj.weight": (intermediate, hidden),
                   layer + "mlp.up_proj.weight": (intermediate, hidden),
                   layer + "mlp.down_proj.weight": (hidden, intermediate)}
    shapes["model.norm.weight"] = (hidden,)
    shapes["lm_head.weight"] = (model["vocab_size"], hidden)
    return shapes


def write_model(folder, model, sequence_length):
    """Makes `folder` with config.json and model.safetensors."""
    folder.mkdir(parents=True)
    random = numpy.random.default_rng(1)
    tensors = {}
    for name, shape in weight_shapes(model).items():
        norm = len(shape) == 1
        values = numpy.ones(shape) if norm else random.normal(0.0, 0.02, shape)
        tensors[name] = values.astype(numpy.float32)
    write_file(folder / "model.safetensors", tensors)
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
              "max_position_embeddings": sequence_length, "torch_dtype": "float32", **model}
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
