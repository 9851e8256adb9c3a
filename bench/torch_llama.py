#!/usr/bin/env python3
"""Trains a Llama shape with PyTorch: the peer that compare_torch.py measures sluice against.

Modes: `eager` and `compile` are one process on all processors; `pipeline` is one of the processes of
torch.distributed.pipelining 1F1B over gloo, a thread each. All do what sluice does in a step: the
same sequences in microbatches, global gradient clipping, AdamW with decay on matrices only.

compare_torch.py starts it with a JSON of settings; it prints one JSON line:
    {"losses": [...], "step_seconds": [...], "peak_bytes": N}
"""

import json
import os
import sys
import time
from pathlib import Path

import numpy
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from safetensors_file import read_folder


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads, self.kv_heads = c["num_attention_heads"], c["num_key_value_heads"]
        hidden = c["hidden_size"]
        self.head_dim = hidden // self.heads
        self.q_proj = nn.Linear(hidden, hidden, bias=False)
        self.k_proj = nn.Linear(hidden, self.kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(hidden, self.kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(hidden, hidden, bias=False)

    def forward(self, x_BTD, cos, sin):
        batch, tokens, _ = x_BTD.shape

        def split(y, heads):
            return y.view(batch, tokens, heads, self.head_dim).transpose(1, 2)

        q = rotate(split(self.q_proj(x_BTD), self.heads), cos, sin)
        k = rotate(split(self.k_proj(x_BTD), self.kv_heads), cos, sin)
        v = split(self.v_proj(x_BTD), self.kv_heads)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o_proj(y.transpose(1, 2).reshape(batch, tokens, -1))


def rotate(x, cos, sin):
    """Rotary position embedding, halves paired as in Hugging Face's Llama."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class Mlp(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate_proj = nn.Linear(c["hidden_size"], c["intermediate_size"], bias=False)
        self.up_proj = nn.Linear(c["hidden_size"], c["intermediate_size"], bias=False)
        self.down_proj = nn.Linear(c["intermediate_size"], c["hidden_size"], bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.input_layernorm = nn.RMSNorm(c["hidden_size"], eps=c["rms_norm_eps"])
        self.self_attn = Attention(c)
        self.post_attention_layernorm = nn.RMSNorm(c["hidden_size"], eps=c["rms_norm_eps"])
        self.mlp = Mlp(c)

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class LlamaStage(nn.Module):
    """Layers first..last of the model; the first stage embeds, the last one makes logits."""

    def __init__(self, c, first, last):
        super().__init__()
        num_layers, head_dim = c["num_hidden_layers"], c["hidden_size"] // c["num_attention_heads"]
        self.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"]) if first == 0 else None
        self.layers = nn.ModuleDict({str(i): Layer(c) for i in range(first, last)})
        self.has_head = last == num_layers
        if self.has_head:
            self.norm = nn.RMSNorm(c["hidden_size"], eps=c["rms_norm_eps"])
            self.lm_head = nn.Linear(c["hidden_size"], c["vocab_size"], bias=False)
        frequencies = c["rope_theta"] ** (-torch.arange(0, head_dim, 2).double() / head_dim)
        angles = torch.outer(torch.arange(c["sequence_length"]).double(), frequencies)
        self.register_buffer("cos", angles.cos().float(), persistent=False)
        self.register_buffer("sin", angles.sin().float(), persistent=False)
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02)

    def forward(self, x):
        if self.embed_tokens is not None:
            x = self.embed_tokens(x)
        for layer in self.layers.values():
            x = layer(x, self.cos, self.sin)
        return self.lm_head(self.norm(x)) if self.has_head else x

    def load(self, tensors):
        """Takes the weights of a checkpoint with Hugging Face's names."""
        state = {name.removeprefix("model."): torch.from_numpy(value.copy())
                 for name, value in tensors.items()}
        wanted = self.state_dict()
        self.load_state_dict({name: state[name] for name in wanted})


def loss_of(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def make_optimizer(module, c):
    matrices = [p for p in module.parameters() if p.dim() == 2]
    vectors = [p for p in module.parameters() if p.dim() != 2]
    return torch.optim.AdamW(
        [{"params": matrices, "weight_decay": c["weight_decay"]},
         {"params": vectors, "weight_decay": 0.0}],
        lr=c["learning_rate"], betas=(0.9, 0.95), eps=1e-8, fused=True)


def clip(module, limit, distributed):
    """Scales the gradients of all ranks to a global norm of at most `limit`."""
    grads = [p.grad for p in module.parameters()]
    norm_squared = torch.stack(torch._foreach_norm(grads)).square().sum()
    if distributed:
        dist.all_reduce(norm_squared)
    torch._foreach_mul_(grads, (limit / (norm_squared.sqrt() + 1e-6)).clamp(max=1.0))


class Batches:
    """The global batches of a token file (uint16), microbatch by microbatch, in file order."""

    def __init__(self, c):
        tokens = numpy.fromfile(c["tokens"], dtype=numpy.uint16).astype(numpy.int64)
        length = c["sequence_length"]
        count = (len(tokens) - 1) // length
        self.inputs = torch.from_numpy(tokens[:count * length].reshape(count, length))
        self.targets = torch.from_numpy(tokens[1:count * length + 1].reshape(count, length))
        self.size = c["sequences"]

    def step(self, index):
        rows = [(index * self.size + i) % len(self.inputs) for i in range(self.size)]
        return self.inputs[rows], self.targets[rows]


def one_process_step(module, optimizer, c):
    """The step function of the modes eager and compile."""
    forward = torch.compile(module) if c["mode"] == "compile" else module
    microbatch = c["torch_microbatch"]

    def step(inputs, targets):
        total = 0.0
        for x, y in zip(inputs.split(microbatch), targets.split(microbatch)):
            loss = loss_of(forward(x), y) * (len(x) / len(inputs))
            loss.backward()
            total += loss.item()
        clip(module, c["grad_clip"], distributed=False)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return total

    return step


def pipeline_step(module, optimizer, c):
    """The step function of one rank of torch.distributed.pipelining; losses on the last rank."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    rank, ranks = c["rank"], c["ranks"]
    stage = PipelineStage(module, rank, ranks, torch.device("cpu"))
    schedule = Schedule1F1B(stage, c["sequences"], loss_fn=loss_of)

    def step(inputs, targets):
        losses = []
        if rank == 0:
            schedule.step(inputs)
        elif rank == ranks - 1:
            schedule.step(target=targets, losses=losses)
        else:
            schedule.step()
        clip(module, c["grad_clip"], distributed=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(torch.stack(losses).mean()) if losses else None

    return step


def peak_bytes():
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no VmHWM in /proc/self/status")


def main():
    c = json.loads(sys.argv[1])
    torch.manual_seed(0)
    first, last = 0, c["num_hidden_layers"]
    if c["mode"] == "pipeline":
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=f"file://{c['rendezvous']}", rank=c["rank"],
                                world_size=c["ranks"])
        bounds = numpy.cumsum([0] + c["layers_of_ranks"]).tolist()
        first, last = bounds[c["rank"]], bounds[c["rank"] + 1]
    device = torch.device(c.get("device", "cpu"))
    module = LlamaStage(c, first, last).to(device)
    if c.get("weights"):
        module.load(read_folder(c["weights"]))
    optimizer = make_optimizer(module, c)
    make_step = pipeline_step if c["mode"] == "pipeline" else one_process_step
    step, batches = make_step(module, optimizer, c), Batches(c)

    losses, seconds = [], []
    for index in range(c["steps"]):
        inputs, targets = (t.to(device) for t in batches.step(index))
        start = time.perf_counter()
        losses.append(step(inputs, targets))
        if c["mode"] == "pipeline":
            dist.barrier()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    print(json.dumps({"losses": losses, "step_seconds": seconds, "peak_bytes": peak_bytes()}))
    sys.stdout.flush()
    if c["mode"] == "pipeline":
        dist.destroy_process_group()
    if c["mode"] == "compile":
        os._exit(0)  # the compiler's worker processes may take seconds to end


if __name__ == "__main__":
    main()
